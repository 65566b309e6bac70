"""Steps of a stateless deployment over nodes that the registry carries out itself: where its slots are afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticity.scaling.model import GAIN, Kind, Plan
from registry.domain.spread_steps import stepped
from udo_protocol.errors import Conflict
from udo_protocol.state.placement import Placement

NODES = ["a", "b", "c"]


def step(kind: Kind, target: str | None = None) -> Plan:
    return Plan("d", kind, 1, GAIN[kind], 1.0, "test", target=target)


def test_the_last_slot_of_the_node_in_the_list_moves_goes_or_gets_company() -> None:
    now = Placement(4, ("a", "b", "a"), False, made=1)
    assert stepped(now, "a", step("migrate", "b")).nodes == ("a", "b", "b")
    assert stepped(now, "a", step("scale_in")).nodes == ("a", "b")
    assert stepped(now, "a", step("scale_out", "c")).nodes == ("a", "b", "a", "c")
    after = stepped(now, "b", step("scale_out"))
    assert (after.nodes, after.version) == (("a", "b", "a", "b"), 5), "without a target to the node itself"


def test_a_nodes_last_slot_stays() -> None:
    now = Placement(4, ("a", "b", "a"), False, made=1)
    for kind in ("migrate", "scale_in"):
        with pytest.raises(Conflict, match="the last slot of node b"):
            stepped(now, "b", step(kind, "a"))


@given(
    st.lists(st.sampled_from(NODES), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(["migrate", "scale_in", "scale_out"]), st.sampled_from(NODES))),
)
def test_whatever_is_granted_no_node_loses_its_last_slot_and_versions_only_rise(
    first: list[str], steps: list[tuple[str, Kind, str]]
) -> None:
    now = Placement(1, tuple(first), False, made=1)
    for node, kind, target in steps:
        if node not in now.nodes:
            continue
        try:
            after = stepped(now, node, step(kind, target))
        except Conflict:
            continue
        assert set(now.nodes) <= set(after.nodes) and after.newer(now)
        assert len(after.nodes) - len(now.nodes) == {"migrate": 0, "scale_in": -1, "scale_out": 1}[kind]
        now = after
