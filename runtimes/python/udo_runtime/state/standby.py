"""The state of a standby: it loads the owner's, then applies the owner's changelog, so that a promotion has nothing left to load.

What a standby processes itself, frames that the owner has answered since its last checkpoint, is on trial: the next
checkpoint takes its place, so that the state is always what the version made of it that answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from udo_protocol.errors import Conflict, Fenced, StateLost
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.state import changelog, pieces, turns
from udo_protocol.state.checkpoints import load_checkpoint
from udo_protocol.state.pieces import StoredGroup
from udo_protocol.state.rewinding import SAVEPOINT, gone, kept, rewind
from udo_runtime.engine.content import Piece
from udo_runtime.state.codec import pack_large, unpack
from udo_runtime.state.loading import restored
from udo_runtime.state.session import Session
from udo_runtime.state.versions import Versions

# What was read is kept for so much longer at most: saying where one is costs a write on the state server.
_ADVANCE_S = 0.25
# A promotion takes about as long to come.
_NEARLY_S = 0.05


class ChangelogEntry(NamedTuple):
    """A checkpoint in the changelog: what it covers, its groups, and the sessions that changed or went."""

    seq: int
    pieces: list[tuple[str, int, bytes, bytes | None]]  # session, group, entry of the manifest, changed values
    records: dict[str, str]
    dropped: dict[str, list[int]]


def changelog_entry(seq: int, written: Iterable[Piece], records: Mapping[str, str], dropped: Mapping[str, Iterable[int]]) -> bytes:
    """An entry as it is stored."""
    groups = [(p.session, p.number, pieces.entry(p.place, p.meta), p.delta) for p in written]
    return pack_large([seq, groups, records, {name: sorted(numbers) for name, numbers in dropped.items()}])


class StandbyState:
    """The sessions of a slot as the owner's newest checkpoint left them, and what was done to them on trial since."""

    rewinds = False  # whether the first checkpoint rolls back to an older state
    covered = 0  # what a state that is rolled back to covers
    _savepoint = ""  # which state is loaded: the newest checkpoint's

    def __init__(self, state: Connection, prefix: str, name: str, run_id: str, versions: Versions | None = None) -> None:
        self._state, self._prefix, self._name = state, prefix, name
        self._run_id, self._versions = run_id, versions
        self._position = 0  # in the changelog
        self.gone = ""  # why entries are missing, or do not go on from this state
        self.sessions: dict[str, Session] = {}
        self._records: dict[str, dict[str, Any]] = {}
        self._metas: dict[str, dict[int, bytes]] = {}

    def load(self) -> int:
        """Read all sessions; the sequence number they cover."""
        self._position = changelog.join(self._state, self._prefix, self._name)
        self._renew_at = 0.0
        covers = load_checkpoint(self._state, self._prefix)
        covered = covers.seq if covers.run_id == self._run_id else 0
        self._load_all()
        found = self.sync()
        if self.gone:  # what was read is of one time and of another
            raise Fenced(f"{self.gone}; it was loading the state")
        return covered if found is None else found

    def _load_all(self) -> None:
        for name, text in pieces.records(self._state, self._prefix, self._savepoint).items():
            self._records[name], self._metas[name] = json.loads(text), {}
            self.sessions[name] = restored(name, self._records[name], self._groups(name), self._versions, follow=True)

    def _groups(self, name: str) -> Iterator[tuple[int, StoredGroup]]:
        for n, group in pieces.read(self._state, self._prefix, name, self._savepoint, between=self.keep_lease):
            self._metas[name][n] = group.meta
            yield n, group

    def sync(self) -> int | None:
        """Adopt the checkpoints made since, and drop what was on trial: the sequence number covered. None if there are none."""
        entries = self.read()
        for entry in entries:
            self.adopt(entry)
        return entries[-1].seq if entries else None

    def read(self) -> list[ChangelogEntry]:
        """The checkpoints made since, oldest first; `gone` says afterwards whether these are all."""
        found, self._position, at = changelog.read(self._state, self._prefix, self._name, self._position)
        if at is None or at < 0:
            self.gone = changelog.gone(self._prefix, self._name, at)
        elif found:
            self._renew_at = min(self._renew_at, time.monotonic() + _ADVANCE_S)
        return [ChangelogEntry(*unpack(entry)) for entry in found]

    def adopt(self, entry: ChangelogEntry) -> None:
        """The state is what this checkpoint made of it; what was on trial is dropped."""
        self.take_back()
        for piece in entry.pieces:
            self._adopt(*piece)
        self._close(entry.records, entry.dropped)

    def _adopt(self, name: str, number: int, entry: bytes, delta: bytes | None) -> None:
        session = self.sessions.get(name)
        if session is None:
            session = self.sessions[name] = Session(name, {}, self._versions)
        group = session.groups.get(number)
        if group is None:
            group = session.groups[number] = session.group(number)
            group.follow()
        place, meta = pieces.parsed(entry, f"{self._prefix}changelog")
        group.adopt(meta, delta, place)
        session.former |= group.former
        self._metas.setdefault(name, {})[number] = meta

    def _close(self, records: Mapping[str, str], dropped: Mapping[str, Sequence[int]]) -> None:
        for name, numbers in dropped.items():
            for n in numbers:
                self._metas.get(name, {}).pop(n, None)
                if name in self.sessions:
                    self.sessions[name].groups.pop(n, None)
            self._records.pop(name, None)
            if not self._metas.get(name):
                self._metas.pop(name, None)
                self.sessions.pop(name, None)
        self._records |= {name: json.loads(text) for name, text in records.items()}
        for name, session in self.sessions.items():
            session.renew(**self._records[name])

    def new(self, name: str) -> Session:
        """A session that no checkpoint knows of yet."""
        return Session(name, versions=self._versions)

    def take_back(self) -> None:
        """Drop what was done on trial."""
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
            session.renew(**self._records[name])

    def keep_lease(self) -> None:
        """To be called often; Fenced if entries may be missing."""
        if time.monotonic() > self._renew_at:
            self._renew_at = time.monotonic() + changelog.LEASE_MS / 3000
            changelog.hold(self._state, self._prefix, self._name, self._position)

    def promoted(self) -> None:
        """From here on what is done is for good."""
        for session in self.sessions.values():
            for group in session.groups.values():
                group.originals = None
        self._records, self._metas = {}, {}

    def ending(self) -> Sequence[Sequence[Arg]]:
        """What the first checkpoint begins with: who makes the entries does not read them."""
        return [changelog.leaving(self._prefix, self._name)]


class Readiness:
    """Tells once that a standby is ready: it has, or with `early` very soon will have, tried all that is answered."""

    def __init__(self, queue: Connection, prefix: str, tell: Callable[[], None], *, early: bool) -> None:
        self._queue, self._prefix, self._tell, self._early = queue, prefix, tell, early
        self._since, self._tried = time.perf_counter(), 0
        self._told = self._behind = False

    def tried(self, frames: int, left: int) -> None:
        """So many more; `left` were answered behind them."""
        self._tried += frames
        if self._early and not self._told and (time.perf_counter() - self._since) / self._tried * left < _NEARLY_S:
            turns.behind(self._queue, self._prefix, turns.BEHIND_MS)
            self._tell()
            self._told = self._behind = True

    def all_tried(self) -> None:
        """Nothing is left."""
        if self._behind:
            turns.behind(self._queue, self._prefix, 0)
            self._behind = False
        if not self._told:
            self._tell()
            self._told = True


class RewoundState(StandbyState):
    """The sessions as the savepoint from before an update has them.

    All that came since is on trial until the first checkpoint, which rewinds the durable state in its own step.
    """

    rewinds = True
    _savepoint = SAVEPOINT

    def load(self) -> int:
        p = self._prefix
        found = kept(self._state, p)
        if found is None:
            why = gone(self._state, p) or "the state from before the update is no longer kept"
            raise StateLost(f"{why}: it is too late to roll back")
        if found.run_id != self._run_id:
            raise StateLost("the queue server was lost since the update, and the input with it: it is too late to roll back")
        try:
            self._load_all()
        except Conflict as e:
            raise StateLost(f"{e}: it is too late to roll back") from None
        self.covered = found.seq
        return found.seq

    def sync(self) -> int | None:
        return None

    def keep_lease(self) -> None:
        """It holds no lease: it does not read the changelog."""

    def ending(self) -> Sequence[Sequence[Arg]]:
        if kept(self._state, self._prefix) is None:
            raise Fenced("the state from before the update was deleted meanwhile: it is too late to roll back")
        return [rewind(self._prefix)]
