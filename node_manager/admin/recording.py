"""Records the input of a deployment, frame by frame as it is answered, for `udo record`. Reads only; serving never waits for it.

A leased pin holds the log in front of the recorder's cursor. A consumer that takes the parts too slowly loses the pin, because its
lease ends or the log fills: the log is then trimmed past the cursor, and the recording names the missing frames.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event

from node_manager.config import InstanceConfig
from node_manager.deployments.deployments import NodeDeployment
from node_manager.manager import Manager
from node_manager.slots.slot import Slot
from udo_protocol.errors import NotFound, ProtocolError, ServerLost, UsageError
from udo_protocol.formats.manifest import Manifest
from udo_protocol.queue import route, slot, untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.frame import decode
from udo_protocol.queue.slot_reader import SlotReader
from udo_protocol.state import checkpoints, pieces, savepoints, session_record
from udo_protocol.state.pieces import StoredGroup
from udo_protocol.state.session_record import SessionRecord

# A recorder that does not renew its pin for this long loses it: the longest that a dead recorder can hold up the log.
LEASE_MS = 2_000
# How often the log is polled while there are no frames, and how often the receiver is told so.
_LOOK_S = 0.02
_TICK_S = 1.0
# A token that never owns a slot: the reader sees answered frames only.
_NO_TOKEN = -1


@dataclass(frozen=True)
class RecordingBegin:
    """The recorded slot and version, and the data beside the sessions that an instance starting at `first_seq` finds."""

    slot: Slot
    manifest: Manifest
    digest: str
    config: InstanceConfig
    first_seq: int
    failed: Sequence[str] = ()
    cuts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedSession:
    """A session as the state server holds it at the start; its groups follow."""

    session: str
    record: SessionRecord


@dataclass(frozen=True)
class RecordedGroup:
    """A key group of the RecordedSession before it."""

    number: int
    group: StoredGroup


@dataclass(frozen=True)
class Schema:
    """A schema that the following frames refer to."""

    id: bytes
    ipc: bytes


@dataclass(frozen=True)
class Frames:
    """Consecutive frames from `first_seq` on."""

    first_seq: int
    frames: Sequence[bytes | bytearray]


@dataclass(frozen=True)
class Gap:
    """Frames that were trimmed before they could be read."""

    first_seq: int
    last_seq: int


@dataclass(frozen=True)
class Tick:
    """No frame has arrived for a while."""


@dataclass(frozen=True)
class End:
    """The end of the recording and its reason."""

    reason: str


Part = RecordingBegin | RecordedSession | RecordedGroup | Schema | Frames | Gap | Tick | End


def record(manager: Manager, name: str, number: int | None, for_s: float, frames: int, stop: Event) -> Iterator[Part]:
    """Yield everything that a slot of `name` answers within `for_s` seconds, at most `frames` frames (0: no bound), or until `stop` is set.

    `number`: the slot's; None if it is the only one on this node.
    """
    if for_s <= 0:
        raise UsageError(f"expected a recording time above 0 s; got {for_s:g} s")
    chosen = _chosen(manager.deployments.find(name), number)
    if chosen.wanted is None:
        raise NotFound(f"deployment {name!r} is still starting; see: udo status")
    with (
        contextlib.closing(manager.servers.connect("state")) as state,
        contextlib.closing(manager.servers.connect("queue")) as queue,
    ):
        recorder = _Recorder(chosen, state, queue, for_s, frames, stop)
        try:
            yield from recorder.run()
        finally:
            recorder.close()


def _chosen(deployment: NodeDeployment, number: int | None) -> Slot:
    """The slot to record; each has a log of its own."""
    there = {slot.number: slot for slot in deployment.own}
    numbers, node = ", ".join(map(str, there)), deployment.slot.node.settings.node
    if number is None and len(there) > 1:
        raise UsageError(
            f"deployment {deployment.name!r} has the slots {numbers} on node {node}; expected the number of one: each has a "
            "log of its own, which is recorded by itself. Which key groups each has: udo status"
        )
    found = deployment.slot if number is None else there.get(number)
    if found is None:
        raise NotFound(f"deployment {deployment.name!r} has no slot {number} on node {node}; it has {numbers}")
    return found


class _Recorder:
    """One recording, with connections of its own."""

    def __init__(self, slot_: Slot, state: Connection, queue: Connection, for_s: float, frames: int, stop: Event) -> None:
        self._slot, self._state, self._queue = slot_, state, queue
        self._for_s, self._most, self._stop = for_s, frames, stop
        self._name = f"record-{secrets.token_hex(4)}"  # names its pin on the log and its savepoint
        self.reader = SlotReader(queue, slot_.keys, self._name, _NO_TOKEN)
        assert slot_.wanted is not None
        self._wanted = slot_.wanted
        self._keyed = bool(self._wanted.image.manifest.key)
        self._seen: set[bytes] = set()
        self._cuts: dict[str, int] = {}
        self._answered: set[bytes] = set()

    def run(self) -> Iterator[Part]:
        first = self._pin_state() if self._keyed else self._stateless_start()
        image = self._wanted.image
        failed = sorted(slot.failed_lanes(self._queue, self._slot.keys))
        yield RecordingBegin(self._slot, image.manifest, image.digest, self._wanted.config, first, failed, self._cuts)
        if self._keyed:
            yield from self._sessions(first)
        try:
            yield from self._frames(first)
        except ServerLost as e:
            yield End(f"the node's queue or state server was lost: {e}")

    def _frames(self, cursor: int) -> Iterator[Part]:
        """Yield the frames from `cursor` on that are answered until the deadline, in order."""
        deadline = time.monotonic() + self._for_s
        told = time.monotonic() - _TICK_S  # the first Tick comes at once: the state is complete
        left = self._most or None
        until: int | None = None  # the last frame answered when the time was over
        emitted = 0
        while not self._stop.is_set():
            now = time.monotonic()
            if until is None and now >= deadline:
                until = slot.last_emitted(self._queue, self._slot.keys)
            self._pin(cursor)
            read = self.reader.read(cursor)
            if read.emitted < emitted:
                yield End(f"deployment {self._slot.deployment} was removed meanwhile")
                return
            emitted = read.emitted
            if read.first > cursor:
                yield Gap(cursor, read.first - 1)
                if self._keyed:
                    yield End("frames were trimmed before they could be recorded: what follows depends on them")
                    return
                cursor = read.first
            if (why := self._changed(cursor)) is not None:  # checked after the read: the frames read belong to the recorded state
                yield End(why)
                return
            frames = read.frames if left is None else read.frames[:left]
            if until is not None:
                frames = frames[: max(until - cursor + 1, 0)]
            if frames:
                yield from self._schemas(frames)
                yield Frames(cursor, frames)
                cursor, told = cursor + len(frames), now
                if left is not None and (left := left - len(frames)) == 0:
                    yield End(f"it has {self._most} frames")
                    return
            elif until is not None:
                yield End(f"{self._for_s:g} s are over")
                return
            else:
                if now - told >= _TICK_S:
                    yield Tick()
                    told = now
                self._stop.wait(min(_LOOK_S, max(deadline - now, 0.0)))

    def _changed(self, cursor: int) -> str | None:
        """Why the frames from `cursor` on do not continue the recorded state, which was changed from outside; None if they do."""
        if not self._keyed:
            return None
        if route.told(self._queue, self._slot.keys)[1] >= cursor:
            return "key groups were moved to other slots or from there"
        cuts = self._cuts_now()
        changed = sorted(s for s, seq in cuts.items() if self._cuts.get(s) != seq)
        if changed:
            return f"the state of session {', '.join(changed)} was dropped or replaced from outside"
        if self._sent_again() - self._answered:
            return "dead letters are sent again with the next micro-batch, and the frames do not hold them"
        return None

    def _sent_again(self, *, waiting: bool = True) -> set[bytes]:
        """The names of dead letters that a recent epoch has processed, and with `waiting` also of those marked to be sent again."""
        (flat,) = untrusted.read(self._state, ("HGETALL", self._slot.keys.replay))
        return {bytes(name) for name, epoch in zip(flat[::2], flat[1::2], strict=True) if waiting or epoch}

    def _schemas(self, frames: Sequence[bytes | bytearray]) -> Iterator[Schema]:
        for data in frames:
            try:
                identity = decode(data).header.schema
            except ProtocolError:  # recorded as it is: the instance answers it with an error, and so will a replay
                continue
            if identity and identity not in self._seen:
                self._seen.add(identity)
                if (ipc := slot.stored_schema_ipc(self._queue, self._slot.keys, identity)) is not None:
                    yield Schema(identity, ipc)

    # -- the start ---------------------------------------------------------------------------------------------------

    def _stateless_start(self) -> int:
        """Pin the first unanswered frame; return its number."""
        seq = slot.last_emitted(self._queue, self._slot.keys) + 1
        return max(seq, self._pin(seq))

    def _pin_state(self) -> int:
        """Pin the newest checkpoint; return the number of the first frame that it does not cover."""
        state, keys = self._state, self._slot.keys
        base, pinned = 1, 0
        while base != pinned:  # then the log holds all frames that a checkpoint read from now on does not cover
            pinned = base
            base = self._pin(pinned)
        while True:
            self._cuts, self._answered = self._cuts_now(), self._sent_again(waiting=False)
            savepoints.make(state, keys, self._name)
            if self._cuts_now() == self._cuts:
                break
        covers = checkpoints.pinned_checkpoint(state, keys, self._name)
        seq = covers.seq if covers.run_id == self._queue.run_id else 0  # else it is from a lost queue server: the log began anew
        self._pin(seq + 1)
        return seq + 1

    def _sessions(self, first: int) -> Iterator[Part]:
        """Yield all sessions as the savepoint has them, then drop it."""
        state, keys, hold = self._state, self._slot.keys, savepoints.holding(self._state, self._slot.keys, self._name)
        for name, record in session_record.read(state, keys, self._name).items():
            yield RecordedSession(name, record)
            for number, group in pieces.read(state, keys, name, self._name, between=hold):
                yield RecordedGroup(number, group)
                self._pin(first)
        savepoints.drop(state, keys, self._name)

    def close(self) -> None:
        """Release the pin and the savepoint."""
        with contextlib.suppress(ServerLost, OSError):
            self.reader.pin(0, 0)
        if self._keyed:
            with contextlib.suppress(ServerLost, OSError):
                savepoints.drop(self._state, self._slot.keys, self._name)

    def _pin(self, seq: int) -> int:
        return self.reader.pin(seq, LEASE_MS)

    def _cuts_now(self) -> dict[str, int]:
        return {s: seq for s, (seq, run) in checkpoints.cut(self._state, self._slot.keys).items() if run == self._queue.run_id}
