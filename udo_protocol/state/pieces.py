"""How a keyed slot's groups are stored on the state server, and the only way to read them.

The values of a group are a **piece**: a base (`g:{piece}`), which never changes, and the changes since (`d:{piece}`), which are only
appended to. The **manifest** of a session (`m:{session}`) names for each group its piece and how many of the changes count. So a manifest
describes what one checkpoint left, and its pieces may be read later, as long as they exist: a savepoint (savepoints.py) keeps them, and
a reader without a savepoint reads the manifest again when a piece has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from udo_protocol.errors import Conflict
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.state import savepoints, untrusted

# Read in one step: the owner writes at the same time and must not wait long.
_READ_BYTES = 1 << 20
# A checkpoint replaces a group at most once, so a piece that is missing so many times was not replaced by checkpoints.
_LOOKS = 100


class PiecePlace(NamedTuple):
    """Where a group's values are: the piece, how many of its changes count, and the sizes. A group that was never stored has no piece."""

    piece: str = ""
    changes: int = 0
    base_bytes: int = 0
    change_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Both together."""
        return self.base_bytes + self.change_bytes


@dataclass
class StoredGroup:
    """One key group as it is stored. `meta`: label, END flag, undo, candidate."""

    meta: bytes = b""
    base: bytes | None = None
    deltas: list[bytes] = field(default_factory=list)
    place: PiecePlace = PiecePlace()


def entry(place: PiecePlace, meta: bytes) -> bytes:
    """A group's entry in the manifest."""
    return f"{place.piece} {place.changes} {place.base_bytes} {place.change_bytes} ".encode() + meta


def parsed(data: bytes, key: str) -> tuple[PiecePlace, bytes]:
    """Inverse of `entry`."""
    with untrusted.reading(key, "`piece changes base_bytes change_bytes meta`"):
        piece, *numbers, meta = bytes(data).split(b" ", 4)
        changes, base, change = (untrusted.number(n, key) for n in numbers)
        return PiecePlace(piece.decode(), changes, base, change), meta


def writing(
    prefix: str, session: str, number: int, meta: bytes, place: PiecePlace, base: bytes | None, changes: Sequence[bytes]
) -> list[list[Arg]]:
    """The commands that store a group: with a `base` a new piece, else changes appended to its present piece."""
    commands: list[list[Arg]] = []
    if base is not None:
        commands += [_replaced(prefix, session, [number]), ["SET", f"{prefix}g:{place.piece}", base]]
    if changes:
        commands.append(["RPUSH", f"{prefix}d:{place.piece}", *changes])
    return [*commands, ["HSET", f"{prefix}m:{session}", number, entry(place, meta)]]


def removing(prefix: str, session: str, numbers: Collection[int]) -> list[list[Arg]]:
    """The commands that remove these groups."""
    return [_replaced(prefix, session, sorted(numbers)), ["HDEL", f"{prefix}m:{session}", *sorted(numbers)]] if numbers else []


def _replaced(prefix: str, session: str, numbers: Sequence[int]) -> list[Arg]:
    """The command that removes the groups' present pieces, except those that a savepoint names."""
    return ["FCALL", "udo_replaced", 1, prefix, session, savepoints.MOST_BYTES, *numbers]


def records(state: Connection, prefix: str, savepoint: str = "") -> dict[str, bytes]:
    """Session -> its record, as it is stored."""
    (flat,) = untrusted.read(state, ("HGETALL", savepoints.at(prefix, savepoint) + "sessions"))
    return {bytes(name).decode(): bytes(record) for name, record in zip(flat[::2], flat[1::2], strict=True)}


def read(
    state: Connection,
    prefix: str,
    session: str,
    savepoint: str = "",
    *,
    groups: Collection[int] | None = None,
    between: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, StoredGroup]]:
    """The groups of a session, of all or of `groups` and those that hold event times. Each is as one checkpoint left it.

    All are of the same one with `savepoint`, or if nobody writes meanwhile. `between` is called between steps.
    """
    key = f"{savepoints.at(prefix, savepoint)}m:{session}"
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
            if data is not None:  # else it was dropped meanwhile
                found[n] = parsed(data, key)
        left = []
        for part in _parts(found):
            between()
            for n, group in _pieces(state, prefix, part):
                if group is None:
                    left.append(n)
                else:
                    yield n, group
        if left and savepoint:
            raise Conflict(savepoints.gone(state, prefix, savepoint) or f"savepoint {savepoint} of {prefix} lacks key groups {left}")
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


def _pieces(state: Connection, prefix: str, part: Mapping[int, tuple[PiecePlace, bytes]]) -> Iterator[tuple[int, StoredGroup | None]]:
    """The groups as the manifest describes them; None if a piece has been replaced since."""
    commands: list[list[Arg]] = []
    for place, _ in part.values():
        first, last = (0, place.changes - 1) if place.changes else (1, 0)  # of none, none
        commands += [["GET", f"{prefix}g:{place.piece}"], ["LRANGE", f"{prefix}d:{place.piece}", first, last]]
    replies = iter(untrusted.read(state, *commands, most_bytes=untrusted.STATE_BYTES))
    for (n, (place, meta)), base, changes in zip(part.items(), replies, replies, strict=True):
        whole = (len(changes), len(base or b""), sum(map(len, changes))) == place[1:]
        yield n, StoredGroup(meta, base, changes, place) if whole else None
