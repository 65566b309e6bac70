"""The steps of a move of key groups on real servers: each is atomic, and has no effect when it is repeated."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Servers, bound, wait_until
from tests.support.moved_groups import A, B, GroupsOwner, groups
from udo_protocol import ranges
from udo_protocol.errors import Conflict, ProtocolError, UsageError
from udo_protocol.queue import lane_end, route, slot_reader
from udo_protocol.queue.frame import ADOPT, DATA, HANDOVER, Header, decode, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.lane_end import Push
from udo_protocol.queue.route import Route
from udo_protocol.queue.slot import promote
from udo_protocol.state import group_map, moving, pieces, savepoints
from udo_protocol.state.group_map import SlotGroups
from udo_protocol.state.pieces import PiecePlace

MAP = SlotGroups.even([0, 1000], 4)
NEXT = MAP.moved([1], 0, 1000)


def keys_of(number: int) -> SlotKeys:
    return SlotKeys("t", number)


def test_what_comes_by_the_older_map_is_refused_from_the_cut_on_and_told_the_newer_one(servers: Servers) -> None:
    queue = servers.queue()
    promote(servers.state(), queue, A, 1)
    lane = lane_end.LaneEnd(servers.queue(), A, "l")
    lane.open(b"")
    push = lambda n: lane.push(n, n - 1, encode(Header(lane="l", number=n, kind=DATA)))  # noqa: E731
    assert push(1).status is Push.ACCEPTED
    assert moving.cut(queue, A, NEXT.route(0, keys_of), [1]) == (2, 0)
    assert moving.cut(queue, A, NEXT.route(0, keys_of), [1]) == (2, 0), "the same again changes nothing"
    assert route.told(queue, A)[1] == 2
    refused = push(2)
    assert refused.status is Push.MOVED
    told = lane.newer(refused, 0)
    assert told == Route(2, (A.prefix, B.prefix), 2, (0, 1, 1, 1), (2, 2)) and lane.newer(refused, 2) is None
    reader = slot_reader.SlotReader(servers.queue(), A, "i", 1)
    _, handover = map(decode, frames := reader.read(1).frames)
    assert frames[1] == route.told(queue, A)[0], "by which an instance knows that it is the node manager's"
    assert (handover.header.kind, handover.header.number, list(handover.header.groups)) == (HANDOVER, 2, [1])
    assert reader.emit(1, [("l", [b"x"]), (moving.LANE, [b"y"])], trim=False) is slot_reader.Emit.EMITTED
    assert moving.cut(queue, A, NEXT.route(0, keys_of), [1]) == (2, 2)
    assert moving.cut(queue, A, NEXT.route(0, keys_of), [1], again=True) == (3, 2), "its owner died of it: once more"
    assert route.told(queue, A)[1] == 3
    assert moving.cut(queue, B, NEXT.route(1000, keys_of), None) == (1, 0)
    promote(servers.state(), queue, B, 1)
    [adopt] = map(decode, slot_reader.SlotReader(servers.queue(), B, "i", 1).read(1).frames)
    assert (adopt.header.kind, adopt.header.number) == (ADOPT, 2)


def test_a_route_never_goes_back(servers: Servers) -> None:
    queue = servers.queue()
    for version, accepted in ((3, 3), (2, 3), (4, 4)):
        route.change(queue, A, Route(version, (A.prefix,)))
        assert route.version(queue, A) == accepted
    with pytest.raises(ProtocolError, match="expected a route as JSON"):
        Route.decode(json.dumps({"version": 1, "slots": [A.prefix], "groups": [1], "versions": [0]}).encode())


def test_groups_leave_the_one_state_and_become_part_of_the_other_each_in_one_step(servers: Servers) -> None:
    state = servers.state()
    a, b = GroupsOwner(state, A), GroupsOwner(state, B)
    a.write("q", 0, "1.0", b"x")
    a.write("q", 1, "1.1", b"yy", b"z")
    a.write("q", -1, "1.2", b"t")
    a.write("only here", 1, "1.3")
    a.write("only here", -1, "1.4", b"u")
    b.write("q", 2, "1.1")  # a piece of the same name, in another slot
    b.write("q", -1, "1.5", b"own")
    for name, group in (("dead", 1), ("pending", 1), ("replay", 1), ("dead", 0)):
        state.call("HSET", A.named(name), f"k|q|with|bars|3|{group}|1|2|3|4", name)
    moving.note(state, A, moving.Intent((1,), 1000, "direct"))
    assert moving.noted(state, A) == moving.Intent((1,), 1000, "direct")
    savepoints.make(state, A, "export")
    before = groups(state, A, "q", "export")

    assert not moving.is_handed_over(state, A, 2)
    state.transaction([("SET", "beside", 1), moving.handing_over(A, 2, [1])])
    assert moving.is_handed_over(state, A, 2) and group_map.load(state, A) is None
    assert groups(state, A, "q") == {-1: (b"1.2", [b"t"]), 0: (b"1.0", [b"x"])}
    a.write("q", -1, "1.6", b"later")  # the source goes on, and removes the former piece
    for _ in range(2):
        moving.deliver(state, A, B, A, NEXT)
        assert group_map.load(state, A) == NEXT and not moving.is_adopted(state, B, 2) and not moving.is_handed_over(state, A, 2)
    assert groups(state, B, "q", moving.adopted(2)) == {1: (b"1.1", [b"yy", b"z"]), -1: (b"1.2", [b"t"])}
    assert groups(state, B, "q").keys() == {-1, 2}
    for _ in range(2):
        state.call(*moving.taking_in(B, 2))
        assert moving.is_adopted(state, B, 2)
        assert groups(state, B, "q") == {1: (b"1.1", [b"yy", b"z"]), 2: (b"1.1", []), -1: (b"1.5", [b"own"])}
        assert groups(state, B, "only here") == {1: (b"1.3", []), -1: (b"1.4", [b"u"])}
    of = {name: json.loads(text)["of"] for name, text in pieces.records(state, B).items()}
    assert of == {"q": B.prefix, "only here": A.prefix}, "what the slot knew of a session itself stays"
    assert {name: state.call("HLEN", A.named(name)) for name in ("dead", "pending", "replay")} == {"dead": 1, "pending": 0, "replay": 0}
    assert {name: state.call("HLEN", B.named(name)) for name in ("dead", "pending", "replay")} == {"dead": 1, "pending": 1, "replay": 1}

    assert groups(state, A, "q", "export") == before, "a savepoint's pieces were copied"
    savepoints.drop(state, A, "export")
    moving.note(state, A, None)
    assert moving.noted(state, A) is None
    left = sorted(bytes(key).decode() for key in state.call("KEYS", f"{A}[gd]:*"))
    assert left == [
        f"{A}{kind}:{piece}" for kind, piece in (("d", "1.0"), ("d", "1.4"), ("d", "1.6"), ("g", "1.0"), ("g", "1.4"), ("g", "1.6"))
    ]
    assert not state.call("KEYS", f"{A}savepoint*") and not state.call("KEYS", f"{B}savepoint*")
    named = {p for s in ("q", "only here") for p, _ in (pieces.parsed(e, "m") for e in state.call("HVALS", f"{B}m:{s}"))}
    assert {bytes(key).decode().removeprefix(f"{B}g:") for key in state.call("KEYS", f"{B}g:*")} == {p.piece for p in named}


@pytest.mark.parametrize("waiting", [True, False], ids=["before the hand-over", "after it"])
def test_who_waits_for_a_hand_over_delivers_as_soon_as_it_is_there(servers: Servers, waiting: bool) -> None:
    state, source = servers.state(), servers.state()
    GroupsOwner(source, A).write("q", 1, "1.1", b"yy")
    assert not moving.deliver(state, A, B, A, NEXT, wait_ms=1), "nothing is handed over"

    def blocked() -> bool:
        return b"blocked_clients:1" in bytes(source.call("INFO", "clients"))

    with ThreadPoolExecutor(1) as beside:
        if waiting:
            delivered = beside.submit(moving.deliver, state, A, B, A, NEXT, wait_ms=60_000)
            wait_until(blocked, 20, "the delivery to wait")
        source.transaction([("SET", "beside", 1), moving.handing_over(A, 2, [1])])
        if not waiting:
            delivered = beside.submit(moving.deliver, state, A, B, A, NEXT, wait_ms=60_000)
        assert delivered.result(bound(30))
    assert group_map.load(source, A) == NEXT and groups(source, B, "q", moving.adopted(2)) == {1: (b"1.1", [b"yy"])}
    assert not source.call("KEYS", f"{A}savepoint*")
    assert not moving.deliver(state, A, B, A, NEXT), "it has been delivered"


def test_a_savepoint_that_ends_while_groups_are_on_their_way_takes_none_of_their_state_along(servers: Servers) -> None:
    state = servers.state()
    GroupsOwner(state, A).write("q", 1, "1.1", b"yy", b"z")
    savepoints.make(state, A, "export")
    state.call(*moving.handing_over(A, 2, [1]))
    savepoints.drop(state, A, "export")
    moving.deliver(state, A, B, A, NEXT)
    state.call(*moving.taking_in(B, 2))
    assert groups(state, B, "q") == {1: (b"1.1", [b"yy", b"z"])}
    assert not state.call("KEYS", f"{A}[gd]:*") and not state.call("KEYS", f"{A}savepoint*")


@pytest.mark.parametrize("anew", [False, True], ids=["changes", "a new piece"])
def test_what_a_slot_has_made_of_adopted_groups_before_its_checkpoint_counts(servers: Servers, anew: bool) -> None:
    state = servers.state()
    GroupsOwner(state, A).write("q", 1, "1.1", b"yy")
    state.call(*moving.handing_over(A, 2, [1]))
    moving.deliver(state, A, B, A, NEXT)
    if anew:
        commands = pieces.writing(B, "q", 1, b"meta", PiecePlace("7.1", 0, 3), b"7.1", [])
    else:
        commands = pieces.writing(B, "q", 1, b"meta", PiecePlace("v2.1.1", 2, 3, 3), None, [b"z"])
    state.transaction([("HSET", f"{B}sessions", "q", "{}"), *commands, moving.taking_in(B, 2)])
    assert groups(state, B, "q") == ({1: (b"7.1", [])} if anew else {1: (b"1.1", [b"yy", b"z"])})
    assert len(state.call("KEYS", f"{B}[gd]:*")) == (1 if anew else 2) and moving.is_adopted(state, B, 2)


@given(st.integers(1, 12), st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(12, 200))
def test_shares_are_even_and_move_as_few_groups_as_that_takes(first: int, counts: list[int], key_groups: int) -> None:
    now = SlotGroups.even(range(first), key_groups)
    for count in counts:
        slots = range(count)
        given_ = group_map.shares(now, slots)
        sizes = {n: len(now.of(n)) for n in slots}
        for to, numbers in given_.items():
            assert numbers, "nothing is asked for where nothing moves"
            for source in {now.groups[g] for g in numbers}:
                now = now.moved([g for g in numbers if now.groups[g] == source], source, to)
        after = [len(now.of(n)) for n in slots]
        assert sum(after) == key_groups and max(after) - min(after) <= 1
        moved = sum(map(len, given_.values()))
        assert moved == sum(max(have - want, 0) for have, want in zip(sorted(sizes.values()), sorted(after), strict=True)) + (
            key_groups - sum(sizes.values())
        )
        for slot in [n for n in now.slots if n not in slots]:
            now = now.without(slot)
        assert now.slots == list(slots)


def test_a_map_keeps_its_slots_in_order_and_does_without_one_that_is_empty() -> None:
    now = SlotGroups.even([0, 1000, 1001], 6).moved([0], 0, 1002)
    assert (now.version, now.slots, now.places()) == (2, [0, 1000, 1001, 1002], [3, 0, 1, 1, 2, 2])
    with pytest.raises(Conflict, match="slot 1002 still has 1 key groups"):
        now.without(1002)
    back = now.moved([0], 1002, 0).without(1002)
    assert back.routes == {0: 3, 1000: 0, 1001: 0} and back.version == 4


@pytest.mark.parametrize(("text", "numbers"), [("0-3, 7", [0, 1, 2, 3, 7]), ("5", [5]), ("", []), ("9,8 7", [7, 8, 9])])
def test_groups_are_written_as_numbers_and_ranges(text: str, numbers: list[int]) -> None:
    assert ranges.parsed(text, 10) == numbers == ranges.parsed(ranges.shown(numbers), 10)


@pytest.mark.parametrize("text", ["3-1", "10", "a", "1-", "-1", "1--2", "0-10"])
def test_what_is_no_set_of_groups_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="expected numbers below 10 or ranges of them, such as 0-15,40, got"):
        ranges.parsed(text, 10)
