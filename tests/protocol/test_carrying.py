"""State that a slot has handed over is copied to another state server: whole or not at all, and once, however often it is started."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.conftest import Servers
from tests.support.moved_groups import A, B, GroupsOwner, groups
from udo_protocol.errors import ProtocolError
from udo_protocol.queue.connection import Connection
from udo_protocol.state import carrying, moving, pieces, savepoints


def handed_over(state: Connection) -> list[carrying.Carried]:
    """Hand over two groups of session q, with what belongs to them; group 0 stays. A savepoint names one of the pieces."""
    a = GroupsOwner(state, A)
    a.write("q", 0, "1.0", b"x")
    a.write("q", 1, "1.1", b"yy", b"z")
    a.write("q", 2, "1.2")
    a.write("q", -1, "1.3", b"t")
    for name, group in (("dead", 1), ("pending", 2), ("replay", 1), ("dead", 0)):
        state.call("HSET", A.named(name), f"k|q|x|3|{group}|1|2|3|4", name)
    savepoints.make(state, A, "export")
    state.call(*moving.handing_over(A, 2, [1, 2]))
    return list(carrying.handed_over(state, A, 2))


def test_all_that_was_handed_over_becomes_the_other_slots_and_is_gone_where_it_was(servers: Servers) -> None:
    state = servers.state()
    exported = handed_over(state)
    for _ in range(2):
        carrying.take(state, B, 2, carrying.copied(state, B, 2, "copy", carrying.handed_over(state, A, 2)))
        assert carrying.taken(state, B) == 2 and not moving.is_adopted(state, B, 2)
    assert moving.is_handed_over(state, A, 2), "until it is adopted"
    assert groups(state, B, "q", moving.adopted(2)) == {1: (b"1.1", [b"yy", b"z"]), 2: (b"1.2", []), -1: (b"1.3", [b"t"])}
    state.call(*moving.taking_in(B, 2))
    assert groups(state, B, "q") == {1: (b"1.1", [b"yy", b"z"]), 2: (b"1.2", []), -1: (b"1.3", [b"t"])}
    assert {name: state.call("HLEN", B.named(name)) for name in ("dead", "pending", "replay")} == {"dead": 1, "pending": 1, "replay": 1}

    before = groups(state, A, "q", "export")
    for _ in range(2):
        carrying.forget(state, A, 2)
        assert not moving.is_handed_over(state, A, 2)
        assert groups(state, A, "q", "export") == before, "a savepoint keeps its pieces"
    savepoints.drop(state, A, "export")
    left = {bytes(key).decode().removeprefix(f"{A}g:") for key in state.call("KEYS", f"{A}g:*")}
    assert left == {"1.0", "1.3"} and not state.call("KEYS", f"{A}savepoint*")
    carrying.take(state, B, 2, carrying.copied(state, B, 2, "late", exported))
    assert groups(state, B, "q") == {1: (b"1.1", [b"yy", b"z"]), 2: (b"1.2", []), -1: (b"1.3", [b"t"])}, "a late copy changes nothing"
    assert moving.is_adopted(state, B, 2) and not state.call("KEYS", f"{B}taking*")


@pytest.mark.parametrize("lost", ["g:1.1", "d:1.1", "d:1.3@2"])
def test_a_copy_that_lacks_a_piece_brings_nothing_and_the_next_one_brings_all(servers: Servers, lost: str) -> None:
    state = servers.state()
    exported = handed_over(state)
    assert lost in [part.key for part in exported]
    with pytest.raises(ProtocolError, match="has come in part"):
        carrying.take(state, B, 2, carrying.copied(state, B, 2, "broken", [part for part in exported if part.key != lost]))
    assert carrying.taken(state, B) == 0 and moving.is_adopted(state, B, 2)
    carrying.take(state, B, 2, carrying.copied(state, B, 2, "again", exported))
    state.call(*moving.taking_in(B, 2))
    assert groups(state, B, "q").keys() == {1, 2, -1}


@pytest.mark.parametrize("expired", ["*", "sessions", "m:q", "dead"])
def test_a_copy_that_has_expired_in_part_or_as_a_whole_brings_nothing_and_the_next_one_brings_all(servers: Servers, expired: str) -> None:
    state = servers.state()
    exported = handed_over(state)
    copy = carrying.copied(state, B, 2, "slow", exported)
    assert state.call("DEL", *state.call("KEYS", f"{B}taking:slow:{expired}")) > 0
    with pytest.raises(ProtocolError, match="has come in part"):
        carrying.take(state, B, 2, copy)
    assert carrying.taken(state, B) == 0 and moving.is_adopted(state, B, 2)
    carrying.take(state, B, 2, carrying.copied(state, B, 2, "again", exported))
    state.call(*moving.taking_in(B, 2))
    assert groups(state, B, "q").keys() == {1, 2, -1} and state.call("HLEN", B.dead) == 1


def test_a_copy_that_was_cut_off_is_not_seen_and_ends_by_itself(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "_TOGETHER", 1)  # so that something was written by then
    state = servers.state()
    exported = handed_over(state)

    def cut_off() -> object:
        yield from islice(exported, 3)
        raise ConnectionError("the other node is gone")

    with pytest.raises(ConnectionError):
        carrying.take(state, B, 2, carrying.copied(state, B, 2, "first", cut_off()))  # type: ignore[arg-type]
    staged = state.call("KEYS", f"{B}taking:first:*")
    assert len(staged) == 1 + 3 and all(state.call("PTTL", key) > 0 for key in staged)
    carrying.take(state, B, 2, carrying.copied(state, B, 2, "second", exported))
    assert all(state.call("PTTL", key) == -1 for key in state.call("KEYS", f"{B}[gd]:*") + state.call("KEYS", f"{B}savepoint*"))


def test_a_slot_without_a_session_hands_over_nothing_and_is_adopted_all_the_same(servers: Servers) -> None:
    state = servers.state()
    state.call(*moving.handing_over(A, 5, [1]))
    assert list(carrying.handed_over(state, A, 5)) == []
    carrying.take(state, B, 5, carrying.copied(state, B, 5, "copy", []))
    assert not moving.is_adopted(state, B, 5)
    state.call(*moving.taking_in(B, 5))
    assert moving.is_adopted(state, B, 5) and not pieces.records(state, B)


WHOLE = {1: (b"1.1", [b"yy", b"z", b"later"]), 2: (b"2.2", [b"c"]), -1: (b"1.3", [b"t"])}


def ahead_of_move(state: Connection, copy: str) -> tuple[carrying.SentAhead, list[carrying.Carried]]:
    """Bring two groups ahead in two looks, change them, and hand them over. Returns what was sent ahead, and what is left to be carried."""
    a, sent = GroupsOwner(state, A), carrying.SentAhead(copy)
    a.write("q", 0, "1.0", b"x")
    a.write("q", 1, "1.1", b"yy")
    a.write("q", 2, "1.2", b"a", b"b")
    a.write("q", 3, "1.4")
    a.write("gone", 1, "1.5", b"g")
    a.write("q", -1, "1.3", b"t")
    first = list(carrying.ahead(state, A, [1, 2], sent))
    assert {part.key for part in first} >= {"g:1.1", "d:1.1", "g:1.2", "d:1.2", "g:1.5"} and not {"g:1.0", "g:1.4"} & {p.key for p in first}
    carrying.bring_ahead(state, B, copy, first)
    a.append("q", 1, "1.1", 1, b"z")
    carrying.bring_ahead(state, B, copy, second := list(carrying.ahead(state, A, [1, 2], sent)))
    written = [(p.key, p.value, p.field) for p in second if p.key != "ahead:sessions"]
    assert [w[:2] for w in written if w[2] is None] == [("d:1.1", b"z")] and [w[2] for w in written] == [None, "1"], "only what is new"
    assert not [p for p in carrying.ahead(state, A, [1, 2], sent) if p.key != "ahead:sessions"]
    assert groups(state, B.taking(copy), "q") == {1: (b"1.1", [b"yy", b"z"]), 2: (b"1.2", [b"a", b"b"])}
    assert not groups(state, B, "q"), "the slot has none of it yet"

    a.append("q", 1, "1.1", 2, b"later")
    a.write("q", 2, "2.2", b"c")  # in a new piece
    state.call("DEL", A.manifest("gone"))
    state.call("HDEL", A.sessions, "gone")
    state.call("HSET", A.dead, "k|q|x|3|1|1|2|3|4", "letter")
    state.call(*moving.handing_over(A, 2, [1, 2]))
    return sent, list(carrying.handed_over(state, A, 2, sent))


def test_what_was_copied_ahead_is_completed_by_what_has_changed_since(servers: Servers) -> None:
    state = servers.state()
    sent, rest = ahead_of_move(state, "c1")
    assert [(p.key, p.value) for p in rest if p.key.startswith("d:1.1")] == [("d:1.1", b"later")] and "g:1.1" not in [p.key for p in rest]
    carrying.take(state, B, 2, carrying.copied(state, B, 2, "c1", rest))
    assert groups(state, B, "q", moving.adopted(2)) == WHOLE and moving.copy_taken(state, B, 2) == "c1"
    assert not pieces.records(state, B, moving.adopted(2)).keys() - {"q"}, "a session that ended meanwhile is not brought"
    assert not state.call("KEYS", f"{B}taking*"), "nothing is left of the copy"
    assert all(state.call("PTTL", key) == -1 for key in state.call("KEYS", f"{B}*"))
    state.call(*moving.taking_in(B, 2))
    assert groups(state, B, "q") == WHOLE and state.call("HLEN", B.dead) == 1


def test_a_copy_made_ahead_that_does_not_come_to_an_end_is_not_used_again_and_the_next_one_brings_all(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "_TOGETHER", 1)  # so that something was written by then
    state = servers.state()
    _, rest = ahead_of_move(state, "c1")

    def cut_off() -> Iterator[carrying.Carried]:
        yield from [part for part in rest if part.key == "d:1.1"]
        raise ConnectionError("the other node is gone")

    with pytest.raises(ConnectionError):
        carrying.copied(state, B, 2, "c1", cut_off())
    with pytest.raises(ProtocolError, match="copy c1 of what goes to .* has been completed before, or in part"):
        carrying.copied(state, B, 2, "c1", rest)  # it would append the change once more
    carrying.take(state, B, 2, carrying.copied(state, B, 2, "c2", carrying.handed_over(state, A, 2)))
    assert groups(state, B, "q", moving.adopted(2)) == WHOLE and moving.copy_taken(state, B, 2) == "c2"
    left = state.call("KEYS", f"{B}taking:*")
    assert left and all(state.call("PTTL", key) > 0 for key in left), "what is left of the first one ends by itself"


@pytest.mark.parametrize("lost", ["g:1.1", "d:1.1"])
def test_a_copy_made_ahead_that_has_lost_a_part_brings_nothing(servers: Servers, lost: str) -> None:
    state = servers.state()
    _, rest = ahead_of_move(state, "c1")
    state.call("DEL", f"{B}taking:c1:{lost}")
    with pytest.raises(ProtocolError, match="has come in part"):
        carrying.take(state, B, 2, carrying.copied(state, B, 2, "c1", rest))
    assert carrying.taken(state, B) == 0 and not groups(state, B, "q", moving.adopted(2))
    carrying.take(state, B, 2, carrying.copied(state, B, 2, "c2", carrying.handed_over(state, A, 2)))
    assert groups(state, B, "q", moving.adopted(2)) == WHOLE


def test_a_piece_that_is_replaced_while_it_is_copied_is_left_to_the_next_look(servers: Servers) -> None:
    state, sent = servers.state(), carrying.SentAhead("c1")
    a = GroupsOwner(state, A)
    a.write("q", 1, "1.1", b"x")
    looks = carrying.ahead(state, A, [1], sent)
    assert next(looks).key == "ahead:sessions"  # the manifest is read behind this
    manifest = state.call("HGET", A.manifest("q"), 1)
    a.write("q", 1, "1.2")
    state.call("HSET", A.manifest("q"), 1, manifest)  # as if it had been read before
    assert list(looks) == [] and not sent.changes
    a.write("q", 1, "1.3", b"y")
    assert [p.key for p in carrying.ahead(state, A, [1], sent)] == ["ahead:sessions", "g:1.3", "d:1.3", "ahead:m:q"]


@pytest.mark.parametrize("seed", range(3))
def test_of_many_groups_that_change_between_the_looks_each_is_brought_whole(servers: Servers, seed: int) -> None:
    state, rng, sent, numbers = servers.state(), random.Random(seed), carrying.SentAhead("c1"), range(100)
    a, expected = GroupsOwner(state, A), dict[int, tuple[bytes, list[bytes]]]()

    def write(group: int, look: int) -> None:
        piece, size = f"{look}.{group}", rng.choice((1, 100, 50_000))
        changes = [rng.randbytes(size) for _ in range(rng.randrange(3))]
        a.write("q", group, piece, *changes)
        expected[group] = piece.encode(), changes

    def append(group: int) -> None:
        piece, changes = expected[group]
        a.append("q", group, piece.decode(), len(changes), more := rng.randbytes(rng.choice((1, 100))))
        changes.append(more)

    for group in numbers:
        write(group, 1)
    for look in (2, 3):
        carrying.bring_ahead(state, B, "c1", carrying.ahead(state, A, numbers, sent))
        for group in rng.sample(numbers, 40):
            append(group)
        for group in rng.sample(numbers, 10):
            write(group, look)
    state.call(*moving.handing_over(A, 2, list(numbers)))
    carrying.take(state, B, 2, carrying.copied(state, B, 2, "c1", carrying.handed_over(state, A, 2, sent)))
    assert groups(state, B, "q", moving.adopted(2)) == expected


def test_items_that_do_not_fit_their_sizes_are_refused(servers: Servers) -> None:
    with pytest.raises(ProtocolError, match="d:1: expected items of 5 bytes together, got 4 bytes"):
        carrying.bring_ahead(servers.state(), B, "c1", [carrying.Carried("d:1", b"abcd", [2, 3])])
