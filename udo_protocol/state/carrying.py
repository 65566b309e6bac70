"""Copies the key groups that a slot hands over in a move (moving.py) to the state server of another node. Every step may be repeated.

They are copied key by key under names of this copy, which expire if the copy is not completed. The last step gives all of them to
the slot, once for each version of the map: a copy that comes late changes nothing.

Most of it can be copied ahead of the move, in any number of looks, while the source serves the groups: bases never change and changes are
only appended, so what is handed over afterwards lacks only later changes there. Who copies remembers what it has sent in memory only:
after an interruption, of the source's state server too, everything is copied once more, under another name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise, starmap
from typing import Any, NamedTuple

from udo_protocol.errors import ProtocolError
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.durable import synced
from udo_protocol.queue.keys import CopyKeys, SlotKeys, StateKeys
from udo_protocol.state import moving, pieces
from udo_protocol.state.pieces import PiecePlace

# Bytes of one message between nodes; a larger value continues in the next.
PART_BYTES = 1 << 20
# A copy that is not completed is removed after this time: no copy takes as long.
_COPY_MS = 3_600_000
_WHAT = "what was handed over"
# The keys of a copy that were written ahead, until the copy is given to the slot.
_WRITTEN = "ahead:keys"
# How much is read or written together, rather than in a round trip for each key group: pieces, or parts, and their bytes.
_TOGETHER, _TOGETHER_BYTES = 32, 1 << 20


# A key's name without the prefix, and its value in the form of DUMP.
Dumped = tuple[str, bytes]


class Carried(NamedTuple):
    """A write on a copy. key: its name without the prefix. value: in the form of DUMP; with `sizes` the next items of a list, one after the
    other; with `field` the value of that field of a hash."""

    key: str
    value: bytes
    sizes: Sequence[int] = ()
    field: str | None = None


@dataclass
class SentAhead:
    """What another node has of key groups ahead of their move. copy: the name of the copy there, which no other copy has; changes: piece ->
    number of its changes; entries: (session, group) -> its entry in the manifest."""

    copy: str
    changes: dict[str, int] = field(default_factory=dict)
    entries: dict[tuple[str, bytes], bytes] = field(default_factory=dict)


# -- the source --------------------------------------------------------------------------------------------------------


def ahead(state: Connection, keys: SlotKeys, groups: Collection[int], sent: SentAhead) -> Iterator[Carried]:
    """What the slot's newest checkpoint has of these groups, and the copy does not; notes it as sent.

    A group whose piece is replaced meanwhile is left out: the next look finds the new one.
    """
    fields = [str(g).encode() for g in sorted(groups)]
    for session, record in pieces.records(state, keys).items():
        copied = CopyKeys("")
        yield Carried(copied.sessions, record, field=session)
        key = keys.manifest(session)
        (entries,) = untrusted.read(state, ("HMGET", key, *fields), most_bytes=untrusted.STATE_BYTES)
        new = [(g, bytes(e)) for g, e in zip(fields, entries, strict=True) if e is not None and sent.entries.get((session, g)) != e]
        places = (pieces.parsed(entry, key)[0] for _, entry in new)
        found_of = (_later(state, keys, some, sent) for some in _together(places, sent))
        for (group, entry), found in zip(new, chain.from_iterable(found_of), strict=True):
            if found is not None:
                yield from found
                yield Carried(copied.manifest(session), entry, field=group.decode())
                sent.entries[session, group] = entry


def _together(places: Iterable[PiecePlace], sent: SentAhead | None) -> Iterator[list[PiecePlace]]:
    """The pieces in turn, as many together as are read at once; a large one is alone."""
    some, size = list[PiecePlace](), 0
    for place in places:
        more = place.change_bytes if sent is not None and place.piece in sent.changes else place.bytes
        if some and (len(some) == _TOGETHER or size + more > _TOGETHER_BYTES):
            yield some
            some, size = [], 0
        some.append(place)
        size += more
    if some:
        yield some


def _later(state: Connection, keys: SlotKeys, places: Sequence[PiecePlace], sent: SentAhead) -> list[list[Carried] | None]:
    """What each piece has as far as the manifest counts it, and the copy does not; notes it as sent. None for a piece that is gone."""
    commands: list[Sequence[Arg]] = []
    known = [sent.changes.get(place.piece) for place in places]
    for (piece, changes, *_), before in zip(places, known, strict=True):
        if changes > (before or 0):
            commands.append(("LRANGE", keys.changes_of(piece), before or 0, changes - 1))
        if before is None:
            commands.append(("DUMP", keys.base_of(piece)))
    replies = iter(untrusted.read(state, *commands, most_bytes=untrusted.STATE_BYTES) if commands else [])
    return [_after(before, place, replies, sent) for place, before in zip(places, known, strict=True)]


def _after(before: int | None, place: PiecePlace, replies: Iterator[Any], sent: SentAhead) -> list[Carried] | None:
    """The same for one piece, of which the copy had so many changes, or nothing; its replies are the next ones."""
    changes = [bytes(c) for c in next(replies)] if place.changes > (before or 0) else []
    base = next(replies) if before is None else None
    if len(changes) != place.changes - (before or 0) or (before is None and place.base_bytes and base is None):
        return None
    sent.changes[place.piece], copied = place.changes, CopyKeys("")
    found = [] if base is None else [Carried(copied.base_of(place.piece), bytes(base))]
    if changes:
        found.append(Carried(copied.changes_of(place.piece), b"".join(changes), [len(c) for c in changes]))
    return found


def handed_over(state: Connection, keys: SlotKeys, version: int, sent: SentAhead | None = None) -> Iterator[Carried]:
    """All keys that the slot has handed over by that version of the map; without what was sent ahead."""
    top = keys.savepoint(moving.handed_over(version))
    (sessions,) = untrusted.read(state, ("HKEYS", top.sessions))
    for session in (bytes(s).decode() for s in sessions):
        key = top.manifest(session)
        (manifest,) = untrusted.read(state, ("HGETALL", key), most_bytes=untrusted.STATE_BYTES)
        for some in _together((pieces.parsed(entry, key)[0] for entry in manifest[1::2]), sent):
            begun = [place for place in some if sent is not None and place.piece in sent.changes]
            later = dict(zip(begun, _later(state, keys, begun, sent), strict=True)) if sent is not None else {}
            yield from chain.from_iterable(found for found in later.values() if found)
            whole = [name for p in some if later.get(p) is None for name in (keys.base_of(p.piece), keys.changes_of(p.piece))]
            yield from starmap(Carried, _dumped(state, keys, whole))
        yield from starmap(Carried, dumped(state, top, key))
    yield from starmap(Carried, dumped(state, top, top.dead, top.pending, top.replay, top.sessions))


def dumped(state: Connection, top: StateKeys, *keys: str) -> Iterator[Dumped]:
    """Those of these keys that exist, by their names below the prefix of `top`."""
    for key in keys:
        yield from _dumped(state, top, [key])


def _dumped(state: Connection, top: StateKeys, keys: Sequence[str]) -> Iterator[Dumped]:
    """The same, read together."""
    values = untrusted.read(state, *(("DUMP", key) for key in keys), most_bytes=untrusted.STATE_BYTES) if keys else []
    for key, value in zip(keys, values, strict=True):
        if value is not None:
            yield key.removeprefix(top.prefix), bytes(value)


def forget(state: Connection, keys: SlotKeys, version: int) -> None:
    """Remove what was handed over, since the other slot has it."""
    state.call("FCALL", "udo_handed_on", 1, keys.prefix, version)


# -- the slot that gets them -------------------------------------------------------------------------------------------


def is_taken(state: Connection, keys: SlotKeys, version: int) -> bool:
    """Whether the slot has received what was handed over by that version."""
    return taken(state, keys) >= version


def taken(state: Connection, keys: SlotKeys) -> int:
    """The last version by which the slot has received key groups; 0: none."""
    return int(state.call("GET", keys.taken) or 0)


def bring_ahead(state: Connection, keys: SlotKeys, copy: str, carried: Iterable[Carried]) -> None:
    """Write `carried` to the copy of that name, beside the slot's keys; durable when it returns. ProtocolError if it does not fit."""
    staged = keys.taking(copy)
    for _ in _write(state, staged, carried, noted=True):
        pass
    synced(state, _WHAT)


def copied(state: Connection, keys: SlotKeys, version: int, copy: str, carried: Iterable[Carried]) -> str:
    """Write `carried` beside the slot's keys, to the copy of that name, which may have been begun by `bring_ahead`; returns the name.

    If the slot has received that version before, `carried` is not read, and the name is ''. ProtocolError if the copy was completed, or was
    to be, by an earlier call: a list's items would be there twice.
    """
    if is_taken(state, keys, version):
        return ""
    staged = keys.taking(copy)
    if not state.call("SET", staged.named("begun"), 1, "NX", "PX", _COPY_MS):
        raise ProtocolError(f"copy {copy} of what goes to {keys} has been completed before, or in part; expected another name")
    names = [""]  # never empty, even if nothing was handed over
    for some in _write(state, staged, carried):
        names += some
    # Written last: `take` needs it, and all that it names, since a part may have expired by then.
    everything = staged.named("all")
    state.transaction([("RPUSH", everything, *names), ("PEXPIRE", everything, _COPY_MS)])
    return copy


def _write(state: Connection, staged: CopyKeys, carried: Iterable[Carried], *, noted: bool = False) -> Iterator[list[str]]:
    """Write the parts, as many together as are written at once, and yield their keys; `noted`: as written ahead."""
    left, noting = iter(carried), staged.named(_WRITTEN)
    while some := list(_portion(left)):
        names = [part.key for part in some]
        commands = [command for part in some for command in _writes(staged, part)]
        state.transaction([*commands, *([("SADD", noting, *names), ("PEXPIRE", noting, _COPY_MS)] if noted else [])])
        yield names


def _portion(left: Iterator[Carried]) -> Iterator[Carried]:
    """The parts that are written at once."""
    size = 0
    for part in islice(left, _TOGETHER):
        yield part
        size += len(part.value)
        if size >= _TOGETHER_BYTES:
            return


def _writes(staged: CopyKeys, part: Carried) -> list[Sequence[Arg]]:
    key = staged.named(part.key)
    if not part.sizes and part.field is None:
        return [("RESTORE", key, _COPY_MS, part.value, "REPLACE")]
    if part.field is not None:
        return [("HSET", key, part.field, part.value), ("PEXPIRE", key, _COPY_MS)]
    if sum(part.sizes) != len(part.value):
        raise ProtocolError(f"{part.key}: expected items of {sum(part.sizes)} bytes together, got {len(part.value)} bytes")
    items = [part.value[a:b] for a, b in pairwise(accumulate(part.sizes, initial=0))]
    return [("RPUSH", key, *items), ("PEXPIRE", key, _COPY_MS)]


def take(state: Connection, keys: SlotKeys, version: int, copy: str) -> None:
    """Give the slot what was copied under that name, durably; nothing for ''. ProtocolError if a part is missing."""
    if copy and state.call("FCALL", "udo_take", 1, keys.prefix, copy, version) < 0:
        raise ProtocolError(f"what was handed over to {keys} by version {version} of the group map has come in part; expected all of it")
    synced(state, _WHAT)
    if copy:
        forget_copy(state, keys, copy)


def forget_copy(state: Connection, keys: SlotKeys, copy: str) -> None:
    """Remove what is left of a copy that was begun ahead; what the slot has got of it stays."""
    staged = keys.taking(copy)
    left = state.call("SMEMBERS", staged.named(_WRITTEN))
    state.call("UNLINK", staged.named(_WRITTEN), *(staged.named(bytes(name).decode()) for name in left))


def leave_out(state: Connection, keys: SlotKeys, version: int) -> None:
    """Count that version as received, durably, without what was handed over."""
    state.call("SET", keys.taken, version)
    synced(state, _WHAT)
