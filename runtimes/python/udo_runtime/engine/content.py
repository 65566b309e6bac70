"""The content of a checkpoint: changed groups, records of sessions, dead letters. Decided here, written by the driver.

A group's values are stored as a base and the changes after it; the changes are folded into a new base when they are larger than the base.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from udo_protocol.state.dead_letters import KeyedName
from udo_protocol.state.pieces import PiecePlace
from udo_runtime.state.groups import Group
from udo_runtime.state.session import Session

# Changes below this are not worth folding, however small the base.
FOLD_BYTES = 8 << 10
# Folding groups, and writing those of a former version anew, is shared out among checkpoints, so that none takes long: each writes
# so much whole, and twice of what changed, which is what folding in the end costs of each change.
_WHOLE_BYTES, _WHOLE_SHARE = 4 << 20, 2


@dataclass(frozen=True, slots=True)
class Piece:
    """What is written of one group. `delta`: the changed values. `base`: all values, in a new piece."""

    session: str
    number: int
    meta: bytes
    delta: bytes | None
    base: bytes | None
    place: PiecePlace  # with this written


@dataclass(frozen=True)
class LetterChanges:
    """What becomes of a keyed slot's dead letters. `put` and `moved` say the hash they are to lie in, `gone` the one they lay in."""

    put: Sequence[tuple[str, KeyedName, bytes]] = ()
    moved: Sequence[tuple[str, str, KeyedName]] = ()  # from, to
    marks: Mapping[KeyedName, int | None] = field(default_factory=dict)  # the epoch that has sent it again; None: it failed
    gone: Sequence[tuple[str, KeyedName]] = ()


@dataclass(frozen=True)
class CheckpointContent:
    """One checkpoint. `records`: of sessions that changed; `dropped`: groups that are removed, by session. A session with such groups and
    without a record has ended."""

    pieces: Sequence[Piece]
    records: Mapping[str, Mapping[str, Any]]
    dropped: Mapping[str, set[int]]
    letters: LetterChanges


def changed(sessions: Iterable[Session], names: Iterator[str]) -> tuple[list[Piece], dict[str, dict[str, Any]]]:
    """What is to be written of all groups that changed since the last checkpoint, and the records of the sessions that did.

    `names` of new pieces: such as no piece of the slot ever had.
    """
    pieces: list[Piece] = []
    records: dict[str, dict[str, Any]] = {}
    whole, changes = 0, 0  # bytes
    for session in sessions:
        session.settle()
        numbers = session.groups if session.former else session.unsaved
        for number, group in [(n, session.groups[n]) for n in numbers if n in session.groups]:
            room = whole < _WHOLE_BYTES + _WHOLE_SHARE * changes
            renew = room and group.former
            if renew:
                group.migrate_all()
            if group.changed or group.touched or renew:
                piece = _piece(session.name, number, group, names, fold=room, renew=renew)
                changes += len(piece.delta or b"")
                whole += len(piece.base or b"")
                pieces.append(piece)
        if session.changed:
            records[session.name] = record(session)
    return pieces, records


def _piece(session: str, number: int, group: Group, names: Iterator[str], *, fold: bool, renew: bool) -> Piece:
    meta, delta, base, place = group.meta(), None, None, group.place
    if not place.piece:
        place = PiecePlace(next(names))
    if group.changed or renew:
        delta = group.delta()
        if renew or (fold and place.change_bytes + len(delta) > max(place.base_bytes, FOLD_BYTES)):
            base = group.snapshot()
            place, group.former = PiecePlace(next(names), base_bytes=len(base)), False
        else:
            place = PiecePlace(place.piece, place.changes + 1, place.base_bytes, place.change_bytes + len(delta))
    group.place = place
    return Piece(session, number, meta, delta, base, place)


def stored(sessions: Iterable[Session], pieces: Iterable[Piece]) -> None:
    """These pieces and all sessions' records are durable."""
    by_name = {session.name: session for session in sessions}
    for piece in pieces:
        by_name[piece.session].groups[piece.number].saved()
    for session in by_name.values():
        session.changed = False
        session.unsaved.clear()
        session.former = session.former and any(group.former for group in session.groups.values())


def record(session: Session) -> dict[str, Any]:
    """What a checkpoint says of a session beside its groups."""
    known: dict[str, Any] = {"last_ended": session.last_ended, "run": session.run, "keys": session.keys, "bytes": session.size}
    known["key_groups"] = session.key_groups
    if session.restoring is not None:
        known["restoring"] = [(n, *label) for n, label in session.restoring.items()]
    return {**known, "failed": sorted(session.failed)}
