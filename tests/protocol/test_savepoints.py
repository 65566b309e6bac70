"""A savepoint pins the parts of the state: none is removed while it is needed, and none stays after that."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from udo_runtime.durable.standby import RewoundState

from tests.conftest import Servers, wait_until
from tests.support.seeds import examples, seeds
from udo_protocol.errors import Conflict, SlotBroken, StateLost
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import pieces, rewinding, savepoints
from udo_protocol.state.pieces import PiecePlace

P = SlotKeys("t", 0)
Groups = dict[int, tuple[bytes | None, list[bytes]]]


class Owner:
    """Writes groups of one session as an owner does; `groups` is the expected content."""

    def __init__(self, state: Connection) -> None:
        self._state, self._names = state, map(str, count(1))
        self.groups: Groups = {}
        state.call("HSET", f"{P}sessions", "s", "{}")
        self.places: dict[int, PiecePlace] = {}

    def change(self, n: int, data: bytes) -> None:
        """Add a change to the group."""
        base, changes = self.groups.get(n, (None, []))
        place = self.places.get(n, PiecePlace())
        place = PiecePlace(place.piece or next(self._names), place.changes + 1, place.base_bytes, place.change_bytes + len(data))
        self._write(n, place, None, [data])
        self.groups[n] = base, [*changes, data]

    def fold(self, n: int, data: bytes) -> None:
        """Replace the group by a new base."""
        self._write(n, PiecePlace(next(self._names), base_bytes=len(data)), data, [])
        self.groups[n] = data, []

    def drop(self, n: int) -> None:
        """Drop the group."""
        self._state.transaction(pieces.removing(P, "s", [n]))
        self.groups.pop(n)
        self.places.pop(n)

    def _write(self, n: int, place: PiecePlace, base: bytes | None, changes: list[bytes]) -> None:
        self._state.transaction(pieces.writing(P, "s", n, b"meta", place, base, changes))
        self.places[n] = place


@pytest.fixture
def state(servers: Servers) -> Connection:
    return servers.state()


def found(state: Connection, savepoint: str = "") -> Groups:
    return {n: (group.base, group.deltas) for n, group in pieces.read(state, P, "s", savepoint)}


def stored(state: Connection) -> set[str]:
    return {bytes(k).decode().removeprefix(P.prefix) for k in state.call("KEYS", f"{P}*")}


def expected(owner: Owner) -> set[str]:
    """The keys of the state without savepoints."""
    bases = {f"g:{place.piece}" for place in owner.places.values() if place.base_bytes}
    changes = {f"d:{place.piece}" for place in owner.places.values() if place.changes}
    return bases | changes | {"sessions"} | ({"m:s"} if owner.places else set())


def test_savepoints_of_several_slots_are_of_one_moment(servers: Servers) -> None:
    """Otherwise an export could have an epoch that counts in one slot, where the next one has begun, and not in the other."""
    slots, over = [SlotKeys("t", 0), SlotKeys("t", 1)], threading.Event()

    def end_epochs() -> int:
        state = servers.state()
        for epoch in count():
            state.transaction([("HSET", keys.sessions, "s", f"{epoch}") for keys in slots])
            if over.is_set():
                return epoch
        raise AssertionError

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(end_epochs)
        try:
            state, seen = servers.state(), set[bytes]()
            wait_until(lambda: state.call("EXISTS", slots[1].sessions) == 1, 10, "the first epoch")
            for _ in range(examples(400)):
                with savepoints.made(state, slots, "export"):
                    first, second = (bytes(state.call("HGET", keys.savepoint("export").sessions, "s")) for keys in slots)
                assert first == second
                seen.add(first)
        finally:
            over.set()
    assert len(seen) > 1, ended.result()


@pytest.mark.parametrize("seed", seeds(20))
def test_any_order_of_changes_savepoints_and_rollbacks_keeps_what_is_named_and_nothing_else(state: Connection, seed: int) -> None:
    dice, owner, data = random.Random(seed), Owner(state), map(b"%d".__mod__, count(1000))
    kept: dict[str, tuple[Groups, dict[int, PiecePlace]]] = {}
    for _ in range(120):
        n, name = dice.randrange(4), dice.choice(["a", "b", rewinding.SAVEPOINT])
        step = dice.choice(["change", "change", "fold", "fold", "drop", "make", "unpin", "rewind"])
        if step == "change":
            owner.change(n, next(data))
        elif step == "fold":
            owner.fold(n, next(data))
        elif step == "drop" and n in owner.groups:
            owner.drop(n)
        elif step == "make":
            savepoints.make(state, P, name)
            kept[name] = dict(owner.groups), dict(owner.places)
        elif step == "unpin":
            savepoints.drop(state, P, name)
            kept.pop(name, None)
        elif step == "rewind" and rewinding.SAVEPOINT in kept and dice.random() < 0.3:
            state.call(*rewinding.rewind(P))
            owner.groups, owner.places = kept.pop(rewinding.SAVEPOINT)
            for other in kept:
                assert "rolled back to an older state" in savepoints.gone(state, P, other)
            kept.clear()
        assert found(state) == owner.groups
        for name, (groups, _) in kept.items():
            assert found(state, name) == groups
    for name in ("a", "b", rewinding.SAVEPOINT):
        savepoints.drop(state, P, name)
    assert stored(state) == expected(owner)


def test_who_made_a_savepoint_and_died_leaves_nothing_behind(state: Connection) -> None:
    owner = Owner(state)
    owner.fold(1, b"old")
    savepoints.make(state, P, "dead", lease_ms=1)
    wait_until(lambda: bool(state.call("TIME")) and _over(state, "dead"), 5, "the lease to end")
    owner.fold(1, b"new")
    assert stored(state) == expected(owner)
    with pytest.raises(Conflict, match="its lease ran out"):
        savepoints.hold(state, P, "dead")


def _over(state: Connection, name: str) -> bool:
    seconds, micros = map(int, state.call("TIME"))
    till = bytes(state.call("HGET", f"{P}savepoints", name)).split()[1]
    return seconds * 1000 + micros // 1000 > int(till)


def test_a_lease_that_is_renewed_keeps_it(state: Connection) -> None:
    owner = Owner(state)
    owner.fold(1, b"old")
    savepoints.make(state, P, "slow", lease_ms=1)
    hold = savepoints.holding(state, P, "slow")
    state.call("HSET", f"{P}savepoints", "slow", "1 99999999999999 0")  # as if the lease had not run out yet
    hold()
    owner.fold(1, b"new")
    assert found(state, "slow") == {1: (b"old", [])}


def test_beyond_the_bound_the_oldest_is_given_up_and_its_reader_is_told(state: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoints, "MOST_BYTES", 2500)
    owner = Owner(state)
    owner.fold(1, bytes(1000))
    owner.change(1, bytes(1000))
    savepoints.make(state, P, "first")
    state.call("HSET", f"{P}savepoints", "first", bytes(state.call("HGET", f"{P}savepoints", "first")).replace(b"1", b"0", 1))  # long ago
    owner.fold(1, bytes(600))  # 2000 bytes are held
    savepoints.make(state, P, "second")
    savepoints.make(state, P, "third")
    assert found(state, "first") == {1: (bytes(1000), [bytes(1000)])}
    owner.fold(1, b"x")
    for _ in range(2):
        with pytest.raises(Conflict, match="savepoint first .* was given up: .* held more than"):
            savepoints.hold(state, P, "first")
    assert found(state, "second") == found(state, "third") == {1: (bytes(600), [])}
    savepoints.drop(state, P, "second")
    savepoints.drop(state, P, "third")
    savepoints.drop(state, P, "first")
    assert stored(state) == expected(owner)


def test_a_rollback_whose_savepoint_was_given_up_says_why(state: Connection, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(state)
    owner.fold(1, bytes(1000))
    rewinding.keep(state, servers.queue(), P, "former", 0, 60_000)
    monkeypatch.setattr(savepoints, "MOST_BYTES", 500)
    owner.fold(1, b"x")
    assert rewinding.kept(state, P) is None and not rewinding.possible(state, P, "former")
    assert "held more than" in rewinding.gone(state, P)
    with pytest.raises(StateLost, match="held more than .* too late to roll back"):
        RewoundState(state, P, "i", servers.queue().run_id).load()


def test_who_reads_the_newest_state_looks_again_for_what_was_replaced_meanwhile(state: Connection) -> None:
    """Parts are read one after the other while the owner goes on: each group is whole, and none is missing."""
    owner, written = Owner(state), map(b"%d".__mod__, count())
    for n in range(6):
        owner.fold(n, bytes(1 << 20))
    seen: dict[int, bytes | None] = {}

    def meanwhile() -> None:
        if (number := next(written)) < b"8":  # the owner replaces a group again and again, but not at every look
            owner.fold(5, number)
            owner.drop(4) if 4 in owner.groups else owner.fold(3, number)

    for n, group in pieces.read(state, P, "s", between=meanwhile):
        assert n not in seen
        seen[n] = group.base
    assert seen.keys() == {0, 1, 2, 3, 5}
    assert seen[5] == owner.groups[5][0] and seen[3] is not None


def test_a_manifest_that_names_what_is_not_there_is_said_to_be_broken(state: Connection) -> None:
    Owner(state).fold(1, b"x")
    state.call("HSET", f"{P}m:s", 1, pieces.entry(PiecePlace("9", 0, 5, 0), b"meta"))
    with pytest.raises(SlotBroken, match=f"{P}m:s"):
        found(state)
    state.call("HSET", f"{P}m:s", 1, "what is this")
    with pytest.raises(SlotBroken, match=f"{P}m:s"):
        found(state)


def test_of_chosen_groups_only_these_are_read_and_event_times(state: Connection) -> None:
    owner = Owner(state)
    for n in (-1, 1, 2, 3):
        owner.fold(n, b"%d" % n)
    chosen: Iterator[int] = (n for n, _ in pieces.read(state, P, "s", groups={2}))
    assert sorted(chosen) == [-1, 2]
