"""Preparing scale-outs (paper 3): prepared from δ2′ on, taken over at δ2, stood down when the load falls; never flapping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from elasticity.scaling import journal
from elasticity.scaling.fuzzy import fuzzy
from elasticity.scaling.journal import Controller, Header, JournalEntry
from elasticity.scaling.model import Host, KeyGroups, OperatorSample, Replica, Sample
from elasticity.scaling.scale_out import fairness_degree
from tests.elasticity.applications import decide

EVERY_S = 10.0
# Seconds of work in the queue of a replica used 95 %: by the shipped rules loads of 50, 70 and 90.
CALM, STRAINED, OVERLOADED, USE = 0.0, 2.0, 10.0, 0.95
SETTINGS = {"policy": "fuzzy", "least": 1, "most": 8, "confirm": 2, "settle": 1}


class Keyed:
    """A keyed operator with `waits(at_s)` seconds of work in the queue of each replica. Decisions are carried out, or fail."""

    def __init__(self, waits: Callable[[float], float], settings: dict[str, object] | None = None, *, fails: bool = False) -> None:
        self.replicas, self.prepared, self._waits, self._fails = 1, 0, waits, fails
        self.header = Header("local", {**SETTINGS, **(settings or {})}, 1)
        self.controller = Controller(self.header)
        self.entries: list[JournalEntry] = []

    def sample(self, at_s: float) -> Sample:
        backlog = self._waits(at_s) * 100.0 / USE
        replicas = tuple(Replica(str(n), "n", USE, 100.0, 100.0, 100.0, backlog) for n in range(self.replicas))
        groups = KeyGroups(tuple(g % self.replicas for g in range(128)), (1,) * 128)
        operator = OperatorSample("d", replicas, max_replicas=8, groups=groups, prepared=self.prepared)
        return Sample(at_s, (operator,), (Host("n", 0.5, 10, {}),), 1.0, {"scale_out": 1.0, "scale_in": 1.0, "balance": 1.0})

    def run(self, seconds: float) -> Keyed:
        begun = self.entries[-1].sample.at_s + EVERY_S if self.entries else 0.0
        for i in range(round(seconds / EVERY_S)):
            entry = self.controller.decide(self.sample(begun + i * EVERY_S))
            self.entries.append(entry)
            for step in entry.decision.granted if not self._fails else ():
                self.prepared = step.replicas if step.kind == "prepare" else 0
                if step.kind in ("scale_out", "scale_in"):
                    self.replicas = step.replicas
        return self

    @property
    def steps(self) -> list[tuple[float, str, int]]:
        return [(e.sample.at_s, p.kind, p.replicas) for e in self.entries for p in e.decision.granted]

    def kinds(self) -> list[str]:
        return [kind for _, kind, _ in self.steps]


def test_a_load_that_rises_is_prepared_for_at_the_alarming_threshold_and_taken_over_at_the_next() -> None:
    ran = Keyed(lambda at_s: CALM if at_s < 60 else STRAINED if at_s < 200 else OVERLOADED if at_s < 230 else CALM).run(250)
    (prepared_s, first, to), (taken_s, second, replicas) = ran.steps
    assert (first, to) == ("prepare", 2) and 60 <= prepared_s <= 80
    assert (second, replicas) == ("scale_out", 2) and 200 <= taken_s <= 230
    assert "a bottleneck soon: used 95%" in ran.entries[round(prepared_s / EVERY_S)].decision.granted[0].why


def test_a_load_that_falls_again_gives_the_preparation_up_and_leaves_the_replicas() -> None:
    ran = Keyed(lambda at_s: STRAINED if 60 <= at_s < 130 else CALM).run(600)
    assert ran.kinds() == ["prepare", "stand_down"] and ran.replicas == 1 and ran.prepared == 0
    (at_s, _, replicas) = ran.steps[1]
    assert replicas == 1 and 180 <= at_s <= 200, "a minute after it was last wanted"


@pytest.mark.parametrize("period_s", [20, 40, 80, 160, 320])
def test_a_load_around_the_alarming_threshold_makes_nothing_flap(period_s: float) -> None:
    ran = Keyed(lambda at_s: 1.0 + 0.9 * math.sin(2 * math.pi * at_s / period_s)).run(4 * 3600)
    assert set(ran.kinds()) <= {"prepare", "stand_down"} and ran.kinds()
    assert all(b[0] - a[0] >= 60 for a, b in zip(ran.steps, ran.steps[1:], strict=False))
    assert all(a != b for a, b in zip(ran.kinds(), ran.kinds()[1:], strict=False))


def test_a_take_over_that_is_declined_for_a_while_keeps_what_stands_prepared() -> None:
    ran = Keyed(lambda at_s: STRAINED if at_s < 100 else OVERLOADED, {"capacity": 1, "token_s": 500.0}).run(900)
    kinds = ran.kinds()
    assert kinds[:3] == ["prepare", "scale_out", "prepare"] and "stand_down" not in kinds
    assert any(why == "no token" for e in ran.entries for _, why in e.decision.declined)


def test_a_preparation_that_fails_is_not_tried_again_at_once() -> None:
    ran = Keyed(lambda _: STRAINED, fails=True).run(600)
    assert ran.kinds() == ["prepare"] * 10
    assert all(b[0] - a[0] >= 60 for a, b in zip(ran.steps, ran.steps[1:], strict=False))


def test_nothing_is_prepared_that_may_not_scale_out_or_without_a_strategy() -> None:
    assert Keyed(lambda _: STRAINED, {"most": 1}).run(600).steps == []
    assert Keyed(lambda _: STRAINED, {"strategy": ""}).run(600).steps == []
    left = Keyed(lambda _: CALM, {"strategy": ""})
    left.prepared = 2
    assert left.run(120).kinds() == ["stand_down"], "what another setting had prepared"


def test_the_journal_replays_to_the_same_decisions_and_so_do_those_of_earlier_releases() -> None:
    ran = Keyed(lambda at_s: STRAINED if at_s < 100 else OVERLOADED).run(400)
    assert "prepare" in ran.kinds() and "scale_out" in ran.kinds()
    lines = [journal.first_line(ran.header), *map(journal.line, ran.entries)]
    header, entries = journal.read(lines)
    assert entries == ran.entries and not list(journal.replay(header, entries))
    earlier = [text.replace(', "prepared": 0', "", 1) for text in lines]
    assert journal.read(earlier)[1][0].sample.operators[0].prepared == 0


@pytest.mark.parametrize(
    ("assigned", "needed", "degree"),
    [([1, 2, 2], [1, 2, 2], 1.0), ([1, 1, 2], [2, 2, 2], 4 / 6), ([0, 0], [1, 3], 0.0), ([4, 1], [2, 2], 0.75), ([1, 1], [0, 0], 1.0)],
)
def test_the_fairness_degree_is_what_was_assigned_of_what_was_needed(
    assigned: Sequence[float], needed: Sequence[float], degree: float
) -> None:
    assert fairness_degree(list(assigned), list(needed)) == pytest.approx(degree)


def test_the_policy_alone_is_the_papers_algorithm() -> None:
    """Prepared at δ2′, and no longer once it is taken over or the load falls; holding it for a while is added by `local`."""
    memory, prepared = None, []
    for i, waits in enumerate([CALM, STRAINED, STRAINED, STRAINED, CALM, CALM]):
        one = Keyed(lambda _, waits=waits: waits)  # type: ignore[misc]
        decided, memory = decide(fuzzy, one.sample(i * EVERY_S), memory, confirm=2)
        prepared.append(decided.prepared)
    assert prepared == [(), (), ("d",), ("d",), (), ()]
