"""The choice of nodes for replicas, and of the node that gets a lost node's slots: only a counted replica, and no slot begins anew."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from registry.domain import replicas, spreading
from registry.domain.replicas import Nodes, advanced, next_placement, remains
from tests.support.seeds import seeds
from udo_protocol.errors import Conflict
from udo_protocol.state.placement import PendingMove, Placement

NODES = ("a", "b", "c")
LIVE = {node: f"{node}1" for node in NODES}


def start(slots: int = 3, wanted: int = 1) -> Placement:
    nodes = spreading.placed(NODES, slots)
    return Placement(1, nodes, True, made=7, replication=replicas.first(nodes, wanted, LIVE))


def counted(now: Placement, *places: int) -> Placement:
    """The placement with all joining replicas of these slots (default: all) counted: by their owners' reports they hold every END."""
    copies = now.replication
    assert copies is not None
    held, joining = list(copies.counted), list(copies.joining)
    for place in places or range(len(now.nodes)):
        held[place], joining[place] = (*held[place], *joining[place]), {}
    return advanced(now, replace(copies, counted=tuple(held), joining=tuple(joining)))


def seen(live: dict[str, str], *drained: str) -> Nodes:
    return Nodes(live, [node for node in live if node not in drained], drained)


def step(now: Placement, live: dict[str, str], *drained: str) -> Placement:
    return next_placement(now, seen(live, *drained))[0]


def without(*lost: str) -> dict[str, str]:
    return {node: disk for node, disk in LIVE.items() if node not in lost}


def test_replicas_are_named_evenly_on_other_nodes_and_not_counted_yet() -> None:
    now = step(start(6, 1), LIVE)
    copies = now.replication
    assert copies is not None and not any(copies.counted)
    assert Counter(node for place in copies.joining for node in place) == {"a": 2, "b": 2, "c": 2}
    assert all(owner not in place for owner, place in zip(now.nodes, copies.joining, strict=True))
    assert next_placement(now, seen(LIVE)) == (now, []), "nothing is left to be done"


def test_more_replicas_are_wanted_than_there_are_nodes() -> None:
    copies = step(start(1, 5), LIVE).replication
    assert copies is not None and [set(place) for place in copies.joining] == [{"b", "c"}]


def test_the_slots_of_a_lost_node_go_to_those_that_hold_them_each_with_a_place_of_its_own() -> None:
    now = counted(step(start(6), LIVE))
    before = now.replication
    assert before is not None
    after = step(now, without("a"))
    copies = after.replication
    assert copies is not None and after.version > now.version
    for place in (0, 3):
        assert after.nodes[place] in before.counted[place] and copies.terms[place] > 1
    for node in ("b", "c"):
        assert sorted(after.ordinal(place) for place in after.of(node)) == list(range(len(after.of(node))))
        mine = [place for place in after.of(node) if place not in (0, 3)]
        assert mine == now.of(node), "slots that it had keep their places"
    assert "a" not in copies.disks or all("a" not in copies.named(place) for place in range(6))


def test_a_replica_that_only_joins_gets_nothing_and_the_loss_is_noted_once() -> None:
    now = step(start(), LIVE)
    after, said = next_placement(now, seen(without("a")))
    assert after.replication is not None and after.replication.lost == ("a",) and after.nodes == now.nodes
    assert any("nobody" in text or "no live node" in text for text in said)
    assert not [text for text in next_placement(after, seen(without("a")))[1] if "lost" in text]
    back = step(after, LIVE)
    assert back.replication is not None and not back.replication.lost and back.nodes == now.nodes


def test_a_node_that_comes_back_with_another_disk_is_somebody_else() -> None:
    now = counted(step(start(), LIVE))
    owner_lost = step(now, {**LIVE, "a": "a2"})
    assert owner_lost.nodes[0] != "a"
    alone = step(start(), {**LIVE, "a": "a2"})
    assert alone.replication is not None and alone.nodes[0] == "a" and alone.replication.lost == ("a",)
    place = next(p for p, held in enumerate(now.replication.counted if now.replication else ()) if "c" in held)
    given_up = step(now, {**LIVE, "c": "c2"})
    assert given_up.replication is not None and "c" not in given_up.replication.counted[place]


def test_a_replica_is_given_up_only_while_the_owner_is_heard_of() -> None:
    now = counted(step(start(), LIVE), 0)
    copies = now.replication
    assert copies is not None
    holder = copies.counted[0][0]
    both = step(now, without("a", holder))
    assert both.replication is not None and both.replication.counted[0] == (holder,) and both.nodes[0] == "a"
    back = step(both, without("a"))
    assert back.nodes[0] == holder, "it still holds all that was ENDed"


def test_a_node_is_replaced_in_all_its_slots_or_in_none() -> None:
    now = counted(step(start(6), LIVE), 0)
    after = step(now, without("a"))
    assert after.nodes == now.nodes and after.replication is not None and after.replication.lost == ("a",)


def test_a_drained_node_keeps_its_slots_until_as_many_hold_them_as_are_to_be_left() -> None:
    now = counted(step(start(4), LIVE))
    assert now.of("a") == [0, 3]
    before = now.replication
    assert before is not None
    more = step(now, LIVE, "a")
    copies = more.replication
    assert copies is not None and more.nodes == now.nodes
    for place in (0, 3):
        assert {"b", "c"} == copies.named(place) and copies.counted[place] == before.counted[place]
    held = [place for place, owner in enumerate(now.nodes) if "a" in before.counted[place]]
    assert all("a" in copies.counted[place] for place in held), "until others hold them"
    assert remains(more, "a", seen(LIVE, "a")) == (
        "its slots 0, 3 go to other nodes as soon as enough of these hold them (udo inspect shows it)",
        True,
    )
    assert step(counted(more, 0), LIVE, "a").nodes == now.nodes, "all of its slots, or none"
    after = step(counted(more), LIVE, "a")
    copies = after.replication
    assert copies is not None and "a" not in after.nodes and "a" not in copies.disks
    for place in (0, 3):
        assert copies.counted[place] == tuple({"b", "c"} - {after.nodes[place]}) and copies.terms[place] > 1
    assert remains(after, "a", seen(LIVE, "a"))[0] == ""
    assert next_placement(after, seen(LIVE, "a")) == (after, [])


def test_a_drained_node_without_others_for_its_slots_keeps_them_and_replicas_without_others_stay() -> None:
    now = counted(step(start(), LIVE))
    alone = step(now, LIVE, "a", "b", "c")
    assert alone.nodes == now.nodes and alone.replication == now.replication
    why, waits = remains(now, "a", seen(LIVE, "a", "b", "c"))
    assert "--undo" in why and not waits
    two = {node: LIVE[node] for node in "ab"}
    pair = counted(step(step(start(2), two), two))
    after = step(pair, two, "b")
    assert after.nodes == ("a", "a") and after.replication is not None
    assert after.replication.counted == (("b",), ()), "there is no other node for what it holds"
    assert next_placement(after, seen(two, "b")) == (after, []) and remains(after, "b", seen(two, "b"))[0] == ""


def test_a_drained_node_that_is_lost_is_replaced_as_any_other_and_nobody_else_s_slots_go_to_one_that_is_drained() -> None:
    now = counted(step(start(3, wanted=2), LIVE))
    assert "a" not in step(now, without("a"), "a").nodes
    four = {**LIVE, "d": "d1"}
    held = counted(step(start(1, wanted=2), LIVE))
    assert held.replication is not None and held.replication.counted == (("b", "c"),)
    after = step(held, {node: four[node] for node in "bcd"}, "b")
    assert after.nodes == ("c",) and after.replication is not None and after.replication.counted == (("b",),)
    assert set(after.replication.joining[0]) == {"d"}


@pytest.mark.parametrize("seed", seeds(20))
def test_whatever_is_lost_returns_or_is_drained_a_slot_is_only_ever_given_to_one_that_was_counted(seed: int) -> None:
    orders = random.Random(seed)
    nodes = ("a", "b", "c", "d")
    disks = {node: f"{node}1" for node in nodes}
    drained: tuple[str, ...] = ()
    now = Placement(1, spreading.placed(nodes, 5), True, replication=replicas.first(spreading.placed(nodes, 5), 2, disks))
    for n in range(200):
        for node in nodes:
            if orders.random() < 0.05:
                disks[node] = f"{node}{n + 2}"
        live = {node: disk for node, disk in disks.items() if orders.random() < 0.8}
        if orders.random() < 0.1:
            drained = tuple(orders.sample(nodes, orders.randrange(3)))
        after = step(now, live, *drained)
        before, copies = now.replication, after.replication
        assert before is not None and copies is not None and after.version >= now.version
        able = [node for node in live if node not in drained and before.disks.get(node, live[node]) == live[node]]
        for place, (old, new) in enumerate(zip(now.nodes, after.nodes, strict=True)):
            if old != new:
                assert new in before.counted[place] and live[new] == before.disks[new] and copies.terms[place] > before.terms[place]
            if old != new and live.get(old) == before.disks[old]:
                assert old in drained and new not in drained
                assert len(copies.counted[place]) >= min(copies.wanted, len(able) - 1), "it is as safe as it was before"
            assert set(copies.counted[place]) <= set(before.counted[place]) and new not in copies.named(place)
            assert all(node in copies.disks for node in copies.named(place))
        assert Placement.parse(after.document(), keyed=True) == after
        for node in nodes:
            assert sorted(after.ordinal(place) for place in after.of(node)) == list(range(len(after.of(node))))
        now = counted(after, *orders.sample(range(5), 2)) if orders.random() < 0.5 else after


def test_more_replicas_are_named_and_of_fewer_those_on_the_fullest_nodes_are_given_up() -> None:
    now = counted(step(start(4), LIVE))
    more = counted(step(replicas.changed(now, 2, LIVE), LIVE))
    assert more.replication is not None and [len(held) for held in more.replication.counted] == [2] * 4
    fewer = step(replicas.changed(more, 1, LIVE), LIVE)
    assert fewer.replication is not None and [len(held) for held in fewer.replication.counted] == [1] * 4
    load = Counter(node for held in fewer.replication.counted for node in held)
    assert max(load.values()) - min(load.values()) <= 1
    joining = step(replicas.changed(now, 2, LIVE), LIVE)
    back = step(replicas.changed(joining, 1, LIVE), LIVE)
    assert back.replication is not None and back.replication.counted == now.replication.counted
    assert not any(back.replication.joining)


def test_without_replicas_a_slot_that_was_taken_over_stays_known_as_such_and_the_loss_of_its_node_is_noted() -> None:
    taken = counted(step(counted(step(start(), LIVE)), without("a")))
    none = replicas.changed(taken, 0, LIVE)
    copies = none.replication
    assert copies is not None and copies.terms[0] > 1 and not any(map(copies.named, range(3)))
    assert replicas.wanted(none.document()) == 0 and next_placement(none, seen(LIVE)) == (none, [])
    lost = step(none, without("b"))
    assert lost.nodes == none.nodes and lost.replication is not None and lost.replication.lost == ("b",)
    moving = replace(none, moving=PendingMove(none.version + 1, "b", 0, 1, (1,)))
    assert next_placement(moving, seen(without("b"))) == (moving, []), "the next version is that of the move"
    again = step(replicas.changed(none, 1, LIVE), LIVE)
    assert again.replication is not None and again.replication.terms == copies.terms and all(again.replication.joining)
    assert replicas.changed(replace(start(), replication=None), 1, LIVE).replication == start().replication


def test_what_moves_slots_by_hand_is_refused_while_there_are_replicas() -> None:
    with pytest.raises(Conflict, match="has replicas.*udo scale d --replicas 0"):
        start().require_no_replicas("d", "its key groups cannot be moved")
    replicas.changed(start(), 0, LIVE).require_no_replicas("d", "its key groups cannot be moved")
