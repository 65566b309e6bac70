"""The owner of a keyed slot: loads state on demand, sends answers, writes checkpoints, trims."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from udo_protocol import supervised
from udo_protocol.errors import ProtocolError
from udo_protocol.queue import route
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.slot import failed_lanes
from udo_protocol.queue.slot_reader import Emit, Read
from udo_protocol.state import moving, rewinding, turns
from udo_runtime.drivers.link import Link, Stopped
from udo_runtime.drivers.perform import Performer
from udo_runtime.durable.ahead import AheadOfMove
from udo_runtime.durable.ledger import Ledger
from udo_runtime.durable.sessions import Durable
from udo_runtime.engine.effects import (
    FindTold,
    FreeGroups,
    LetterSizes,
    LoadAdopted,
    LoadSession,
    Prepare,
    ReadLetters,
    ReadReplays,
    Send,
    Trim,
    WriteCheckpoint,
    run,
)
from udo_runtime.engine.keyed_engine import Engine, Start
from udo_runtime.state.adopted import Adopted
from udo_runtime.state.session import Session

# Once this much time has passed, the answers so far are sent: those of a slow operator do not wait for later frames.
_EMIT_S = 0.002
# Groups that have left are freed one by one with this pause in between: to free a GB of small values takes a tenth of a second, just when
# their new owner begins to serve. Up to so many keys are freed at once.
_FREED_EVERY_S, _FREED_KEYS = 0.005, 1000


class KeyedOwner:
    """The driver of an owner's engine. `beside`: commands for the transaction of the first checkpoint. `connect`: opens another
    connection to the state server."""

    def __init__(
        self, link: Link, engine: Engine, perform: Performer, durable: Durable, ledger: Ledger, connect: Callable[[], Connection]
    ) -> None:
        self.engine, self.durable, self.ledger = engine, durable, ledger
        self.beside: Sequence[Sequence[Arg]] = ()
        self._link, self._perform = link, perform
        self._ending = False  # an epoch has ended, and no frame of the next has been answered
        perform.on(LoadSession, lambda e: durable.load(e.name))
        self._connect, self._ahead = connect, dict[int, AheadOfMove]()  # version of the map -> groups read ahead
        perform.on(FindTold, lambda _: route.told(link.conn, link.keys))
        perform.on(Prepare, self._prepare)
        perform.on(LoadAdopted, self._adopted)
        perform.on(FreeGroups, free_groups)
        perform.on(ReadReplays, lambda _: ledger.replays())
        perform.on(ReadLetters, lambda e: ledger.bodies(e.names))
        perform.on(LetterSizes, lambda _: ledger.sizes())
        perform.on(Send, self.send)
        perform.on(WriteCheckpoint, self.store)
        perform.on(Trim, lambda e: link.reader.trim(e.seq))

    def begin(self, read: Read) -> int:
        """Begin after a promotion without having been a standby; the state is loaded on demand. Returns the frame to continue from."""
        self.engine.restart(self.start({}, unseen=self.durable.maybe_former()))
        return self.take(read)

    def _prepare(self, effect: Prepare) -> None:
        same, groups = self._ahead.get(effect.version), frozenset(effect.groups)
        if same is not None and (same.groups, same.copy) == (groups, effect.copy):
            same.again()
            return
        self._forget_ahead(lambda version, old: version == effect.version or bool(old.groups & groups))
        self._ahead[effect.version] = self.durable.ahead(self._connect, effect)

    def _forget_ahead(self, which: Callable[[int, AheadOfMove], bool]) -> None:
        """Stop reading ahead for moves that will not take place."""
        for version in [v for v, old in self._ahead.items() if which(v, old)]:
            self._ahead.pop(version).stop()

    def _adopted(self, effect: LoadAdopted) -> Adopted:
        name = moving.adopted(effect.version)
        self._forget_ahead(lambda version, _: version < effect.version)
        ahead = self._ahead.pop(effect.version, None)
        return Adopted(self.durable.adopted(effect.version, effect.loaded, ahead), self.ledger.adopted(name))

    def start(self, sessions: dict[str, Session], unseen: Sequence[str] = ()) -> Start:
        """What an engine starts from, given the sessions of the newest checkpoint."""
        return Start(sessions, failed_lanes(self._link.conn, self._link.keys), self.durable.cuts(), self.ledger.sizes(), unseen)

    def take(self, read: Read) -> int:
        """Take over after a promotion: send the riding answers of the newest checkpoint. Returns the frame to continue from."""
        if not self.durable.kept():
            rewinding.release(self._link.conn, self._link.keys)  # a version restored by a rollback may have died before this
        covers = self.durable.covered()
        if covers.riding:  # the instance that made this checkpoint may have died before the replicas held it
            self.durable.await_replicas(self._waiting)
        return run(self.engine.take(covers.seq, covers.riding, read.emitted), self._perform)

    def expected_base(self, cursor: int) -> int | None:
        """None: the log begins where the last checkpoint ends, which the reader knows."""
        return None

    def answer(self, seq: int, frames: Sequence[bytes | bytearray]) -> int:
        """Answer these frames; those answered before are only processed."""
        since = time.perf_counter()
        for at, data in enumerate(frames, seq):
            run(self.engine.serve(at, data), self._perform)
            if time.perf_counter() - since > _EMIT_S:
                run(self.engine.send(), self._perform)
                since = time.perf_counter()
        run(self.engine.flush(seq + len(frames) - 1), self._perform)
        return seq + len(frames)

    def settle(self) -> None:
        """Do nothing: no reply is outstanding after a step."""

    def send(self, effect: Send) -> None:
        """Send answers."""
        outcome = self._link.reader.emit(effect.first, effect.answers, trim=False)
        if outcome is not Emit.EMITTED:
            raise ProtocolError(f"instance {self._link.name} answered out of turn: {outcome}")
        self._link.counters.bytes_out += sum(len(part) for _, frame in effect.answers for part in frame)
        if effect.ends or self._ending:
            turns.turning(self._link.conn, self._link.keys, turns.NEXT_MS if effect.ends else 0)
            self._ending = effect.ends

    def _waiting(self) -> None:
        """Called while waiting for replicas: raise if told to stop, or if the node manager is gone."""
        self._link.housekeeping()
        if self._link.stopping:
            raise Stopped

    def store(self, effect: WriteCheckpoint) -> None:
        """Write a checkpoint durably."""
        if effect.ends:
            turns.turning(self._link.conn, self._link.keys, turns.ON_DISK_MS)
        beside = [*self.beside, *self.ledger.commands(effect.content.letters)]
        self.durable.save(effect, beside=beside, between=self._waiting)
        self.beside = ()


def free_groups(effect: FreeGroups) -> None:
    """Free the memory of groups, in a thread of its own unless there is little."""
    groups = effect.groups
    if sum(group.keys for group in groups) <= _FREED_KEYS:
        groups.clear()
        return

    def free() -> None:
        while groups:
            groups.pop()
            time.sleep(_FREED_EVERY_S)

    supervised.once("free-groups", free)
