"""The judge of operators whose answers are random, and the plans of changes: both must be able to say no."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.chaos.changes import BACK_DOWN, BACK_KEPT, CHANGES, MIGRATE, UPDATE, plan
from benchmarks.chaos.judge import Chains, Mismatch
from benchmarks.chaos.kinds import CHAIN, HISTORY, Kind


def link(n: int, before: int, drawn: int, at: int, key: str = "c0") -> dict[str, Any]:
    return {"k": key, "id": n, "what": "event", "n": n, "before": before, "drawn": drawn, "at": at}


def test_an_unbroken_chain_is_followed_over_epochs_and_begins_anew_when_its_state_expired() -> None:
    chains = Chains()
    chains.follow(0, [link(1, 0, 11, 1), link(1, 0, 50, 2, "c1"), link(2, 11, 12, 3)])
    chains.follow(1, [link(3, 12, 13, 3), link(1, 0, 51, 9, "c1")])
    chains.end({"c0": {"n": 3, "drawn": 13, "at": 3}, "c1": {"n": 1, "drawn": 51, "at": 9}})


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (link(2, 99, 12, 3), "goes on from 99"),
        (link(2, 11, 12, 0), "the clock"),
        (link(1, 11, 12, 3), "the first one"),
    ],
)
def test_a_broken_chain_is_found(broken: dict[str, Any], why: str) -> None:
    chains = Chains()
    chains.follow(0, [link(1, 0, 11, 1)])
    with pytest.raises(Mismatch, match=why):
        chains.follow(1, [broken])


def test_state_that_is_not_the_last_answer_is_found() -> None:
    chains = Chains()
    chains.follow(0, [link(1, 0, 11, 1)])
    with pytest.raises(Mismatch, match="its last answer was"):
        chains.end({"c0": {"n": 1, "drawn": 12, "at": 1}})


@pytest.mark.parametrize("kind", [HISTORY, CHAIN], ids=lambda k: k.operator)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("now", list(CHAIN.versions))
@pytest.mark.parametrize("kept", ["", "1", "2", "4"])
def test_every_step_of_a_plan_leads_to_another_version_that_can_read_the_state(kind: Kind, change: str, now: str, kept: str | None) -> None:
    form = {version: says.get("state_version", 0) for version, says in kind.versions.items()}
    reads = {version: (form[version], *says.get("migrates_from", ())) for version, says in kind.versions.items()}
    kept = None if kind.chained else kept if form[now] else ""
    steps = plan(change, now, kept)
    for name, version in steps:
        assert version != now
        assert (name == UPDATE) == (form[version] == form[now])
        if name == BACK_KEPT:
            assert version == kept
            assert form[now] not in reads[version]
        else:
            assert form[now] in reads[version]
        if form[version] != form[now]:
            kept = None if kind.chained else now if name == MIGRATE else ""
        now = version
    assert steps[-1][0] == (BACK_DOWN if kind.chained and change == BACK_KEPT else change)
