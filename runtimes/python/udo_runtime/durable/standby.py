"""The state of a standby: loads the owner's state, then applies the owner's changelog, so that a promotion need not load anything.

A standby processes frames that the owner has answered since its last checkpoint tentatively: the next checkpoint replaces the result, so
that the state of a complete epoch is always that of the version that answered it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from udo_protocol.errors import Conflict, Fenced, StateLost
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import changelog, pieces, session_record, turns
from udo_protocol.state.changelog import LoggedCheckpoint
from udo_protocol.state.checkpoints import load_checkpoint
from udo_protocol.state.pieces import StoredGroup
from udo_protocol.state.rewinding import SAVEPOINT, gone, kept, rewind
from udo_protocol.state.session_record import SessionRecord
from udo_runtime.engine.content import Piece
from udo_runtime.state.codec import pack_large, unpack
from udo_runtime.state.session import Session
from udo_runtime.state.stored_session import restored
from udo_runtime.state.stored_values import saves_in
from udo_runtime.state.versions import Versions

# Entries that have been read are kept for at most this long: reporting the position is a write on the state server.
_ADVANCE_S = 0.25
# A standby reports early if its remaining frames will take less time than this, which is about the time from the report to the promotion.
_NEARLY_S = 0.05


class ChangelogEntry(NamedTuple):
    """A checkpoint in the changelog. `seq`: the last frame covered; `records`: those of changed sessions; `dropped`: groups, by session."""

    seq: int
    pieces: list[tuple[str, int, bytes, bytes | None]]  # session, group, entry of the manifest, changed values
    records: dict[str, str]
    dropped: dict[str, list[int]]


def changelog_entry(
    seq: int, written: Iterable[Piece], records: Mapping[str, str], dropped: Mapping[str, Iterable[int]]
) -> LoggedCheckpoint:
    """The stored form of an entry."""
    head = pack_large([seq, records, {name: sorted(numbers) for name, numbers in dropped.items()}])
    return LoggedCheckpoint(head, [(f"{p.number} {p.session}", pack_large([pieces.entry(p.place, p.meta), p.delta])) for p in written])


def _parsed(stored: LoggedCheckpoint) -> ChangelogEntry:
    seq, records, dropped = unpack(stored.head)
    groups = []
    for name, part in stored.parts:
        number, _, session = name.partition(" ")
        groups.append((session, int(number), *unpack(part)))
    return ChangelogEntry(seq, groups, records, dropped)


class StandbyState:
    """The sessions of a slot from the owner's newest checkpoint, changed by the frames processed tentatively since.

    `groups`: only these key groups (and event times); None: all.
    """

    rewinds = False  # whether the first checkpoint restores a savepoint
    covered = 0  # the last frame that this savepoint covers
    _savepoint = ""  # the savepoint to load; '': the newest checkpoint

    def __init__(
        self,
        state: Connection,
        keys: SlotKeys,
        name: str,
        run_id: str,
        versions: Versions | None = None,
        groups: Collection[int] | None = None,
    ) -> None:
        self._state, self._keys, self._name = state, keys, name
        self._run_id, self._versions, self._only = run_id, versions, groups
        self.require_types(True)
        self._position = 0  # position in the changelog
        self._ahead: list[ChangelogEntry] = []  # read while the state was loading, not yet applied
        self.gone = ""  # why the changelog no longer continues this state; empty as long as it does
        self.sessions: dict[str, Session] = {}
        self._records: dict[str, SessionRecord] = {}
        self._metas: dict[str, dict[int, bytes]] = {}

    def require_types(self, on: bool) -> None:
        """Switch checks of the types of states on or off (ProcessingError when read): on as long as the other version can continue."""
        if self._versions is not None:
            self._versions.require_types(on)

    def load(self) -> int:
        """Load all sessions; returns the last frame that they cover. Fenced if the state has been replaced in the meantime."""
        self._position = changelog.join(self._state, self._keys, self._name)
        self._renew_at = self._look_at = 0.0
        covers = load_checkpoint(self._state, self._keys)
        covered = covers.seq if covers.run_id == self._run_id else 0
        self._load_all()
        found = self.sync()
        self._require_all()
        return covered if found is None else found

    def _require_all(self) -> None:
        if self.gone:  # parts of the loaded state may be of different checkpoints
            raise Fenced(f"{self.gone}; it was loading the state")

    def _load_all(self) -> None:
        for name, record in session_record.read(self._state, self._keys, self._savepoint).items():
            self._records[name], self._metas[name] = record, {}
            self.sessions[name] = restored(name, self._records[name], self._groups(name), self._versions, follow=True)

    def _groups(self, name: str) -> Iterator[tuple[int, StoredGroup]]:
        for n, group in pieces.read(self._state, self._keys, name, self._savepoint, groups=self._only, between=self._keep_up):
            self._metas[name][n] = group.meta
            yield n, group

    def _keep_up(self) -> None:
        """Between two reads of the state: take over the new entries, to be applied when all is loaded. The owner keeps only a limited
        number of bytes of them, and may write more than that while the state is loading. Fenced if entries are missing."""
        if time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + _ADVANCE_S
            self._ahead += self._new()
            self._require_all()
        self.keep_lease()

    def sync(self) -> int | None:
        """Apply all new entries of the changelog; returns the last frame covered. None if there are none."""
        entries = self.read()
        for entry in entries:
            self.adopt(entry)
        return entries[-1].seq if entries else None

    def read(self) -> list[ChangelogEntry]:
        """New entries of the changelog, oldest first. Afterwards `gone` is not empty if entries are missing."""
        ahead, self._ahead = self._ahead, []
        return ahead + self._new()

    def _new(self) -> list[ChangelogEntry]:
        found, self._position, at = changelog.read(self._state, self._keys, self._name, self._position, self._only)
        if at is None or at < 0:
            self.gone = changelog.gone(self._keys, self._name, at)
        elif found:
            self._renew_at = min(self._renew_at, time.monotonic() + _ADVANCE_S)
        return [_parsed(entry) for entry in found]

    def adopt(self, entry: ChangelogEntry) -> None:
        """Apply one entry, after undoing tentative changes."""
        self.take_back()
        for name in entry.records.keys() - self.sessions.keys():  # also if none of its groups is read
            self.sessions[name], self._metas[name] = Session(name, {}, self._versions), {}
        for piece in entry.pieces:
            self._adopt(*piece)
        self._close(entry.records, entry.dropped)

    def _adopt(self, name: str, number: int, entry: bytes, delta: bytes | None) -> None:
        session = self.sessions[name]
        group = session.groups.get(number)
        if group is None:
            group = session.groups[number] = session.group(number)
            group.follow()
        place, meta = pieces.parsed(entry, self._keys.changelog)
        if 0 < saves_in(meta) <= group.saves:  # it was read after this entry had been written, and its undo follows from later changes
            return
        group.adopt(meta, delta, place)
        session.former |= group.former
        self._metas[name][number] = meta

    def _close(self, records: Mapping[str, str], dropped: Mapping[str, Sequence[int]]) -> None:
        for name, numbers in dropped.items():
            if name not in records:  # it has ended
                self._records.pop(name, None)
                self._metas.pop(name, None)
                self.sessions.pop(name, None)
                continue
            for n in numbers:
                self._metas[name].pop(n, None)
                self.sessions[name].groups.pop(n, None)
        self._records |= {name: SessionRecord.of(json.loads(text)) for name, text in records.items()}
        for name, session in self.sessions.items():
            session.renew(self._records[name])

    def new(self, name: str) -> Session:
        """A session that is in no checkpoint yet."""
        return Session(name, versions=self._versions)

    def take_back(self) -> None:
        """Undo tentative changes."""
        for name, session in list(self.sessions.items()):
            if name not in self._records:
                del self.sessions[name]
                continue
            metas = self._metas[name]
            for number, group in list(session.groups.items()):
                if number not in metas:
                    del session.groups[number]
                elif group.touched or group.live or group.originals:
                    group.take_back(metas[number])
            session.renew(self._records[name])

    def keep_lease(self) -> None:
        """Renew the lease when it is due; to be called often. Fenced if entries may be missing."""
        if time.monotonic() > self._renew_at:
            self._renew_at = time.monotonic() + changelog.LEASE_MS / 3000
            changelog.hold(self._state, self._keys, self._name, self._position)

    def promoted(self) -> None:
        """Note that the instance is the owner: from now on changes are final."""
        for session in self.sessions.values():
            for group in session.groups.values():
                group.originals = None
        self._records, self._metas = {}, {}

    def ending(self) -> Sequence[Sequence[Arg]]:
        """Commands for the transaction of the owner's first checkpoint: it stops reading the changelog."""
        return [changelog.leaving(self._keys, self._name)]


class Readiness:
    """Calls `tell` once, when a standby has processed all answered frames, or with `early` when it soon will."""

    def __init__(self, queue: Connection, keys: SlotKeys, tell: Callable[[], None], *, early: bool) -> None:
        self._queue, self._keys, self._tell, self._early = queue, keys, tell, early
        self._since, self._tried = time.perf_counter(), 0
        self._told = self._behind = False

    def tried(self, frames: int, left: int) -> None:
        """Note that `frames` more have been processed; `left` answered frames remain."""
        self._tried += frames
        if self._early and not self._told and (time.perf_counter() - self._since) / self._tried * left < _NEARLY_S:
            turns.behind(self._queue, self._keys, turns.BEHIND_MS)
            self._tell()
            self._told = self._behind = True

    def all_tried(self) -> None:
        """Note that no answered frame remains."""
        if self._behind:
            turns.behind(self._queue, self._keys, 0)
            self._behind = False
        if not self._told:
            self._tell()
            self._told = True


class RewoundState(StandbyState):
    """The sessions of the savepoint from before an update, for a rollback.

    All frames since are processed tentatively until the first checkpoint, whose transaction also restores the savepoint.
    """

    rewinds = True
    _savepoint = SAVEPOINT

    def load(self) -> int:
        found = kept(self._state, self._keys)
        if found is None:
            why = gone(self._state, self._keys) or "the state from before the update is no longer kept"
            raise StateLost(f"{why}: it is too late to roll back")
        if found.run_id != self._run_id:
            raise StateLost("the queue server was lost since the update, and the input with it: it is too late to roll back")
        try:
            self._load_all()
        except Conflict as e:
            raise StateLost(f"{e}: it is too late to roll back") from None
        self.covered = found.seq
        return found.seq

    def _keep_up(self) -> None:
        """Do nothing: this state does not read the changelog."""

    def sync(self) -> int | None:
        return None

    def keep_lease(self) -> None:
        """Do nothing: this state does not read the changelog."""

    def ending(self) -> Sequence[Sequence[Arg]]:
        if kept(self._state, self._keys) is None:
            raise Fenced("the state from before the update was deleted meanwhile: it is too late to roll back")
        return [rewind(self._keys)]
