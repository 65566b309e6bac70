"""An instance's side of a slot: range reads at its own cursor, answers protected by a fencing token, parking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from udo_protocol.errors import Fenced
from udo_protocol.limits import DEFAULT, INLINE_BYTES, SlotLimits
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection, as_int
from udo_protocol.queue.frame import ERROR, Bytes, Failure, Header, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import next_token, promote

# A parked reader gets a few bytes at once (that it is parked, maybe the outcome of its answers), and the longer rest when it is
# woken: it sleeps through the former.
_ARMED_BYTES = 40


class Emit(StrEnum):
    """The outcome of answers, of a checkpoint or of a trim."""

    EMITTED = "EMITTED"
    FENCED = "FENCED"
    DUPLICATE = "DUPLICATE"
    GAP = "GAP"
    STORED = "STORED"
    TRIMMED = "TRIMMED"
    AHEAD = "AHEAD"  # beyond the last emitted frame


@dataclass(frozen=True, slots=True)
class Read:
    """A range of the log: raw frames from sequence number `first` on, with the slot's base, emitted and owner at that time."""

    first: int
    frames: Sequence[bytes | bytearray]
    base: int
    emitted: int
    owner: int


class SlotReader:
    """An instance's side of a slot: range reads at its own cursor, answers, parking. A standby until its token is the owner."""

    def __init__(self, conn: Connection, keys: SlotKeys, name: str, token: int, limits: SlotLimits = DEFAULT) -> None:
        self.conn, self.keys, self.name, self.token, self.limits = conn, keys, name, token, limits
        self._prefix, self._log, self._out, self._bell = keys.prefix, keys.log, keys.out, keys.bell(name)
        self._heads = ("MGET", keys.base, keys.emitted, keys.owner)
        self._base = 1

    def send_read(self, cursor: int, base: int | None = None, park_ms: int | None = None) -> None:
        """Ask for frames from `cursor` on without waiting; `base` is the log's base at the time of the read, if known.

        With `park_ms` the read waits on the server until there is a frame, so that a woken reader already has the frames;
        then call `woken` before receive_read.
        """
        if base is not None:
            self._base = base
        first = max(cursor - self._base, 0)
        frames = ("LRANGE", self._log, first, first + self.limits.read_frames - 1)
        read: list[Sequence[Arg]] = [("MULTI",), self._heads, frames, ("EXEC",)]
        self.conn.send(read if park_ms is None else [*self._park(cursor, park_ms, "parked"), *read])

    def receive_read(self, cursor: int) -> Read | None:
        """The range, or None if the base moved meanwhile (read again). Frames that a standby must not see are left out."""
        heads, frames = self.conn.receive_transaction(2)
        read = self._read(max(cursor, self._base), frames, heads)
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

    def look(self) -> Read:
        """The slot's base, emitted and owner now, without frames."""
        read = self._read(0, (), self.conn.call(*self._heads))
        self._base = read.base
        return read

    def _read(self, first: int, frames: Sequence[bytes | bytearray], heads: Sequence[Any]) -> Read:
        base, emitted, owner = heads
        try:
            return Read(first, frames, as_int(base, 1), as_int(emitted), as_int(owner))
        except ValueError:
            raise untrusted.broken(f"{self.keys.base} or {self.keys.emitted}", "whole numbers", f"{base!r}, {emitted!r}") from None

    def send_emit(
        self, first: int, answers: Sequence[tuple[str, Sequence[Bytes]]], *, trim: bool = True, failed: bool = False, hold: bool = False
    ) -> None:
        """Send the answers to frames first, first+1 ... as (lane, frame), all or none; pair with emit_reply.

        `trim`: remove the frames from the log in the same step. `failed`: keep them, and let a replay skip their lanes.
        `hold`: small answers may be sent together with the next commands.
        """
        lanes: dict[str, list[Arg]] = {}
        size = 0
        for lane, frame in answers:
            lanes.setdefault(lane, []).append(frame)
            size += sum(map(len, frame))
        inline = size < INLINE_BYTES
        decide: list[Arg] = ["FCALL", "udo_emit", 1, self._prefix, self.token, first, first + len(answers) - 1]
        decide += ["failed" if failed else int(trim), self.limits.retained_bytes, self.limits.lane_ttl_ms, int(inline)]
        for lane, frames in lanes.items():
            decide += [lane, len(frames), *frames] if inline else [lane, len(frames)]
        if inline:
            self._emit_commands = 1
            self.conn.send([decide], hold=hold)
        else:
            commands: list[Sequence[Arg]] = [("RPUSH", self._out(lane), *frames) for lane, frames in lanes.items()]
            self._emit_commands = len(commands) + 1
            self.conn.send_transaction([*commands, decide])

    def emit_reply(self) -> Emit:
        """The outcome of send_emit; Fenced is raised, since nothing else may follow it."""
        return self._outcome(self.conn.reply() if self._emit_commands == 1 else self.conn.receive_transaction(self._emit_commands)[-1])

    def emit(self, first: int, answers: Sequence[tuple[str, Sequence[Bytes]]], *, trim: bool = True, failed: bool = False) -> Emit:
        """send_emit and emit_reply in one."""
        self.send_emit(first, answers, trim=trim, failed=failed)
        return self.emit_reply()

    def trim(self, seq: int) -> Emit:
        """Remove frames up to `seq` from the log, once a checkpoint covers them."""
        return self._outcome(self.conn.call("FCALL", "udo_trim", 1, self._prefix, self.token, seq, self.limits.retained_bytes))

    def pin(self, seq: int, lease_ms: int) -> int:
        """Keep the log from `seq` on from being trimmed for `lease_ms` (0 releases), while a large state loads; returns the base."""
        with untrusted.reading(self.keys.base, "a number"):
            return int(self.conn.call("FCALL", "udo_pin", 1, self._prefix, self.name, seq, lease_ms))

    def _outcome(self, reply: Sequence[Any]) -> Emit:
        status = Emit(reply[0].decode())
        if status is Emit.FENCED:
            raise Fenced(f"instance {self.name}: token {self.token} is not the owner of {self.keys} any more, {reply[1]} is")
        return status

    def park(self, cursor: int, wait_ms: int, *, standby: bool = False) -> bool:
        """Sleep until there is a frame at `cursor` (a standby: until it is promoted); False if nothing came in time."""
        self.conn.send(self._park(cursor, wait_ms, "waiting" if standby else "parked"))
        return self.woken(wait_ms)

    def _park(self, cursor: int, wait_ms: int, group: str) -> list[Sequence[Arg]]:
        """Arm the doorbell, then sleep on it; it rings at once if there is something to do."""
        arm = ("FCALL", "udo_park", 1, self._prefix, self.name, cursor, self.token, group)
        return [arm, ("BLPOP", self._bell, f"{wait_ms / 1000:.3f}")]

    def sleep(self) -> None:
        """Block, after send_read with `park_ms`, until the range has come; the replies before it are received as usual."""
        self.conn.sleep_through(_ARMED_BYTES)

    def woken(self, wait_ms: int) -> bool:
        """Wait for the end of the sleep; False if nothing came in time."""
        timeout_s = wait_ms / 1000 + self.conn.default_timeout_s
        replies = [self.conn.receive(timeout_s) for _ in range(2)]
        for r in replies:
            if isinstance(r, Exception):
                raise r
        return replies[1] is not None

    def sender(self, seq: int) -> tuple[str, int]:
        """The (lane, number) that the log noted for a frame that cannot be decoded."""
        key = self.keys.sizes
        with untrusted.reading(key, "`size number lane`"):
            _, number, lane = bytes(self.conn.call("LINDEX", key, seq - self._base)).decode().split(" ", 2)
            return lane, untrusted.number(number, key)


def fail_head(state: Connection, queue: Connection, keys: SlotKeys, failure: Failure, version: str, *, keyed: bool = False) -> bool:
    """Answer the first unanswered frame with `failure`, as the slot's owner, since the operator dies or hangs on it.

    `keyed`: the frame stays in the log until a checkpoint covers it, and a replay skips its lane.
    """
    token = next_token(state, keys)
    emitted = promote(state, queue, keys, token)
    reader = SlotReader(queue, keys, "node-manager", token)
    read = reader.read(emitted + 1)
    if not read.frames:
        return False
    lane, number = reader.sender(emitted + 1)
    header = Header(lane=lane, number=number, kind=ERROR, version=version, failure=failure)
    return reader.emit(emitted + 1, [(lane, encode(header))], trim=not keyed, failed=keyed) is Emit.EMITTED
