"""RESTORE and STATE on a real instance and real servers: the state that a lane with a state store asks for, brings and takes away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from udo_runtime.state import groups
from udo_runtime.state.groups import Group
from udo_runtime.state.restoring import answer
from udo_runtime.state.session import Session

from tests.conftest import Servers
from tests.runtime.conftest import P, Process
from tests.support.attempt import GROUPS, Attempt, group_of
from tests.support.counters import COUNT, COUNTS, EVENTS, TIMERS, attempted, counter
from udo_protocol.errors import StateLost
from udo_protocol.queue.frame import ANSWER, ERROR, RESTORE, STALE, STATE, Frame, Header, Label
from udo_protocol.state import pieces
from udo_protocol.state.session_record import SessionRecord
from udo_protocol.state.stored import ROWS, Rows

pytestmark = pytest.mark.long

Start = Callable[..., Process]
Row = tuple[int, bytes, bytes | None]
ALL = GROUPS


class Storing(Attempt):
    """An attempt whose lane has a state store."""

    def _ask(self, kind: Any, batch: Any = None, **fields: Any) -> Frame:
        self.push(kind, batch, **fields)
        return self.frames()[-1]

    def lacking(self, groups: Sequence[int] = ALL) -> list[tuple[int, int]]:
        """The groups without current state, each with the epoch of the state that the instance has of it."""
        found = self._ask(RESTORE, groups=groups).header
        assert found.kind == ANSWER, found.failure.message
        return list(zip(found.groups, found.epochs, strict=True))

    def restore(self, values: Sequence[Row], complete: Sequence[int] = ALL, **fields: Any) -> Frame:
        rows = Rows()
        for n, key, value in values:
            rows.add(n, {key: value})
        return self._ask(RESTORE, rows.batch(), groups=complete, **fields)

    def state(self, groups: Sequence[int] = ALL, *, full: bool = False, offset: int = 0) -> Frame:
        return self._ask(STATE, groups=groups, full=full, offset=offset)

    def taken(self, groups: Sequence[int] = ALL, *, full: bool = False) -> list[Row]:
        """The rows of these groups that STATE answers, in as many requests as it takes."""
        left, offset, found = list(groups), 0, []
        while left:
            answer = self.state(left, full=full, offset=offset)
            assert answer.header.kind == ANSWER, answer.header.kind
            found += [(r["group"], r["key"], r["value"]) for r in answer.batch(ROWS).to_pylist()]
            left, offset = left[len(answer.header.groups) :], answer.header.offset
        return found


def values_of(found: Sequence[Row]) -> dict[bytes, bytes | None]:
    return {key: value for _, key, value in found}


def epoch(servers: Servers, number: int, keys: Sequence[str], attempt: int = 0, **more: Any) -> tuple[list[tuple[str, int]], Storing]:
    """Run an epoch of one partition up to its END."""
    made = attempted(Storing, servers, number, attempt or 10 * number + 1, **more)
    return made.run(keys), made


@pytest.mark.short
def test_what_an_epoch_changed_and_all_there_is_are_taken_after_end(start: Start, servers: Servers) -> None:
    counter(start, TIMERS, "op:Quiet", time_column="t")
    _, first = epoch(servers, 0, ["a", "x"])
    all_of_first = first.taken()
    assert {g for g, _, _ in all_of_first} == {group_of("a"), group_of("x")}
    assert first.taken(full=True) == all_of_first
    second = attempted(Storing, servers, 1, 11)
    assert second.run(["b"], 20) == []
    third = attempted(Storing, servers, 2, 21)
    assert third.run(["b"], 20) == [("a", 1)]  # a's timer; x has expired
    changed = values_of(third.taken())
    assert changed[b"\xa1a"] is None
    assert changed[b"\xa1x"] is None
    assert changed.keys() > {b"\xa1b", b"\x90"}
    assert values_of(third.taken(full=True)).keys() == {b"\xa1b", b"\x90"}
    assert third.state().header.highest_us == (1577836800 + 20) * 1_000_000


def test_a_large_state_is_taken_in_several_frames_also_when_the_instance_is_replaced_between_them(start: Start, servers: Servers) -> None:
    def large() -> Process:
        return start(COUNT, "op:Count", schemas=(EVENTS, COUNTS), keyed={"columns": ["k"]}, frame_bytes=3000)

    first = large()
    keys = [f"key-{i:03}" for i in range(400)]
    _, made = epoch(servers, 0, keys)
    begun = made.state(ALL, full=True)
    assert 0 < begun.header.offset < 400
    first.process.kill()
    first.process.wait()
    large()
    left, offset = list(ALL)[len(begun.header.groups) :], begun.header.offset
    rest: list[Row] = []
    while left:
        answer = made.state(left, full=True, offset=offset)
        rest += [(r["group"], r["key"], r["value"]) for r in answer.batch(ROWS).to_pylist()]
        left, offset = left[len(answer.header.groups) :], answer.header.offset
    found = [(r["group"], r["key"], r["value"]) for r in begun.batch(ROWS).to_pylist()] + rest
    assert len(found) == 400
    assert {key[1:].decode() for _, key, _ in found} == set(keys)


def test_state_of_an_attempt_that_a_newer_one_has_followed_is_stale(start: Start, servers: Servers) -> None:
    counter(start)
    _, old = epoch(servers, 0, ["a"], 1)
    newer = attempted(Storing, servers, 0, 2)
    assert newer.run(["a"]) == [("a", 1)]
    assert old.state().header.kind == STALE
    unfinished = attempted(Storing, servers, 1, 3)
    unfinished.send(["a"])
    unfinished.frames()
    assert newer.state().header.kind == STALE
    assert unfinished.state().header.kind == STALE  # it has not sent END


@pytest.mark.short
def test_what_was_taken_can_be_brought_to_an_instance_that_has_nothing(start: Start, servers: Servers) -> None:
    """Another session takes the part of another node."""
    process = counter(start, TIMERS, "op:Quiet", time_column="t")
    _, first = epoch(servers, 0, ["a", "b"])
    stored, highest = first.taken(full=True), first.state().header.highest_us
    there = attempted(Storing, servers, 1, 1, session="there")
    assert there.lacking() == [(n, -1) for n in ALL]
    assert there.restore(stored, highest_us=highest).header.kind == ANSWER
    assert there.lacking() == []
    assert there.run(["c"], 11) == []
    process.process.kill()  # restored state is durable with END
    process.process.wait()
    counter(start, TIMERS, "op:Quiet", time_column="t")
    last = attempted(Storing, servers, 2, 2, session="there")
    assert last.lacking() == []
    assert sorted(last.run(["c"], 30)) == [("a", 1), ("b", 1)]


def test_a_group_in_parts_counts_when_it_is_whole_also_over_a_crash_and_a_newer_attempt(start: Start, servers: Servers) -> None:
    """A part from an attempt that died must not be completed by the rest from another attempt."""
    process = counter(start)
    keys = ["a", "e", "i"]  # all in one group
    assert len({group_of(k) for k in keys}) == 1
    _, first = epoch(servers, 0, keys)
    stored = first.taken(full=True)
    dead = attempted(Storing, servers, 1, 1, session="there")
    dead.restore([(stored[0][0], b"\xa1z", stored[0][2])], [])  # a key that is unknown to the newer attempt
    half = attempted(Storing, servers, 1, 2, session="there")
    half.restore(stored[:1], [])
    assert len(half.lacking()) == len(GROUPS)
    assert dead.restore(stored[1:]).header.kind == STALE
    attempted(Storing, servers, 0, 1, session="other").run(["q"])  # its checkpoint covers the half-restored group
    process.process.kill()
    process.process.wait()
    counter(start)
    assert half.restore(stored[1:]).header.kind == ANSWER
    assert half.lacking() == []
    assert half.run(["a", "e", "i", "z"]) == [("a", 2), ("e", 2), ("i", 2), ("z", 1)]


def test_lanes_restore_at_the_same_time_and_one_that_brings_nothing_is_an_error_not_empty(start: Start, servers: Servers) -> None:
    counter(start)
    _, first = epoch(servers, 0, ["a", "b", "c", "d"])
    stored = first.taken(full=True)
    one, two, three = (attempted(Storing, servers, 1, 1 + p, p, session="there") for p in range(3))
    mine = {p: [n for n in ALL if n % 3 == p] for p in range(3)}
    for p, lane in enumerate((one, two)):
        assert [n for n, _ in lane.lacking(mine[p])] == mine[p]
    for p, lane in enumerate((one, two)):
        lane.restore([r for r in stored if r[0] in mine[p]], mine[p])
    for p, lane in enumerate((one, two)):
        own = [k for k in "abcd" if group_of(k) in mine[p]]
        lane.send(own)
        lane.end(mine[p])
        assert lane.answers() == [(k, 2) for k in own]
    three.send([k for k in "abcd" if group_of(k) in mine[2]])
    failed = three.frames()[-1].header
    assert (failed.kind, failed.failure.code) == (ERROR, "state_lost")
    assert "restored from a store, and key group" in failed.failure.message


def test_older_state_gives_way_to_the_stores_as_a_whole(start: Start, servers: Servers) -> None:
    """The query has gone on elsewhere and comes back."""
    counter(start, TIMERS, "op:Quiet", time_column="t")
    epoch(servers, 0, ["a", "b"])
    elsewhere = attempted(Storing, servers, 7, 1, session="elsewhere", start_empty=True)
    elsewhere.run(["b", "b"], 100)
    stored, highest = elsewhere.taken(full=True), elsewhere.state().header.highest_us
    back = attempted(Storing, servers, 8, 2, run=2)
    assert back.lacking() == [(n, -1) for n in ALL]
    back.restore(stored, highest_us=highest)
    assert back.run(["c"], 100) == []
    assert attempted(Storing, servers, 9, 3, run=2).run(["c"], 120) == []
    assert attempted(Storing, servers, 10, 4, run=2).run(["c"], 130) == [("b", 2), ("c", 3)]  # no answer for a: the store does not have it
    assert attempted(Storing, servers, 1, 9)._ask(RESTORE, groups=ALL).header.kind == STALE  # an attempt of the former run


def test_a_restored_epoch_cannot_be_replayed_without_its_own_past_and_can_with_it(start: Start, servers: Servers) -> None:
    counter(start)
    past: dict[int, list[Row]] = {}
    for e in range(2):
        _, made = epoch(servers, e, ["a"])
        past[e] = made.taken(full=True)
    attempted(Storing, servers, 2, 1, session="there").restore(past[1])
    again = attempted(Storing, servers, 1, 1, run=2, session="there")
    again.send(["a"])
    assert "its state before epoch 1 is not here" in again.frames()[-1].header.failure.message
    again = attempted(Storing, servers, 1, 2, run=3, session="there")
    assert again.lacking() == [(n, -1) for n in ALL]
    again.restore(past[0])
    assert again.run(["a"]) == [("a", 2)]
    assert attempted(Storing, servers, 2, 3, run=3, session="there").run(["a"]) == [("a", 3)]


def test_a_group_that_a_limit_kept_out_of_an_epoch_says_of_which_one_it_is(start: Start, servers: Servers) -> None:
    counter(start)
    epoch(servers, 0, ["a", "b"])
    limited = attempted(Storing, servers, 1, 2)
    limited.send(["a"])
    limited.end([group_of("a")])
    limited.frames()
    after = attempted(Storing, servers, 2, 3)
    assert after.lacking() == [(n, 0) for n in ALL if n != group_of("a")]
    assert after.run(["a", "b"]) == [("a", 3), ("b", 2)]


def test_state_of_a_former_version_is_migrated_and_of_another_one_refused(start: Start, servers: Servers) -> None:
    counter(start)
    _, first = epoch(servers, 0, ["a"])
    stored = first.taken(full=True)
    source = COUNT + "    def migrate(self, old, from_version): return {'n': old['n'] + 100 * from_version}\n"
    counter(start, source, state_version=3, migrates_from=[0, 2])
    failed = attempted(Storing, servers, 1, 1, session="other").restore(stored, state_version=1).header
    assert (failed.kind, failed.failure.code) == (ERROR, "state_lost")
    assert "the operator reads 0, 2, 3" in failed.failure.message
    there = attempted(Storing, servers, 1, 1, session="there")
    there.restore(stored, state_version=2)
    assert there.run(["a"]) == [("a", 202)]
    assert there.state().header.state_version == 3


def test_restored_state_lies_on_the_state_server_after_the_next_end(start: Start, servers: Servers) -> None:
    counter(start)
    _, first = epoch(servers, 0, ["a"])
    there = attempted(Storing, servers, 1, 1, session="there")
    there.restore(first.taken(full=True))
    there.run([])
    there_now = dict(pieces.read(servers.state(), P, "there"))[group_of("a")]
    assert there_now.base is not None or there_now.deltas


def test_imported_state_serves_where_a_store_has_none() -> None:
    imported = {n: Group.imported(4, True, {b"\xa1a": b"\x81\xa1n\x03"}, {}) for n in ALL}
    session = Session("q", imported)
    session.last_ended = 4
    reply = Header()
    label = Label(run=1, epoch=5, attempt=1)
    assert answer(session, Frame(Header(kind=RESTORE, label=label, groups=ALL)), reply, 1 << 20) is None
    assert list(zip(reply.groups, reply.epochs, strict=True)) == [(n, 4) for n in ALL]
    assert reply.behind


def test_of_several_slots_each_says_whether_it_knows_the_epoch_before_of_its_own_groups(start: Start, servers: Servers) -> None:
    """A slot's own groups are `full`; the answers of all slots together say whether the event times are complete."""
    counter(start, TIMERS, "op:Quiet", time_column="t")
    mine, others = list(ALL[:2]), list(ALL[2:])
    first = attempted(Storing, servers, 0, 1, run=3)
    first.send([k for k in "abcdefgh" if group_of(k) in mine])
    first.end(mine)
    first.frames()

    lane = attempted(Storing, servers, 1, 2, run=3)

    def told(groups: Sequence[int], *, full: bool) -> tuple[list[int], bool, int]:
        header = lane._ask(RESTORE, groups=groups, full=full).header
        return list(header.groups), header.behind, header.run_before

    assert told(mine, full=True) == ([], False, 3)
    assert told(mine, full=False) == ([], True, 0), "with one slot all groups of the session are its own"
    assert told(ALL, full=True) == (others, True, 0)


def test_groups_restored_from_a_store_stay_lost_or_current_in_the_slot_that_they_move_to() -> None:
    """Groups that have not been restored are lost, not empty, and state that was restored for an epoch gives way to no earlier one."""
    source, target = Session("q"), Session("q")
    source.renew(SessionRecord(4, 1, restoring=[[7, 1, 5, 2]]))
    target.renew(SessionRecord(4, 1))
    whole = source.groups[3] = source.group(3)
    whole.restored(4)
    source.groups[7] = source.group(7)
    moved = {n: source.groups[n] for n in (3, 7)}
    source.hand_over(moved)
    assert source.restoring == {}

    target.adopt(SessionRecord(4, 1, restoring=[[7, 1, 5, 2]]), moved)

    assert target.restoring == {}
    assert target.overtaken(groups.Label(1, 4, 9)) and not target.overtaken(groups.Label(1, 5, 0))
    assert target.touch([3], groups.Label(1, 5, 3), 0)
    with pytest.raises(StateLost, match="restored from a store, and key group 7 of it was not"):
        target.touch([7], groups.Label(1, 5, 3), 0)
