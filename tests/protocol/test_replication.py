"""Replicas of a slot: a copy made at any moment and the writes after it equal the owner's state; END waits for the required replicas."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence

import msgpack
import pytest

from tests.conftest import Servers
from tests.support.moved_groups import A, B, groups
from tests.support.seeds import seeds
from udo_protocol.errors import Conflict, Fenced, ProtocolError
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import next_token, promote
from udo_protocol.queue.slot_reader import Emit
from udo_protocol.state import checkpoints, pieces, replica_copies, replication, rewinding
from udo_protocol.state.checkpoints import Checkpoint, OwnedState
from udo_protocol.state.pieces import PiecePlace
from udo_protocol.state.replication import START, LoggedWrites


class Replicated:
    """The owner of slot A, with the replicas of the first version of its placement."""

    def __init__(self, servers: Servers, *, counted: Sequence[str] = (), joining: Mapping[str, int] | None = None) -> None:
        self.state, self.queue = servers.state(), servers.queue()
        self.token = next_token(self.state, A)
        promote(self.state, self.queue, A, self.token)
        replication.configure(self.state, A, 1, counted, {"b": 1} if joining is None else joining)
        self._places: dict[tuple[str, int], PiecePlace] = {}
        self._pieces = 0
        self.waited = 0

    def checkpoint(self, writes: Sequence[Sequence[Arg]], *, held: Callable[[], None] | None = None) -> None:
        """Write a checkpoint that covers no frame. `held`: called while replicas lack it; by default the checkpoint does not wait."""

        def replicated() -> None:
            self.waited += 1
            if held is not None:
                replication.await_held(self.state, A, held)

        assert checkpoints.checkpoint(OwnedState(self.state, A, self.token), Checkpoint(), 0, writes, replicated=replicated) is Emit.STORED

    def write(self, session: str, group: int, value: bytes, *, anew: bool) -> list[list[Arg]]:
        """The writes for a change to a group, or for a new base."""
        place = self._places.get((session, group), PiecePlace())
        if anew or not place.piece:
            self._pieces += 1
            place = PiecePlace(f"{self.token}.{self._pieces}", 0, len(value), 0)
            writes = pieces.writing(A, session, group, value, place, value, [])
        else:
            place = place._replace(changes=place.changes + 1, change_bytes=place.change_bytes + len(value))
            writes = pieces.writing(A, session, group, value, place, None, [value])
        self._places[session, group] = place
        return [*writes, ["HSET", f"{A}sessions", session, json.dumps({"value": value.decode()})]]

    def forget(self, session: str, group: int) -> list[list[Arg]]:
        """The writes that drop a group."""
        self._places.pop((session, group), None)
        return pieces.removing(A, session, [group])


def whole(state: Connection, keys: SlotKeys) -> dict[str, object]:
    """All that an owner would find there, except the names of unused pieces."""
    found: dict[str, object] = {s: (text, groups(state, keys, s)) for s, text in pieces.records(state, keys).items()}
    for kind in ("dead", "pending", "replay", "runs:q"):
        flat = state.call("HGETALL", keys.named(kind))
        found[kind] = dict(zip(map(bytes, flat[::2]), map(bytes, flat[1::2]), strict=True))
    return found


def copied(state: Connection) -> replica_copies.Held:
    replication.pin(state, A, "b")
    return replica_copies.received(state, B, replica_copies.copying(state, A, "b"))


def follow(state: Connection, most: int = 1000) -> None:
    """Do what a replica's node does: ask for the next writes, execute them, and so acknowledge them with the next request."""
    read: list[LoggedWrites] = []
    while True:
        held = replica_copies.held(state, B)
        assert replication.acknowledge(state, A, "b", held.position)
        replication.require(state, A, "b")
        found = replication.entries(state, A, read[-1].position if read else held.position, 1)[:most]
        if not found:
            return
        read += found
        done = max((at for at, entry in enumerate(read, 1) if entry.whole), default=0)
        if done:
            replica_copies.execute(state, B, A, read[:done])
            del read[:done]


@pytest.mark.parametrize("seed", seeds(2, deep=6))
def test_a_copy_made_at_any_moment_and_what_follows_it_is_what_the_owner_has(servers: Servers, seed: int) -> None:
    orders, it = random.Random(seed), Replicated(servers)
    state = it.state

    def step() -> None:
        value = str(orders.randrange(1000)).encode() * orders.randrange(1, 20)
        session, group = orders.choice("pq"), orders.randrange(-2, 6)
        match orders.randrange(6):
            case 0:
                it.checkpoint(it.forget(session, group))
            case 1:
                it.checkpoint([("HSET", f"{A}pending", f"k|{value.decode():.9}", value), ("HDEL", f"{A}dead", f"k|{session}")])
            case 2:
                checkpoints.run_order(state, A, "q", f"r{orders.randrange(5)}", "c", 7)
            case 3:
                replication.write(state, A, [("HSET", f"{A}dead", f"k|{session}", value)])
            case _:
                it.checkpoint([w for _ in range(3) for w in it.write(session, orders.randrange(-2, 6), value, anew=orders.random() < 0.3)])

    for _ in range(orders.randrange(40)):
        step()
    replication.pin(state, A, "b")
    copying = replica_copies.copying(state, A, "b")
    carried = []
    for entry in copying:  # the owner goes on during the copy
        carried.append(entry)
        if orders.random() < 0.5:
            step()
    replica_copies.received(state, B, carried)
    for _ in range(60):
        step()
        if orders.random() < 0.2:
            follow(state, most=orders.randrange(1, 4))
    follow(state)
    assert whole(state, B) == whole(state, A) and replication.lacking(state, A)[1] == []
    used = {bytes(k).decode().removeprefix(B.prefix) for k in state.call("KEYS", f"{B}[gd]:*")}
    assert used == {bytes(k).decode().removeprefix(A.prefix) for k in state.call("KEYS", f"{A}[gd]:*")}, "no piece is left over"
    assert next_token(state, B) > it.token, "the next owner names no piece as this one did"
    assert state.call("XLEN", f"{A}replog") == 0, "what all have read is trimmed"


def test_a_large_checkpoint_has_several_entries_and_comes_in_one_transaction(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "_ENTRY_BYTES", 100)
    it = Replicated(servers)
    copied(it.state)
    it.checkpoint([w for n in range(20) for w in it.write("q", n, b"x" * 50, anew=True)])
    it.state.call("SET", "large", b"y" * 1_000_000)
    large = it.state.call("GET", "large")
    assert not isinstance(large, bytes), "a buffer of Arrow's"
    it.checkpoint([("HSET", f"{A}dead", "k|large", large)])
    read = replication.entries(it.state, A, START, 1)
    assert len(read) > 5 and not any(entry.whole for entry in read), "the first ones of many"
    follow(it.state, most=2)
    assert whole(it.state, B) == whole(it.state, A)


def test_an_end_waits_for_required_replicas_only_until_they_hold_it_or_are_given_up(servers: Servers) -> None:
    it = Replicated(servers, counted=["b"], joining={"c": 1})
    copied(it.state)
    looks: list[str] = []

    def look() -> None:
        looks.append("")
        if len(looks) == 3:
            follow(it.state)

    it.checkpoint(it.write("q", 1, b"1", anew=True), held=look)
    assert len(looks) == 3 and it.waited == 1
    looks.clear()

    def given_up() -> None:
        looks.append("")
        replication.configure(it.state, A, 2, [], {"c": 2})

    it.checkpoint(it.write("q", 1, b"2", anew=False), held=given_up)
    assert len(looks) == 1
    replication.configure(it.state, A, 3, [], {})
    assert it.state.call("EXISTS", f"{A}replicas", f"{A}replicated", f"{A}replog") == 0
    it.checkpoint(it.write("q", 1, b"3", anew=False))
    assert it.waited == 2 and it.state.call("EXISTS", f"{A}replog") == 0, "without replicas nothing is logged, and nobody waits"


def test_a_node_that_has_joined_is_required_from_then_on_until_a_version_without_it(servers: Servers) -> None:
    it = Replicated(servers, joining={"b": 1})
    assert replication.lacking(it.state, A) == (START, [])
    copied(it.state)
    follow(it.state)
    known = replication.replicas(it.state, A)
    assert known is not None and known.required == ("b",)
    replication.configure(it.state, A, 2, ["b"], {})
    replication.configure(it.state, A, 1, [], {})
    it.checkpoint(it.write("q", 1, b"1", anew=True))
    assert replication.lacking(it.state, A)[1] == ["b"], "an older version changes nothing"


def test_a_node_that_was_given_up_and_named_again_has_to_copy_even_where_the_slot_was_not_told_in_between(servers: Servers) -> None:
    it = Replicated(servers, joining={"b": 1, "c": 1})
    held = copied(it.state)
    follow(it.state)
    replication.configure(it.state, A, 4, [], {"b": 3, "c": 1})
    known = replication.replicas(it.state, A)
    assert known is not None and (known.named, known.required) == (("b", "c"), ()), "b may have removed what it had"
    assert not replication.acknowledge(it.state, A, "b", held.position)
    copied(it.state)
    follow(it.state)
    known = replication.replicas(it.state, A)
    assert known is not None and known.required == ("b",)


def test_a_former_owner_that_waits_learns_that_it_is_none(servers: Servers) -> None:
    it = Replicated(servers, counted=["b"], joining={})

    def overtaken() -> None:
        raise Fenced("by a newer one")

    with pytest.raises(Fenced):
        it.checkpoint(it.write("q", 1, b"1", anew=True), held=overtaken)


def test_a_node_that_was_no_replica_for_a_while_has_to_copy_again(servers: Servers) -> None:
    it = Replicated(servers, joining={"b": 1, "c": 1})
    held = copied(it.state)
    follow(it.state)
    replication.configure(it.state, A, 2, [], {"c": 2})
    it.checkpoint(it.write("q", 1, b"1", anew=True))
    replication.pin(it.state, A, "c")
    replication.configure(it.state, A, 3, [], {"b": 3, "c": 2})
    assert not replication.acknowledge(it.state, A, "b", held.position), "what was written meanwhile may be trimmed"
    copied(it.state)
    follow(it.state)
    assert whole(it.state, B) == whole(it.state, A)


@pytest.mark.parametrize("lost", ["g:1.1", "d:1.1"])
def test_a_copy_that_has_come_in_part_is_refused(servers: Servers, lost: str) -> None:
    it = Replicated(servers)
    it.checkpoint(it.write("q", 1, b"1", anew=True))
    it.checkpoint(it.write("q", 1, b"2", anew=False))
    carried = list(replica_copies.copying(it.state, A, "b"))
    assert lost in dict(carried)
    with pytest.raises(ProtocolError, match="in part"):
        replica_copies.received(it.state, B, [(name, value) for name, value in carried if name != lost])


@pytest.mark.parametrize(
    "write",
    [
        ("FLUSHALL", "SYNC"),
        ("SET", "udo:other:0:ckpt", "1"),
        ("SET", f"{A}owner", "9"),
        ("DEL", f"{A}sessions", "udo:incarnation"),
        ("EVAL", f"{A}sessions", "1"),
    ],
)
def test_only_writes_of_owners_on_their_own_keys_are_executed(servers: Servers, write: tuple[str, ...]) -> None:
    state = servers.state()
    entry = LoggedWrites("1-1", [[word.encode() for word in write]], 1, True)
    with pytest.raises(ProtocolError):
        replica_copies.execute(state, B, A, [entry])
    assert not state.call("KEYS", f"{B}*")


def test_a_rollback_to_former_state_is_not_followed_but_copied(servers: Servers) -> None:
    it = Replicated(servers)
    copied(it.state)
    it.checkpoint([*it.write("q", 1, b"1", anew=True), rewinding.rewind(A)])
    with pytest.raises(Conflict, match="copied again"):
        follow(it.state)


def test_what_replicas_would_stop_at_is_written_by_nobody_and_what_is_of_the_node_alone_is_not_sent(servers: Servers) -> None:
    it = Replicated(servers)
    for key in (f"{A}other", f"{B}sessions"):
        with pytest.raises(ProtocolError, match="is no write of a slot's owner"):
            it.checkpoint([("SET", key, 1)])
        with pytest.raises(ProtocolError, match="is no write of a slot's owner"):
            replication.write(it.state, A, [("SET", key, 1)])
    copied(it.state)
    writes = [["HDEL", f"{A}homes", "q"], ["HSET", f"{A}cut", "q", "1 run"], *it.write("q", 1, b"1", anew=True)]
    checkpoints.amend(OwnedState(it.state, A, it.token), writes)
    follow(it.state)
    assert whole(it.state, B) == whole(it.state, A)
    assert it.state.call("EXISTS", f"{B}homes", f"{B}cut") == 0


def test_a_write_of_an_earlier_release_that_is_of_its_node_alone_stops_no_replica(servers: Servers) -> None:
    it = Replicated(servers)
    copied(it.state)
    it.state.call("XADD", f"{A}replog", "*", "whole", it.token, "w", msgpack.packb([b"HDEL", f"{A}homes".encode(), b"q"]))
    it.checkpoint(it.write("q", 1, b"1", anew=True))
    follow(it.state)
    assert whole(it.state, B) == whole(it.state, A)
