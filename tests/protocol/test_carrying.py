"""State that a slot has handed over is copied to another state server: whole or not at all, and once, however often it is started."""

from __future__ import annotations

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
    assert lost in dict(exported)
    with pytest.raises(ProtocolError, match="has come in part"):
        carrying.take(state, B, 2, carrying.copied(state, B, 2, "broken", [(key, value) for key, value in exported if key != lost]))
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


def test_a_copy_that_was_cut_off_is_not_seen_and_ends_by_itself(servers: Servers) -> None:
    state = servers.state()
    exported = handed_over(state)

    def cut_off() -> object:
        yield from islice(exported, 3)
        raise ConnectionError("the other node is gone")

    with pytest.raises(ConnectionError):
        carrying.take(state, B, 2, carrying.copied(state, B, 2, "first", cut_off()))  # type: ignore[arg-type]
    staged = state.call("KEYS", f"{B}taking:first:*")
    assert len(staged) == 3 and all(state.call("PTTL", key) > 0 for key in staged)
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
