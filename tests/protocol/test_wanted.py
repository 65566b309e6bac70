"""The wanted state and the reports: the same on both sides, and nothing that is not understood is carried out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from udo_protocol.errors import ProtocolError
from udo_protocol.registry.canary import Measured
from udo_protocol.registry.wanted import MovedSession, NodeReport, UpdatePhase, UpdateStep, WantedDeployment, WantedState

STEP = UpdateStep("u", "2", "sha256:2", UpdatePhase.CANARY, 12.5, {"env": {"A": "1"}}, {"key": ["a"]}, ({"kind": "code"},))
KEYED = WantedDeployment(
    "d",
    "t",
    "1",
    "sha256:1",
    {"key": ["a"]},
    ({"kind": "code"},),
    slots=3,
    placement={"version": 1, "nodes": ["a", "b", "a"]},
    made=2,
    generation=7,
    config={"secrets": {"S": "hidden"}},
    update=STEP,
)
STATE = WantedState(4, (MovedSession("d", "q", 3),), {"a": "10.0.0.1:1"}, (KEYED, WantedDeployment("e", "u", "1", "sha256:3", slots=2)))


def sent(state: WantedState) -> dict[str, Any]:
    """The wanted state as a node receives it."""
    found: dict[str, Any] = json.loads(json.dumps(state.document()))
    return found


def test_a_node_reads_what_the_registry_wrote() -> None:
    assert WantedState.parse(sent(STATE)) == STATE
    keyed, plain = STATE.deployments
    assert [(d.keyed, d.slots_on("a"), d.slots_on("c"), d.slots_in_all) for d in (keyed, plain)] == [(True, 2, 0, 3), (False, 2, 2, 1)]


def test_what_a_newer_registry_adds_is_not_looked_at_and_what_an_older_one_lacks_has_a_default() -> None:
    told = sent(STATE)
    told["more"] = told["deployments"][0]["more"] = told["deployments"][0]["update"]["more"] = {"of": 1}
    assert WantedState.parse(told) == STATE
    least = {"name": "d", "operator": "t", "version": "1", "digest": "sha256:1", "config": {}, "update": None}
    assert WantedState.parse({"generation": 1, "deployments": [least]}).deployments == (WantedDeployment("d", "t", "1", "sha256:1"),)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("deployments", 0, "update", "phase"), "pause", "deployment 0: ValueError: 'pause'"),
        (("deployments", 0, "update", "percent"), "all", "deployment 0: ValueError"),
        (("deployments", 1), {"name": "e"}, "deployment 1: KeyError: 'operator'"),
        (("deployments", 1), "e", "deployment 1: AttributeError"),
        (("moved", 0), {}, "moved sessions or addresses: KeyError: 'deployment'"),
        (("generation",), None, "its generation"),
    ],
)
def test_a_state_that_is_not_understood_is_refused_with_the_part_and_the_remedy(path: tuple[Any, ...], value: Any, named: str) -> None:
    told = sent(STATE)
    part: Any = told
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(ProtocolError, match=f"{named}.*Update the node managers first"):
        WantedState.parse(told)


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(STATE) and "'A'" not in repr(STATE)


@pytest.mark.parametrize(
    "wrong", [{"measured": {"events": -1}}, {"measured": {"events": float("nan")}}, {"more": 1}, {"deployment": "A b"}]
)
def test_a_report_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    right = {"deployment": "d", "version": "1", "digest": "sha256:1", "state": "canary", "measured": {"events": 1}}
    assert NodeReport.model_validate(right).measured == Measured(events=1)
    with pytest.raises(ValidationError):
        NodeReport.model_validate({**right, **wrong})
