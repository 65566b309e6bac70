"""The slot log, as its three parties see it: a lane's producer and collector, the instance, the node manager.

Every decision is taken by a function of udo.lua on the server; this file sends the payload, names the outcome and
waits. Two servers take part: `queue` holds the log and the answers, `state` the tokens and durable values.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any

import pyarrow as pa

from udo_protocol.backoff import LinearBackoff
from udo_protocol.clock import Clock
from udo_protocol.connection import Arg, Connection
from udo_protocol.errors import Conflict, Fenced, LaneExpired, ProtocolError, ServerLost, Stale, TwoProducers
from udo_protocol.frame import ERROR, Bytes, Failure, Frame, Header, decode, encode
from udo_protocol.limits import DEFAULT, Limits
from udo_protocol.schema import from_ipc, schema_id

# Frames below this travel as an argument of the deciding function: one command instead of four (measured: benchmarks latency).
INLINE_BYTES = 8192


# A parked reader gets a few bytes of replies at once (`+OK`, `:0`, to a reader maybe the outcome of its answers) and the rest,
# which is longer, when it is woken: it sleeps through these.
_ARMED_BYTES, _READER_ARMED_BYTES = 10, 40


class Push(StrEnum):
    """What became of a pushed frame."""

    ACCEPTED = "ACCEPTED"
    DUPLICATE = "DUPLICATE"  # it is in the log already
    GAP = "GAP"  # an earlier frame of the lane is missing here: rewind behind `value`
    MOVED = "MOVED"  # the routing table changed: `value` is the new one
    STALE = "STALE"  # a newer attempt has been seen
    BUSY = "BUSY"  # the log is full of unanswered frames
    EXPIRED = "EXPIRED"  # the lane's lease ran out


class Emit(StrEnum):
    """What became of answers, of a checkpoint or of a trim."""

    EMITTED = "EMITTED"
    FENCED = "FENCED"
    DUPLICATE = "DUPLICATE"
    GAP = "GAP"
    STORED = "STORED"
    TRIMMED = "TRIMMED"
    AHEAD = "AHEAD"  # beyond the last emitted frame


@dataclass(frozen=True, slots=True)
class PushReply:
    """Outcome of a push; `value` is the last accepted number, the route table, or the retained bytes."""

    status: Push
    value: Any = None


@dataclass(frozen=True, slots=True)
class Read:
    """A range of the log: raw frames from sequence number `first` on, with what the slot looked like then."""

    first: int
    frames: Sequence[bytes | bytearray]
    base: int
    emitted: int
    owner: int


@dataclass(frozen=True, slots=True)
class SlotStats:
    """A slot's counters; depth counts frames not yet answered."""

    base: int
    emitted: int
    owner: int
    depth_frames: int
    retained_bytes: int
    lanes: int


def install(conn: Connection) -> None:
    """Load the function library on a server; both servers need it before anybody else connects."""
    conn.call("FUNCTION", "LOAD", "REPLACE", (files("udo_protocol") / "udo.lua").read_text("utf-8"))


def _int(value: Any, default: int = 0) -> int:
    return default if value is None else int(value)


class LaneEnd:
    """The producer's and collector's side of one lane in one slot. One thread at a time."""

    def __init__(self, conn: Connection, prefix: str, lane: str, limits: Limits = DEFAULT, clock: Clock | None = None) -> None:
        self.conn, self.prefix, self.lane, self.limits = conn, prefix, lane, limits
        self._out, self._bell = f"{prefix}out:{lane}", f"{prefix}bell:{lane}"
        self._collected = 0
        self._inline: deque[bool] = deque()  # how each push not yet replied to was sent
        self._backoff = LinearBackoff(limits.backoff_increment_us, limits.backoff_ceiling_us, clock)

    def open(self, schema_ipc: bytes) -> int:
        """Register the lane and the schema of its frames; answers the last number accepted (0 for a new lane)."""
        return int(
            self.conn.call("FCALL", "udo_open", 1, self.prefix, self.lane, self.limits.lane_ttl_ms, schema_id(schema_ipc), schema_ipc)
        )

    def push(
        self, n: int, prev: int, frame: Sequence[Bytes], *, route: int = 0, control: bool = False, part: str = "", label: str = ""
    ) -> PushReply:
        """Append frame `n`; `prev` is the number of the last frame this lane sent to this slot (0: none)."""
        self.send_push(n, prev, frame, route=route, control=control, part=part, label=label)
        return self.push_reply()

    def send_push(
        self, n: int, prev: int, frame: Sequence[Bytes], *, route: int = 0, control: bool = False, part: str = "", label: str = ""
    ) -> None:
        """Push without waiting, at any depth: a refused frame refuses those behind it as GAP. Pair with push_reply."""
        size = sum(map(len, frame))
        bound = self.limits.retained_bytes + (self.limits.reserve_bytes if control else 0)
        decide = ("FCALL", "udo_accept", 1, self.prefix, self.lane, n, prev, route, size, bound, self.limits.lane_ttl_ms, part, label)
        self._inline.append(size < INLINE_BYTES)
        if size < INLINE_BYTES:
            self.conn.send([(*decide, frame)])
        else:
            self.conn.send_transaction([("RPUSH", f"{self.prefix}in", frame), decide])

    def push_reply(self) -> PushReply:
        """Outcome of the oldest push not yet replied to."""
        reply = self.conn.reply() if self._inline.popleft() else self.conn.receive_transaction(2)[1]
        return PushReply(Push(reply[0].decode()), reply[1] if len(reply) > 1 else None)

    def poll(self) -> list[Frame]:
        """Answers that are there now, in order."""
        commands: list[Sequence[Arg]] = [("LRANGE", self._out, 0, self.limits.read_frames - 1)]
        if self._collected:
            # What the last poll returned is removed only now: a read whose reply got lost loses no answer.
            commands.insert(0, ("LTRIM", self._out, self._collected, -1))
        self.conn.send(commands)
        replies = [self.conn.receive() for _ in commands]
        if isinstance(replies[-1], Exception):
            raise replies[-1]
        self._collected = len(replies[-1])
        return [decode(f) for f in replies[-1]]

    def collect(self, wait_ms: int) -> list[Frame]:
        """Answers in order; [] after `wait_ms` or when the slot's status changed. LaneExpired if the lane is gone."""
        self._backoff.reset()
        while not self._backoff.at_ceiling:
            if frames := self.poll():
                return frames
            self._backoff.pause()
        return self._park(wait_ms)

    def _park(self, wait_ms: int) -> list[Frame]:
        """Arm the doorbell, sleep on it, read: in one round trip, so that who is woken has the answers in hand."""
        park: Sequence[Arg] = ("FCALL", "udo_park_lane", 1, self.prefix, self.lane, self.limits.lane_ttl_ms)
        trim: Sequence[Arg] = ("LTRIM", self._out, self._collected, -1)
        wait = [("BLPOP", self._bell, f"{wait_ms / 1000:.3f}")] if wait_ms > 0 else []
        self.conn.send([trim, park, *wait, ("LRANGE", self._out, 0, self.limits.read_frames - 1)])
        if wait:
            self.conn.sleep_through(_ARMED_BYTES)
        timeout_s = max(wait_ms, 0) / 1000 + self.conn.default_timeout_s
        replies = [self.conn.receive(timeout_s) for _ in range(3 + len(wait))]
        for r in replies:
            if isinstance(r, Exception):
                raise r
        if replies[1] < 0:
            raise LaneExpired(f"lane {self.lane} was idle for more than {self.limits.lane_ttl_ms / 1000:g} s and has been removed")
        self._collected = len(replies[-1])
        return [decode(f) for f in replies[-1]]

    def schema(self, identity: bytes) -> pa.Schema:
        """The schema of that id, as registered on this slot; ProtocolError if nobody registered it."""
        return stored_schema(self.conn, self.prefix, identity)

    def status(self) -> dict[str, Any] | None:
        """Why the slot does not serve, or None while it does."""
        return slot_status(self.conn, self.prefix)

    def close(self) -> None:
        """Remove all that the lane left behind."""
        self.conn.call("FCALL", "udo_close", 1, self.prefix, self.lane)


class SlotReader:
    """An instance's side: range reads at its own cursor, answers, parking. Shadow until its token is the owner."""

    def __init__(self, conn: Connection, prefix: str, name: str, token: int, limits: Limits = DEFAULT) -> None:
        self.conn, self.prefix, self.name, self.token, self.limits = conn, prefix, name, token, limits
        self._base = 1

    def send_read(self, cursor: int, base: int | None = None, park_ms: int | None = None) -> None:
        """Ask for frames from `cursor` on without waiting; `base` is what the log's base will be by then, if known.

        With `park_ms` the read waits on the server until something is there, so that who is woken has the frames in hand;
        then call `woken` before receive_read.
        """
        if base is not None:
            self._base = base
        first = max(cursor - self._base, 0)
        p = self.prefix
        read: list[Sequence[Arg]] = [("MULTI",), ("MGET", f"{p}base", f"{p}emitted", f"{p}owner")]
        read += [("LRANGE", f"{p}in", first, first + self.limits.read_frames - 1), ("EXEC",)]
        self.conn.send(read if park_ms is None else [*self._park(cursor, park_ms, "parked"), *read])

    def receive_read(self, cursor: int) -> Read | None:
        """The range, or None if the base moved meanwhile (read again). Frames a shadow must not see are left out."""
        (base, emitted, owner), frames = self.conn.receive_transaction(2)
        read = Read(max(cursor, self._base), frames, _int(base, 1), _int(emitted), _int(owner))
        if read.base != self._base:
            self._base = read.base
            return None
        if read.owner != self.token:
            return Read(read.first, frames[: max(read.emitted - read.first + 1, 0)], read.base, read.emitted, read.owner)
        return read

    def read(self, cursor: int) -> Read:
        """Frames from `cursor` on. `first` > `cursor` means that the log was trimmed past it: reload the checkpoint."""
        while True:
            self.send_read(cursor)
            if (read := self.receive_read(cursor)) is not None:
                return read

    def send_emit(
        self, first: int, answers: Sequence[tuple[str, Sequence[Bytes]]], *, trim: bool = True, failed: bool = False, hold: bool = False
    ) -> None:
        """Send the answers to frames first, first+1 ... as (lane, frame), all or none; pair with emit_reply.

        `trim`: the frames leave the log in the same step. `failed`: they stay, and who replays them skips their lanes.
        `hold`: small answers may leave together with what is sent next.
        """
        lanes: dict[str, list[Arg]] = {}
        size = 0
        for lane, frame in answers:
            lanes.setdefault(lane, []).append(frame)
            size += sum(map(len, frame))
        inline = size < INLINE_BYTES
        decide: list[Arg] = ["FCALL", "udo_emit", 1, self.prefix, self.token, first, first + len(answers) - 1]
        decide += ["failed" if failed else int(trim), self.limits.retained_bytes, self.limits.lane_ttl_ms, int(inline)]
        for lane, frames in lanes.items():
            decide += [lane, len(frames), *frames] if inline else [lane, len(frames)]
        if inline:
            self._emit_commands = 1
            self.conn.send([decide], hold=hold)
        else:
            commands: list[Sequence[Arg]] = [("RPUSH", f"{self.prefix}out:{lane}", *frames) for lane, frames in lanes.items()]
            self._emit_commands = len(commands) + 1
            self.conn.send_transaction([*commands, decide])

    def emit_reply(self) -> Emit:
        """Outcome of send_emit; Fenced is raised, since nothing else may follow it."""
        return self._outcome(self.conn.reply() if self._emit_commands == 1 else self.conn.receive_transaction(self._emit_commands)[-1])

    def emit(self, first: int, answers: Sequence[tuple[str, Sequence[Bytes]]], *, trim: bool = True, failed: bool = False) -> Emit:
        """send_emit and emit_reply in one."""
        self.send_emit(first, answers, trim=trim, failed=failed)
        return self.emit_reply()

    def trim(self, seq: int) -> Emit:
        """Take frames up to `seq` off the log, once a checkpoint covers them."""
        return self._outcome(self.conn.call("FCALL", "udo_trim", 1, self.prefix, self.token, seq, self.limits.retained_bytes))

    def pin(self, seq: int, lease_ms: int) -> int:
        """Hold the trim in front of `seq` for that long (0 releases), while a large state loads; answers the base."""
        return int(self.conn.call("FCALL", "udo_pin", 1, self.prefix, self.name, seq, lease_ms))

    def _outcome(self, reply: Sequence[Any]) -> Emit:
        status = Emit(reply[0].decode())
        if status is Emit.FENCED:
            raise Fenced(f"instance {self.name}: token {self.token} is not the owner of {self.prefix} any more, {reply[1]} is")
        return status

    def park(self, cursor: int, wait_ms: int, *, shadow: bool = False) -> bool:
        """Sleep until there is something at `cursor` (a shadow: until it is promoted); False if nothing came in time."""
        self.conn.send(self._park(cursor, wait_ms, "waiting" if shadow else "parked"))
        return self.woken(wait_ms)

    def _park(self, cursor: int, wait_ms: int, group: str) -> list[Sequence[Arg]]:
        """Arm the doorbell, then sleep on it; it rings at once if there is something to do."""
        arm = ("FCALL", "udo_park", 1, self.prefix, self.name, cursor, self.token, group)
        return [arm, ("BLPOP", f"{self.prefix}bell:{self.name}", f"{wait_ms / 1000:.3f}")]

    def sleep(self) -> None:
        """After send_read with `park_ms`: until the range is there; what it answers first is received as ever."""
        self.conn.sleep_through(_READER_ARMED_BYTES)

    def woken(self, wait_ms: int) -> bool:
        """Wait for the end of the sleep; False if nothing came in time."""
        timeout_s = wait_ms / 1000 + self.conn.default_timeout_s
        replies = [self.conn.receive(timeout_s) for _ in range(2)]
        for r in replies:
            if isinstance(r, Exception):
                raise r
        return replies[1] is not None

    def sender(self, seq: int) -> tuple[str, int]:
        """(lane, number) that the log noted for a frame that cannot be decoded."""
        entry = bytes(self.conn.call("LINDEX", f"{self.prefix}sizes", seq - self._base)).decode()
        _, number, lane = entry.split(" ", 2)
        return lane, int(number)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What durable state covers: frames up to `seq` of the queue server's run `incarnation`, and answers not yet emitted.

    `riding` are the answers, as (lane, frame), to the last frames of the range: they were made durable with the state and
    are emitted from here if their instance died before it could.
    """

    seq: int = 0
    incarnation: str = ""
    riding: Sequence[tuple[str, bytes | bytearray]] = ()


def checkpoint(
    state: Connection,
    prefix: str,
    token: int,
    covers: Checkpoint,
    emitted: int,
    writes: Sequence[Sequence[Arg]],
    wait_ms: int = 10_000,
) -> Emit:
    """Make `writes` (commands on the slot's keys) and what they cover durable in one step; AHEAD beyond emitted + riding.

    Fenced by WATCH: sound here, since nothing is sent behind the transaction before its outcome is known, and payload may
    be large. Returns when it is on disk (WAITAOF on the same connection); ServerLost if that takes longer than `wait_ms`.
    """
    if covers.seq > emitted + len(covers.riding):
        return Emit.AHEAD
    riding: list[Arg] = [part for lane, frame in covers.riding for part in (lane, frame)]
    commands: list[Sequence[Arg]] = [
        *writes,
        ("SET", f"{prefix}ckpt", f"{covers.seq} {covers.incarnation}"),
        ("DEL", f"{prefix}riding"),
    ]
    if riding:
        commands.append(("RPUSH", f"{prefix}riding", *riding))
    _write_as_owner(state, prefix, token, commands, f"checkpoint {covers.seq}", wait_ms)
    return Emit.STORED


def amend(state: Connection, prefix: str, token: int, writes: Sequence[Sequence[Arg]], wait_ms: int = 10_000) -> None:
    """Make `writes` durable in one step, as the owner, without covering anything: state is replaced from outside."""
    _write_as_owner(state, prefix, token, writes, "a change of state", wait_ms)


def _write_as_owner(state: Connection, prefix: str, token: int, commands: Sequence[Sequence[Arg]], what: str, wait_ms: int) -> None:
    state.send([("WATCH", f"{prefix}owner"), ("GET", f"{prefix}owner")])
    state.receive()
    owner = state.receive()
    if _int(owner) != token:
        state.call("UNWATCH")
        raise Fenced(f"token {token} is not the owner of {prefix} any more, {_int(owner)} is")
    state.send([("MULTI",), *commands, ("EXEC",), ("WAITAOF", 1, 0, wait_ms)])
    replies = [state.receive(wait_ms / 1000 + state.default_timeout_s) for _ in range(len(commands) + 3)]
    for r in (*replies, *(replies[-2] or ())):
        if isinstance(r, Exception):
            raise r
    if replies[-2] is None:
        raise Fenced(f"token {token} lost {prefix} while it wrote {what}")
    if replies[-1][0] < 1:
        raise ServerLost(f"the state server on {state.path} did not make {what} of {prefix} durable within {wait_ms} ms")


def load_checkpoint(state: Connection, prefix: str) -> Checkpoint:
    """What durable state covers; Checkpoint() if there is none."""
    covers, riding = state.transaction([("GET", f"{prefix}ckpt"), ("LRANGE", f"{prefix}riding", 0, -1)])
    if covers is None:
        return Checkpoint()
    seq, _, incarnation = bytes(covers).decode().partition(" ")
    return Checkpoint(int(seq), incarnation, [(bytes(lane).decode(), f) for lane, f in zip(riding[::2], riding[1::2], strict=True)])


def run_ordinal(state: Connection, prefix: str, session: str, run: str, call: str = "", started_ms: int = 0) -> int:
    """1, 2, 3 ...: the session's runs as they were first seen; TwoProducers for a second call in one.

    Stale for a run that started before the newest one and is only seen now: numbered by sight, a late task of a driver
    that is gone would make the driver's successor stale for ever (tests/model, runs_in_start_order).
    """
    ordinal, known = state.call("FCALL", "udo_run", 1, prefix, session, run, call, started_ms)
    if ordinal < 0:
        raise Stale(
            f"session {session} of {prefix.split(':')[1]}: a run of the query that was planned later is known, this one's answers do not "
            "count. If it is the newest, build its DataFrame anew (call udo(...) again) before starting it"
        )
    if bytes(known).decode() != call:
        raise TwoProducers(
            f"session {session} of {prefix.split(':')[1]} is used by two calls in one query; give each a name: udo(..., uid='first')"
        )
    return int(ordinal)


def uses(queue: Connection, prefix: str, session: str, lane: str) -> None:
    """Note that a lane of this keyed session is being opened; says later who uses the session (see `users`)."""
    queue.call("FCALL", "udo_uses", 1, prefix, session, lane)


def users(queue: Connection, prefix: str, session: str) -> tuple[list[str], int]:
    """The session's lanes that are open now, and when one was last opened, in ms since 1970 (0: not known)."""
    flat = queue.call("ZRANGE", f"{prefix}used:{session}", 0, -1, "WITHSCORES")
    lanes = [bytes(lane).decode() for lane in flat[::2]]
    if not lanes:
        return [], 0
    there = queue.transaction([("EXISTS", f"{prefix}lane:{lane}") for lane in lanes])
    return [lane for lane, n in zip(lanes, there, strict=True) if n], int(flat[-1])


def next_token(state: Connection, prefix: str) -> int:
    """A token newer than all before it."""
    return int(state.call("INCR", f"{prefix}tokens"))


def promote(state: Connection, queue: Connection, prefix: str, token: int) -> int:
    """Make `token` the owner, on the state server first. Answers `emitted`; Fenced if a newer one owns the slot."""
    for conn in (state, queue):
        status, value = conn.call("FCALL", "udo_promote", 1, prefix, token)
        if status == b"FENCED":
            raise Fenced(f"token {token} is older than the owner {value} of {prefix}")
    return int(value)


def slot_stats(queue: Connection, prefix: str) -> SlotStats:
    """Counters of a slot."""
    p = prefix
    (base, emitted, owner, size), length, lanes = queue.transaction(
        [("MGET", f"{p}base", f"{p}emitted", f"{p}owner", f"{p}bytes"), ("LLEN", f"{p}in"), ("SCARD", f"{p}lanes")]
    )
    tail = _int(base, 1) + length - 1
    return SlotStats(_int(base, 1), _int(emitted), _int(owner), max(tail - _int(emitted), 0), _int(size), lanes)


def set_status(queue: Connection, prefix: str, why: Mapping[str, Any] | None) -> None:
    """Say why the slot does not serve (code, message, ...), or None: it does. Waiting producers wake to see it."""
    queue.call("FCALL", "udo_status", 1, prefix, "" if why is None else json.dumps(why))


def slot_status(queue: Connection, prefix: str) -> dict[str, Any] | None:
    """Why the slot does not serve, or None while it does."""
    text = queue.call("GET", f"{prefix}status")
    return None if text is None else json.loads(bytes(text))


def fail_head(state: Connection, queue: Connection, prefix: str, failure: Failure, version: str, *, keyed: bool = False) -> bool:
    """Answer the first unanswered frame with `failure`, as its owner, for an operator that dies of it or hangs on it.

    `keyed`: the frame stays in the log until a checkpoint covers it, and who replays it is told to skip its lane.
    """
    token = next_token(state, prefix)
    emitted = promote(state, queue, prefix, token)
    reader = SlotReader(queue, prefix, "node-manager", token)
    read = reader.read(emitted + 1)
    if not read.frames:
        return False
    lane, number = reader.sender(emitted + 1)
    header = Header(lane=lane, number=number, kind=ERROR, version=version, failure=failure)
    return reader.emit(emitted + 1, [(lane, encode(header))], trim=not keyed, failed=keyed) is Emit.EMITTED


def cut(state: Connection, prefix: str) -> dict[str, tuple[int, str]]:
    """Sessions that were dropped or replaced: frames up to (seq, of that run of the queue server) belong to what was there before."""
    flat = state.call("HGETALL", f"{prefix}cut")
    found = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        seq, _, incarnation = bytes(value).decode().partition(" ")
        found[bytes(name).decode()] = (int(seq), incarnation)
    return found


def failed_lanes(queue: Connection, prefix: str) -> set[str]:
    """Lanes a frame of which was answered with an error in a keyed operator's stead."""
    return {bytes(lane).decode() for lane in queue.call("SMEMBERS", f"{prefix}failed")}


def store_schema(queue: Connection, prefix: str, schema_ipc: bytes) -> bytes:
    """Register a schema on the slot and answer its id."""
    identity = schema_id(schema_ipc)
    queue.call("SET", f"{prefix}schema:".encode() + identity, schema_ipc)
    return identity


def stored_schema(queue: Connection, prefix: str, identity: bytes) -> pa.Schema:
    """The schema of that id; ProtocolError if nobody registered it."""
    data = queue.call("GET", f"{prefix}schema:".encode() + identity)
    if data is None:
        raise ProtocolError(f"a frame names schema {identity.hex()}, which nobody registered on {prefix}")
    return from_ipc(bytes(data))


def drop_slot(state: Connection, queue: Connection, prefix: str) -> None:
    """Remove every key of a slot from both servers."""
    if not re.fullmatch(r"udo:[^:*?\[\]]+:\d+:", prefix):
        raise Conflict(f"expected a slot prefix like 'udo:fraud:0:', got {prefix!r}")
    for conn in (state, queue):
        cursor: bytes | str = "0"
        while True:
            cursor, keys = conn.call("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", 1000)
            if keys:
                conn.call("UNLINK", *keys)
            if cursor == b"0":
                break


def report_ready(queue: Connection, prefix: str, instance: str, report: Mapping[str, Any]) -> None:
    """An instance tells the node manager, once, that it loaded or why it could not."""
    key = f"{prefix}ready:{instance}"
    queue.transaction([("RPUSH", key, json.dumps(report)), ("PEXPIRE", key, 600_000)])


def ready(queue: Connection, prefix: str, instance: str, wait_ms: int) -> dict[str, Any] | None:
    """Wait for an instance's report; None if none came in time."""
    reply = queue.call("BLPOP", f"{prefix}ready:{instance}", f"{wait_ms / 1000:.3f}", timeout_s=wait_ms / 1000 + queue.default_timeout_s)
    return None if reply is None else json.loads(bytes(reply[1]))


def read_stats(queue: Connection, prefix: str, instance: str) -> dict[str, float]:
    """An instance's counters (udo_runtime.stats); empty when it has reported none."""
    flat = queue.call("HGETALL", f"{prefix}stats:{instance}")
    return {bytes(k).decode(): float(v) for k, v in zip(flat[::2], flat[1::2], strict=True)}
