"""The content of a checkpoint: changed groups, records of sessions, dead letters. The driver writes it.

A group's values are stored as a base and the changes after it; the changes are folded into a new base when they are larger than the base.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from udo_protocol.state.dead_letters import KeyedName
from udo_protocol.state.pieces import PiecePlace
from udo_protocol.state.session_record import SessionRecord
from udo_runtime.state.groups import Group
from udo_runtime.state.session import Session

# Changes below this are not worth folding, however small the base.
FOLD_BYTES = 8 << 10
# Changes are folded when they are larger than this many bases: usually; in a checkpoint before the cut of a move, for which events wait.
FOLD, FOLD_BEFORE_CUT = 1, 4
# Folding groups, and rewriting those of a former version, is spread over checkpoints, so that none takes long: each writes about this
# many bytes of bases, plus twice the bytes of changes, which is the eventual cost of folding per change.
_WHOLE_BYTES, _WHOLE_SHARE = 4 << 20, 2


@dataclass(frozen=True, slots=True)
class Piece:
    """The data written for one group. `delta`: the changed values. `base`: a new piece, which `delta` is a part of or follows (`place`)."""

    session: str
    number: int
    meta: bytes
    delta: bytes | None
    base: bytes | None
    place: PiecePlace  # the place after this write


@dataclass(frozen=True)
class LetterChanges:
    """Changes to a keyed slot's dead letters. `put` and `moved` name the hash that is to hold them, `gone` the hash that held them.
    `failed`: those that were sent again and failed again, with their new reasons."""

    put: Sequence[tuple[str, KeyedName, bytes]] = ()
    moved: Sequence[tuple[str, str, KeyedName]] = ()  # from, to
    failed: Mapping[KeyedName, bytes] = field(default_factory=dict)
    marks: Mapping[KeyedName, int | None] = field(default_factory=dict)  # the epoch that has sent it again; None: it failed
    gone: Sequence[tuple[str, KeyedName]] = ()


@dataclass(frozen=True)
class CheckpointContent:
    """One checkpoint. `records`: those of changed sessions; `dropped`: removed groups, by session. A session with dropped groups and
    without a record has ended."""

    pieces: Sequence[Piece]
    records: Mapping[str, SessionRecord]
    dropped: Mapping[str, set[int]]
    letters: LetterChanges


def changed(
    sessions: Iterable[Session], names: Iterator[str], *, fold: int | None = FOLD, close: bool = False
) -> tuple[list[Piece], dict[str, SessionRecord]]:
    """The data to write for all groups that changed since the last checkpoint, and the records of changed sessions.

    `names`: names for new pieces, which no piece of the slot ever had. `fold`: fold changes that are larger than this many bases, None:
    none; groups of a former version are rewritten only with FOLD. `close`: also close all keys, so that the next checkpoint packs only
    those that have been opened since.
    """
    pieces: list[Piece] = []
    records: dict[str, SessionRecord] = {}
    whole, changes = 0, 0  # bytes
    for session in sessions:
        session.pack(close=close)
        numbers = session.groups if session.former else session.unsaved
        for number, group in [(n, session.groups[n]) for n in numbers if n in session.groups]:
            room = whole < _WHOLE_BYTES + _WHOLE_SHARE * changes
            renew = room and group.former and fold == FOLD
            if renew:
                group.migrate_all()
            if group.changed or group.touched or renew:
                piece, fresh = _piece(session.name, number, group, names, fold=fold if room else None, renew=renew)
                changes += fresh
                whole += 0 if piece.base is None else piece.place.bytes
                pieces.append(piece)
        if session.changed:
            records[session.name] = record(session)
    return pieces, records


def _piece(session: str, number: int, group: Group, names: Iterator[str], *, fold: int | None, renew: bool) -> tuple[Piece, int]:
    """The data to write for a group, and the bytes of what changed since the last checkpoint."""
    delta, base, place, fresh = None, None, group.place, 0
    if not place.piece:
        place = PiecePlace(next(names))
    if group.changed or renew:
        delta = group.delta()
        fresh = len(delta)
        if renew or (fold is not None and group.outgrown(place.change_bytes + fresh, FOLD_BYTES, fold)):
            base, change = group.fold()
            place, group.former = PiecePlace(next(names), base_bytes=len(base)), False
            if change is not None:
                delta, place = change, place._replace(changes=1, change_bytes=len(change))
        else:
            place = PiecePlace(place.piece, place.changes + 1, place.base_bytes, place.change_bytes + fresh)
    group.place = place
    group.saves += 1
    return Piece(session, number, group.meta(placed=True), delta, base, place), fresh


def stored(sessions: Iterable[Session], pieces: Iterable[Piece]) -> None:
    """Note that these pieces and all sessions' records are durable."""
    by_name = {session.name: session for session in sessions}
    for piece in pieces:
        by_name[piece.session].groups[piece.number].saved()
    for session in by_name.values():
        session.changed = False
        session.unsaved.clear()
        session.former = session.former and any(group.former for group in session.groups.values())


def record(session: Session) -> SessionRecord:
    """A session's record in a checkpoint, beside its groups."""
    restoring = None if session.restoring is None else [(n, *label) for n, label in session.restoring.items()]
    failed = sorted(session.failed)
    return SessionRecord(session.last_ended, session.run, session.keys, session.size, session.key_groups, failed, restoring)
