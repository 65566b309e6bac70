"""More or fewer slots over nodes, and drained nodes: no key group is ever in a slot that does not exist."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain import replicas, spreading
from udo_protocol.errors import Conflict
from udo_protocol.state.placement import Placement

GROUPS = 8
NODES = ("a", "b", "c")
DISKS = {node: f"{node}1" for node in NODES}


def start(slots: int, *, keyed: bool = True) -> Placement:
    return Placement(1, spreading.placed(NODES[:2], slots), keyed, made=7)


def moved(now: Placement, group: int, to: int) -> Placement:
    """The placement after the registry moved the group."""
    known = now.map(GROUPS)
    return now if known.groups[group] == to else now.changed(known.moved([group], known.groups[group], to))


def test_new_slots_are_on_the_nodes_with_the_fewest_and_get_no_group_by_themselves() -> None:
    after = spreading.grown(start(3), 6, NODES, GROUPS, {})
    assert after.nodes == ("a", "b", "a", "c", "b", "c") and after.version == 2
    assert after.map(GROUPS).groups == start(3).map(GROUPS).groups and after.map(GROUPS).slots == [0, 1, 2]
    assert [after.name(place) for place in range(6)] == ["a/0", "b/0", "a/1", "c/0", "b/1", "c/1"]


def test_slots_that_have_key_groups_do_not_go() -> None:
    now = start(2)
    with pytest.raises(Conflict, match="the key groups 4-7 are in slots that are to go"):
        spreading.shrunk(now, 1, GROUPS)
    with pytest.raises(Conflict, match="the key groups 0-3 are in slots that are to go"):
        spreading.drained(now, "a", NODES, GROUPS)
    for group in range(4):
        now = moved(now, group, 1)
    after = spreading.drained(now, "a", NODES, GROUPS)
    assert (after.nodes, after.map(GROUPS).groups, after.map(GROUPS).routes) == (("b",), (0,) * GROUPS, {0: 5})
    with pytest.raises(Conflict, match="all slots are on node b"):
        spreading.drained(after, "b", NODES, GROUPS)


def test_stateless_slots_of_a_drained_node_go_to_the_others() -> None:
    after = spreading.drained(start(4, keyed=False), "a", NODES, GROUPS)
    assert after.nodes == ("c", "b", "c", "b")
    with pytest.raises(Conflict, match="no other live node"):
        spreading.drained(start(1, keyed=False), "a", ["a"], GROUPS)


def test_slots_that_have_had_replicas_come_and_go_and_one_that_was_on_a_node_before_another_does_not() -> None:
    now = replace(start(3), replication=replicas.first(start(3).nodes, 0, DISKS))
    grown = spreading.grown(now, 4, NODES, GROUPS, DISKS)
    assert grown.nodes == ("a", "b", "a", "c") and grown.replication is not None
    assert grown.replication.terms == (1,) * 4 and grown.replication.counted == ((),) * 4 and grown.replication.disks["c"] == "c1"
    assert spreading.shrunk(grown, 3, GROUPS).replication == replace(now.replication, disks=grown.replication.disks)

    taken = replace(grown, nodes=("a", "a", "a", "c"), ordinals=(0, 2, 1, 0))  # slot 1 moved to node a when b was lost
    for group in range(4, GROUPS):
        taken = moved(taken, group, 0)
    assert spreading.grown(taken, 5, ("a",), GROUPS, DISKS).ordinals == (0, 2, 1, 0, 3)
    assert spreading.shrunk(taken, 3, GROUPS).ordinals == (0, 2, 1)
    with pytest.raises(Conflict, match="was on node a before one that is to stay"):
        spreading.shrunk(taken, 2, GROUPS)


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["grow", "shrink", "drain", "move"]), st.integers(0, 7), st.integers(0, 7)), max_size=12),
)
def test_each_group_is_in_a_slot_that_there_is_and_names_of_slots_that_stay_do_not_change(
    slots: int, steps: list[tuple[str, int, int]]
) -> None:
    now = start(slots)
    for kind, one, other in steps:
        before = now
        try:
            if kind == "grow":
                now = spreading.grown(now, len(now.nodes) + one % 3, NODES, GROUPS, DISKS)
            elif kind == "shrink":
                now = spreading.shrunk(now, max(1, len(now.nodes) - 1), GROUPS)
            elif kind == "drain":
                now = spreading.drained(now, NODES[one % 3], NODES, GROUPS)
            else:
                now = moved(now, one, other % len(now.nodes))
        except Conflict:
            continue
        known, was = now.map(GROUPS), before.map(GROUPS)
        assert now.newer(before) and set(known.groups) <= set(known.slots) <= set(range(len(now.nodes)))
        if kind != "move":
            assert [now.name(p) for p in known.groups] == [before.name(p) for p in was.groups], "no group has moved"
            assert {now.name(p): v for p, v in known.routes.items()}.items() <= {before.name(p): v for p, v in was.routes.items()}.items()
        assert Placement.parse(now.document(), keyed=True) == now
