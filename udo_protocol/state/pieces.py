"""How the key groups of a slot are stored on the state server. All readers of stored state use this module.

The values of a group are a **piece**: a base (`g:{piece}`), which never changes, and the changes after it (`d:{piece}`), to which entries
are only appended. The **manifest** of a session (`m:{session}`) names for each group its piece and the number of changes that count. Thus a
manifest describes the state of one checkpoint, and its pieces can be read later, as long as they exist: a savepoint (savepoints.py) keeps
them, and a reader without a savepoint reads the manifest again when a piece has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from udo_protocol.errors import Conflict
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import PieceKeys, SlotKeys
from udo_protocol.state import savepoints

# Bytes read in one transaction: the owner writes at the same time and must not wait long.
_READ_BYTES = 1 << 20
# How often a manifest is read. Each checkpoint replaces a piece at most once, so a piece that is missing this often is really missing.
_LOOKS = 100


class PiecePlace(NamedTuple):
    """The location of a group's values: the piece, the number of its changes that count, the sizes. A new group has no piece."""

    piece: str = ""
    changes: int = 0
    base_bytes: int = 0
    change_bytes: int = 0

    @property
    def bytes(self) -> int:
        """The size of the base and the changes."""
        return self.base_bytes + self.change_bytes


@dataclass
class StoredGroup:
    """One key group as stored. `meta`: label, END flag, undo, candidate (udo_runtime/state/groups.py, `Group.meta`). Large values from the
    server are Arrow buffers: read them with functions that take any buffer; `in` does not find bytes there."""

    meta: bytes = b""
    base: bytes | None = None
    deltas: list[bytes] = field(default_factory=list)
    place: PiecePlace = PiecePlace()


def entry(place: PiecePlace, meta: bytes) -> bytes:
    """A group's entry in its session's manifest."""
    return f"{place.piece} {place.changes} {place.base_bytes} {place.change_bytes} ".encode() + meta


def parsed(data: bytes, key: str) -> tuple[PiecePlace, bytes]:
    """Inverse of `entry`; SlotBroken names `key` if `data` is not an entry."""
    with untrusted.reading(key, "`piece changes base_bytes change_bytes meta`"):
        piece, *numbers, meta = bytes(data).split(b" ", 4)
        changes, base, change = (untrusted.number(n, key) for n in numbers)
        return PiecePlace(piece.decode(), changes, base, change), meta


def writing(
    keys: SlotKeys, session: str, number: int, meta: bytes, place: PiecePlace, base: bytes | None, changes: Sequence[bytes]
) -> list[list[Arg]]:
    """The commands that store a group: as a new piece with this `base`, or with `changes` appended to its current piece."""
    commands: list[list[Arg]] = []
    if base is not None:
        commands += [_replaced(keys, session, [number]), ["SET", keys.base_of(place.piece), base]]
    if changes:
        commands.append(["RPUSH", keys.changes_of(place.piece), *changes])
    return [*commands, ["HSET", keys.manifest(session), number, entry(place, meta)]]


def removing(keys: SlotKeys, session: str, numbers: Collection[int]) -> list[list[Arg]]:
    """The commands that remove groups from a session."""
    return [_replaced(keys, session, sorted(numbers)), ["HDEL", keys.manifest(session), *sorted(numbers)]] if numbers else []


def _replaced(keys: SlotKeys, session: str, numbers: Sequence[int]) -> list[Arg]:
    """The command that removes the groups' current pieces, except those that a savepoint names."""
    return ["FCALL", "udo_replaced", 1, keys.prefix, session, savepoints.MOST_BYTES, *numbers]


def records(state: Connection, keys: PieceKeys, savepoint: str = "") -> dict[str, bytes]:
    """The stored record (JSON) of each session, of the state or of a savepoint."""
    (flat,) = untrusted.read(state, ("HGETALL", keys.savepoint(savepoint).sessions))
    return {bytes(name).decode(): bytes(record) for name, record in zip(flat[::2], flat[1::2], strict=True)}


def read(
    state: Connection,
    keys: PieceKeys,
    session: str,
    savepoint: str = "",
    *,
    groups: Collection[int] | None = None,
    between: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, StoredGroup]]:
    """(number, group) for all groups of a session, or for `groups` and those that hold event times (numbers below 0).

    Each group is in the state of one checkpoint; with `savepoint`, or if nobody writes in the meantime, of the same one for all groups.
    `between` is called between reads, e.g. to renew a lease. Raises Conflict if the savepoint was given up, SlotBroken if keys are
    corrupted.
    """
    key = keys.savepoint(savepoint).manifest(session)
    (fields,) = untrusted.read(state, ("HKEYS", key))
    with untrusted.reading(key, "fields named by key groups"):
        left = sorted(n for f in fields if abs(n := int(f)) < 1 << 31)
    if groups is not None:
        left = [n for n in left if n < 0 or n in groups]
    for _ in range(_LOOKS):
        if not left:
            return
        flat, found = untrusted.read(state, ("HMGET", key, *left), most_bytes=untrusted.STATE_BYTES)[0], {}
        for n, data in zip(left, flat, strict=True):
            if data is not None:  # else the group was dropped in the meantime
                found[n] = parsed(data, key)
        left = []
        for part in _parts(found):
            between()
            for n, group in _pieces(state, keys, part):
                if group is None:
                    left.append(n)
                else:
                    yield n, group
        if left and savepoint:
            raise Conflict(savepoints.gone(state, keys, savepoint) or f"savepoint {savepoint} of {keys} lacks key groups {left}")
    raise untrusted.broken(key, f"pieces that are there in one of {_LOOKS} looks", f"key groups {left} without theirs")


def _parts(found: Mapping[int, tuple[PiecePlace, bytes]]) -> Iterator[dict[int, tuple[PiecePlace, bytes]]]:
    part: dict[int, tuple[PiecePlace, bytes]] = {}
    size = 0
    for n, (place, meta) in found.items():
        part[n] = place, meta
        size += place.bytes
        if size >= _READ_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part


def _pieces(state: Connection, keys: PieceKeys, part: Mapping[int, tuple[PiecePlace, bytes]]) -> Iterator[tuple[int, StoredGroup | None]]:
    """(number, group) as the manifest describes them; None for a group whose piece has been replaced since."""
    commands: list[list[Arg]] = []
    for place, _ in part.values():
        first, last = (0, place.changes - 1) if place.changes else (1, 0)  # (1, 0): an empty range
        commands += [["GET", keys.base_of(place.piece)], ["LRANGE", keys.changes_of(place.piece), first, last]]
    replies = iter(untrusted.read(state, *commands, most_bytes=untrusted.STATE_BYTES))
    for (n, (place, meta)), base, changes in zip(part.items(), replies, replies, strict=True):
        whole = (len(changes), len(base or b""), sum(map(len, changes))) == place[1:]
        yield n, StoredGroup(meta, base, changes, place) if whole else None
