"""Sessions on the state server: loaded when they are first needed; each checkpoint writes what has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from udo_protocol.errors import Fenced, ProtocolError
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection, as_int
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot_reader import Emit
from udo_protocol.state import moving, pieces, replication, rewinding, session_record
from udo_protocol.state.changelog import LoggedCheckpoint
from udo_protocol.state.checkpoints import Checkpoint, OwnedState, cut, load_checkpoint
from udo_protocol.state.checkpoints import checkpoint as store
from udo_protocol.state.pieces import read, removing, writing
from udo_runtime.durable.ahead import AheadOfMove, advance, manifest
from udo_runtime.durable.standby import RewoundState, StandbyState, changelog_entry
from udo_runtime.engine.effects import HandOver, Prepare, TakeIn, WriteCheckpoint
from udo_runtime.state.adopted import AdoptedSession
from udo_runtime.state.session import Session
from udo_runtime.state.stored_session import restored
from udo_runtime.state.versions import Versions

# A session with a checkpoint within this time is in use: its next event must not wait until its groups are loaded.
_IN_USE_S = 60.0


class Durable:
    """The stored state of one slot, for its owner. `run_id`: the queue server's."""

    def __init__(self, owned: OwnedState, run_id: str, versions: Versions | None = None) -> None:
        self._owned, self._state, self._keys, self._run_id, self._versions = owned, owned.server, owned.keys, run_id, versions

    def standby(self, name: str, *, rewind: bool = False, groups: Collection[int] | None = None) -> StandbyState:
        """The state for the instance `name` before it is promoted: that of the owner, or with `rewind` the savepoint from before an update.
        With `groups`, of these key groups only."""
        return (RewoundState if rewind else StandbyState)(self._state, self._keys, name, self._run_id, self._versions, groups)

    def owns(self) -> bool:
        """Whether this instance owns the slot on the state server, which is the first half of its promotion."""
        return as_int(self._state.call("GET", self._keys.owner)) == self._owned.token

    def kept(self) -> bool:
        """Whether the state from before an update is kept, for a rollback."""
        return rewinding.kept(self._state, self._keys) is not None

    def covered(self) -> Checkpoint:
        """The newest checkpoint, if it is of the current run of the queue server; else Checkpoint(): the log has started over since."""
        covers = load_checkpoint(self._state, self._keys)
        return covers if covers.run_id == self._run_id else Checkpoint()

    def failed(self) -> tuple[int, dict[str, set[tuple[int, ...]]]]:
        """(seq covered by the newest checkpoint, session -> attempts that had met an error by then, as (partition, *label))."""
        covers, records = self.covered(), session_record.read(self._state, self._keys)
        return covers.seq, {name: {tuple(f) for f in record.failed} for name, record in records.items()}

    def cuts(self) -> dict[str, int]:
        """Sessions that were dropped or replaced from outside -> the last frame of the log that belongs to the former state."""
        return {name: seq for name, (seq, run) in cut(self._state, self._keys).items() if run == self._run_id}

    def load(self, name: str) -> Session:
        """A session from the newest checkpoint; a new session if none is stored."""
        return load_session(self._state, self._keys, name, self._versions)

    def maybe_former(self) -> list[str]:
        """Sessions that may be stored in a former state version; empty if the operator migrates none."""
        if self._versions is None or not self._versions.migrates:
            return []
        return [bytes(name).decode() for name in self._state.call("HKEYS", self._keys.sessions)]

    def ahead(self, connect: Callable[[], Connection], prepare: Prepare) -> AheadOfMove:
        """Begin to read groups that will belong to this slot, over another connection."""
        return AheadOfMove(connect, self._keys, prepare, self._versions)

    def adopted(self, version: int, loaded: Collection[str], ahead: AheadOfMove | None) -> dict[str, AdoptedSession]:
        """The sessions to be adopted by that version of the map: those `loaded`, those in use, those with failed attempts, which must be
        known, and those with a store: their groups without a label are lost, and this slot's own record may not show that.

        What was read `ahead` counts only if it is from the copy that brought the groups: another one may have changes that were lost since.
        """
        found: dict[str, AdoptedSession] = {}
        if ahead is not None and ahead.copy != moving.copy_taken(self._state, self._keys, version):
            ahead.stop()
            ahead = None
        name = moving.adopted(version)
        for session, record in session_record.read(self._state, self._keys, name).items():
            used = ahead is not None and time.time() - record.at < _IN_USE_S
            if session in loaded or used or record.failed or record.restoring is not None:
                wanted = manifest(self._state, self._keys, session, name)
                have = advance(self._state, self._keys, ahead.take(session, wanted) if ahead else {}, wanted)
                read = pieces.read(self._state, self._keys, session, name, groups=[n for n in wanted if n not in have])
                found[session] = record, {**restored(session, record, read, self._versions).groups, **have}
        return found

    def await_replicas(self, between: Callable[[], None]) -> None:
        """Wait until the slot's replicas hold everything written so far. `between` is called between checks, and may raise.

        Fenced if another instance owns the slot.
        """

        def look() -> None:
            if not self.owns():
                raise Fenced(
                    f"token {self._owned.token} is not the owner of {self._keys} any more; its last checkpoint was not on all replicas"
                )
            between()

        replication.await_held(self._state, self._keys, look)

    def save(
        self, checkpoint: WriteCheckpoint, *, beside: Sequence[Sequence[Arg]] = (), between: Callable[[], None] = lambda: None
    ) -> None:
        """Make a checkpoint durable on this node and all replicas, with the commands `beside` in the same transaction. Fenced if another
        instance owns the slot. `between` is called while it waits for replicas."""
        content, at = checkpoint.content, time.time()
        records = {name: session_record.text(record, at) for name, record in content.records.items()}
        writes: list[Sequence[Arg]] = list(beside)
        for name, numbers in content.dropped.items():
            writes += removing(self._keys, name, numbers)
            if name not in records:
                writes += [("HDEL", self._keys.sessions, name), rewinding.forgetting(self._keys, name)]
        for p in content.pieces:
            changes = [p.delta] if p.delta is not None and p.place.changes else []
            writes += writing(self._keys, p.session, p.number, p.meta, p.place, p.base, changes)
        writes += [("HSET", self._keys.sessions, name, text) for name, text in records.items()]
        match checkpoint.moving:
            case HandOver(version, groups):
                writes.append(moving.handing_over(self._keys, version, groups))
            case TakeIn(version):
                writes.append(moving.taking_in(self._keys, version))
        covers = Checkpoint(checkpoint.seq, self._run_id, checkpoint.riding)

        def entry() -> LoggedCheckpoint:
            return changelog_entry(checkpoint.seq, content.pieces, records, content.dropped)

        stored = store(self._owned, covers, checkpoint.emitted, writes, entry, lambda: self.await_replicas(between))
        if stored is not Emit.STORED:
            raise ProtocolError(f"a checkpoint of {self._keys} at {checkpoint.seq} is ahead of the answers emitted ({checkpoint.emitted})")


def load_session(state: Connection, keys: SlotKeys, name: str, versions: Versions | None = None) -> Session:
    """A session from the newest checkpoint; a new session if none is stored."""
    (record,) = untrusted.read(state, ("HGET", keys.sessions, name))
    if record is None:
        return Session(name, versions=versions)
    return restored(name, session_record.parsed(bytes(record), keys.sessions), read(state, keys, name), versions)
