"""Steps of a deployment with state over nodes, as pure functions: the moves, the slots that come and go, and the result of giving up."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticity.scaling.model import GAIN, Kind, Plan
from registry.domain import keyed_steps
from udo_protocol.errors import Conflict
from udo_protocol.state.placement import Placement

GROUPS = 12
BY = ("app", 1, 7, 100.0)


def step(kind: Kind, target: str | None = None, replica: str | None = None) -> Plan:
    return Plan("d", kind, 1, GAIN[kind], 1.0, "test", replica, target)


def begun(now: Placement, node: str, plan: Plan) -> Placement:
    return keyed_steps.begun(now, node, plan, BY, GROUPS)


def moved(now: Placement, some: int = GROUPS) -> Placement:
    """Carry out the first remaining move, or this many groups of it, as placements.py does."""
    [(to, groups), *_] = keyed_steps.moves(now)
    assert now.step is not None
    return now.changed(now.map(GROUPS).moved(groups[:some], now.step.source, to))


def over(now: Placement) -> Placement:
    """Carry out the step to its end."""
    while (part := keyed_steps.next_part(now, followed=True)) != "done":
        now = keyed_steps.emptied(now) if part else moved(now)
    return keyed_steps.ended(now)


def names(now: Placement) -> dict[str, int]:
    known = now.map(GROUPS)
    return {now.name(place): len(known.of(place)) for place in range(len(now.nodes))}


class Listed(tuple[int, ...]):
    """Groups that must not be searched for a single one: with thousands of them that takes seconds."""

    def __contains__(self, _: object) -> bool:
        raise AssertionError("each of the groups is searched for in all that move")


def test_groups_that_move_are_not_searched_for_one_by_one() -> None:
    now = begun(Placement(3, ("a", "b", "a"), True, made=1), "a", step("scale_out", "b"))
    assert now.step is not None
    listed = replace(now, step=replace(now.step, groups=Listed(now.step.groups)))
    [(to, groups)] = keyed_steps.moves(listed)
    assert groups == list(now.step.groups)
    assert now.map(GROUPS).moved(Listed(groups), now.step.source, to).of(to) == groups


def test_a_slot_moves_with_all_its_key_groups_and_the_others_keep_their_names_and_groups() -> None:
    now = Placement(3, ("a", "b", "a"), True, made=1)
    first = begun(now, "a", step("migrate", "b"))
    assert (first.nodes, keyed_steps.moves(first)) == (("a", "b", "a", "b"), [(3, [8, 9, 10, 11])])
    assert keyed_steps.next_part(first, followed=True) == "", "nothing has moved"
    empty = moved(first)
    assert keyed_steps.next_part(empty, followed=False) == "emptied"
    gone = keyed_steps.emptied(empty)
    assert gone.nodes == ("a", "b", "b") and names(gone) == {"a/0": 4, "b/0": 4, "b/1": 4}
    assert keyed_steps.next_part(gone, followed=False) == "", "the node has not followed"
    done = keyed_steps.ended(gone)
    assert done.step is None and done.version > gone.version > first.version > now.version
    assert Placement.parse(gone.document(), keyed=True) == gone


def test_the_first_slot_moves_once_the_order_of_runs_has_been_handed_over() -> None:
    now = begun(Placement(3, ("a", "b"), True, made=1), "a", step("migrate", "b"))
    assert keyed_steps.runs_to(now) == "b"
    now = moved(now)
    assert [keyed_steps.next_part(now, followed) for followed in (False, True)] == ["", "emptied"]
    assert over(now).nodes == ("b", "b") and keyed_steps.runs_to(keyed_steps.emptied(now)) == ""


def test_a_new_slot_gets_half_of_the_key_groups_of_the_one_that_is_named_else_of_the_largest() -> None:
    now = Placement(3, ("a", "b", "a"), True, made=1)
    named = over(begun(now, "a", step("scale_out", "b", "a/1")))
    assert names(named) == {"a/0": 4, "b/0": 4, "a/1": 2, "b/1": 2}
    assert names(over(begun(named, "a", step("scale_out")))) == {"a/0": 2, "b/0": 4, "a/1": 2, "b/1": 2, "a/2": 2}


def test_the_key_groups_of_a_slot_that_goes_stay_on_its_node_if_it_has_others() -> None:
    now = Placement(3, ("a", "b", "a"), True, made=1)
    assert names(over(begun(now, "a", step("scale_in")))) == {"a/0": 8, "b/0": 4}
    assert names(over(begun(now, "b", step("scale_in")))) == {"a/0": 6, "a/1": 6}


def balanced(to: str, *groups: int) -> Plan:
    return replace(step("balance"), groups=tuple((group, to) for group in groups))


def test_balancing_moves_the_named_key_groups_and_no_slot_comes_or_goes() -> None:
    now = Placement(3, ("a", "b", "a"), True, made=1)
    first = begun(now, "a", balanced("b/0", 1, 0))
    assert (first.nodes, keyed_steps.moves(first), keyed_steps.runs_to(first)) == (now.nodes, [(1, [0, 1])], "")
    assert keyed_steps.next_part(first, followed=True) == "", "nothing has moved"
    half = moved(first, 1)
    assert keyed_steps.moves(half) == [(1, [1])]
    done = over(first)
    assert names(done) == {"a/0": 2, "b/0": 6, "a/1": 4} and done.map(GROUPS).of(1) == [0, 1, 4, 5, 6, 7]
    assert done.step is None and done.version > first.version > now.version
    assert names(over(begun(now, "a", balanced("a/1", *range(4))))) == {"a/0": 0, "b/0": 4, "a/1": 8}


def test_balancing_that_is_given_up_takes_no_slot_away_that_it_has_not_added() -> None:
    now = Placement(3, ("a", "b", "a"), True, made=1)
    empty = over(begun(now, "b", balanced("a/0", 4, 5, 6, 7)))
    early = keyed_steps.given_up(begun(empty, "a", balanced("b/0", 0, 1)))
    assert (early.nodes, early.step, names(early)) == (now.nodes, None, names(empty))
    assert names(keyed_steps.given_up(moved(begun(empty, "a", balanced("b/0", 0, 1)), 1))) == {"a/0": 7, "b/0": 1, "a/1": 4}


@pytest.mark.parametrize(
    ("node", "plan"),
    [
        ("b", balanced("a/0", 0)),  # it is on a
        ("a", balanced("b/0", 0, 8)),  # of two slots
        ("a", balanced("a/0", 0)),  # it is there
        ("a", balanced("b/1", 0)),  # there is no such slot
        ("a", balanced("b/0", GROUPS)),
        ("a", balanced("b/0", -1)),
        ("a", balanced("b/0")),
        ("a", replace(step("balance"), groups=((0, "b/0"), (1, "a/1")))),
    ],
)
def test_balancing_whose_key_groups_or_slots_are_others_by_now_is_refused(node: str, plan: Plan) -> None:
    with pytest.raises(Conflict, match=f"no longer in one slot of node {node}, or the slot that they would go to is gone"):
        begun(Placement(3, ("a", "b", "a"), True, made=1), node, plan)


def test_a_step_that_is_given_up_leaves_no_empty_slot_and_takes_nothing_back() -> None:
    now = Placement(3, ("a", "b", "a"), True, made=1)
    for kind in ("migrate", "scale_out"):
        early = keyed_steps.given_up(begun(now, "a", step(kind, "b")))
        assert (early.nodes, early.step) == (now.nodes, None)
        late = keyed_steps.given_up(moved(begun(now, "a", step(kind, "b"))))
        assert late.nodes == ("a", "b", "a", "b") and names(late)["b/1"] > 0
    part = keyed_steps.given_up(moved(begun(now, "b", step("scale_in")), 1))
    assert names(part) == {"a/0": 5, "b/0": 3, "a/1": 4}


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(Conflict, match="the only slot"):
        begun(Placement(3, ("a",), True), "a", step("scale_in"))
    with pytest.raises(Conflict, match="12 slots, as many as"):
        begun(Placement(3, ("a",) * GROUPS, True), "a", step("scale_out"))
    alone = Placement(3, ("a", "b"), True)
    alone = alone.changed(replace(alone.map(GROUPS).moved(range(1, 6), 0, 1), version=4))
    with pytest.raises(Conflict, match="slot a/0 has 1 key groups: a further slot would have none"):
        begun(alone, "a", step("scale_out"))


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["migrate", "scale_in", "scale_out", "balance"]), st.sampled_from("abc"))),
    st.randoms(use_true_random=False),
)
def test_whatever_is_granted_and_given_up_each_key_group_is_in_one_slot_and_versions_only_rise(
    first: list[str], steps: list[tuple[str, Kind, str]], chance: random.Random
) -> None:
    now = Placement(1, tuple(first), True, made=1)
    for node, kind, target in steps:
        if node not in now.nodes:
            continue
        plan = step(kind, target)
        if kind == "balance" and (have := now.map(GROUPS).of(now.of(node)[0])):
            plan = balanced(now.name(chance.randrange(len(now.nodes))), *chance.sample(have, chance.randint(1, len(have))))
        try:
            after = begun(now, node, plan)
        except Conflict:
            continue
        versions = [now.version, after.version]
        while after.step is not None:
            part = keyed_steps.next_part(after, followed=True)
            if chance.random() < 0.2:
                after = keyed_steps.given_up(after)
            elif part == "done":
                after = keyed_steps.ended(after)
                assert len(after.nodes) - len(now.nodes) == {"migrate": 0, "scale_in": -1, "scale_out": 1, "balance": 0}[kind]
            else:
                after = keyed_steps.emptied(after) if part else moved(after, chance.randint(1, GROUPS))
            versions.append(after.version)
            assert sorted(g for place in range(len(after.nodes)) for g in after.map(GROUPS).of(place)) == list(range(GROUPS))
        assert versions == sorted(set(versions)), "nodes take the last one for the newest"
        now = Placement.parse(after.document(), keyed=True)
