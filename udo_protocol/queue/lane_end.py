"""A lane's producer and collector for one slot: pushes that the server accepts or refuses, answers in order, parking."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from udo_protocol.clock import Clock
from udo_protocol.errors import LaneExpired, ProtocolError
from udo_protocol.formats.schema import schema_id
from udo_protocol.limits import DEFAULT, INLINE_BYTES, SlotLimits
from udo_protocol.queue import route
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.frame import Bytes, Frame, decode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.route import Route
from udo_protocol.queue.slot import slot_status, stored_schema

# A parked collector gets `+OK` and `:0` at once, and the longer rest when it is woken: it sleeps through these two.
_ARMED_BYTES = 10


class Push(StrEnum):
    """The outcome of a push."""

    ACCEPTED = "ACCEPTED"
    DUPLICATE = "DUPLICATE"  # it is in the log already
    GAP = "GAP"  # an earlier frame of the lane is missing in this slot: resend the frames after `value`
    MOVED = "MOVED"  # the routing table changed: `value` is the new one
    STALE = "STALE"  # a newer attempt has been seen
    BUSY = "BUSY"  # the log is full of unanswered frames
    EXPIRED = "EXPIRED"  # the lane's lease ran out


@dataclass(frozen=True, slots=True)
class PushReply:
    """The reply to a push; `value` is the last accepted number, the route table, or the retained bytes."""

    status: Push
    value: Any = None


def gone(lane: str, limits: SlotLimits) -> str:
    """Why a lane no longer exists."""
    return (
        f"lane {lane} was removed: it was idle for more than {limits.lane_ttl_ms / 1000:g} s, or its operator broke the slot's log, which "
        "was begun anew (udo status says so). Unanswered frames have to be sent again"
    )


class LaneEnd:
    """The producer's and collector's side of one lane in one slot. One thread at a time."""

    def __init__(self, conn: Connection, keys: SlotKeys, lane: str, limits: SlotLimits = DEFAULT, clock: Clock | None = None) -> None:
        self.conn, self.keys, self.lane, self.limits = conn, keys, lane, limits
        self.route = Route(0, (keys.prefix,))
        self._prefix, self._log, self._out, self._bell = keys.prefix, keys.log, keys.out(lane), keys.bell(lane)
        conn.bulk_bytes = limits.answer_bytes
        self._collected = 0
        self._inline: deque[bool] = deque()  # how each push not yet replied to was sent
        self._backoff = LinearBackoff(limits.backoff_increment_us, limits.backoff_ceiling_us, clock)

    def open(self, schema_ipc: bytes) -> int:
        """Register the lane and the schema of its frames; returns the last number accepted (0 for a new lane)."""
        client = self.conn.call("CLIENT", "ID")  # the lane ends with this connection, however this process dies
        schema = (schema_id(schema_ipc), schema_ipc)
        return int(self.conn.call("FCALL", "udo_open", 1, self._prefix, self.lane, self.limits.lane_ttl_ms, *schema, client))

    def accepts_by(self) -> int:
        """The version of the route by which the slot takes frames now."""
        return route.version(self.conn, self.keys)

    def lanes(self) -> int:
        """The number of lanes open in this slot."""
        return int(self.conn.call("SCARD", self.keys.lanes))

    def push(
        self,
        n: int,
        prev: int,
        frame: Sequence[Bytes],
        *,
        control: bool = False,
        part: str = "",
        label: str = "",
        by: int | None = None,
    ) -> PushReply:
        """Append frame `n`; `prev` is the number of the last frame this lane sent to this slot (0: none)."""
        self.send_push(n, prev, frame, control=control, part=part, label=label, by=by)
        return self.push_reply()

    def send_push(
        self,
        n: int,
        prev: int,
        frame: Sequence[Bytes],
        *,
        control: bool = False,
        part: str = "",
        label: str = "",
        by: int | None = None,
    ) -> None:
        """Push without waiting, any number of times: after a refused frame, later ones are refused as GAP. Pair with push_reply.

        `by`: a version of the route other than the one in use.
        """
        size = sum(map(len, frame))
        bound = self.limits.retained_bytes + (self.limits.reserve_bytes if control else 0)
        version, ttl_ms = self.route.version if by is None else by, self.limits.lane_ttl_ms
        decide = ("FCALL", "udo_accept", 1, self._prefix, self.lane, n, prev, version, size, bound, ttl_ms, part, label)
        self._inline.append(size < INLINE_BYTES)
        if size < INLINE_BYTES:
            self.conn.send([(*decide, frame)])
        else:
            self.conn.send_transaction([("RPUSH", self._log, frame), decide])

    def push_reply(self) -> PushReply:
        """Outcome of the oldest push not yet replied to."""
        reply = self.conn.reply() if self._inline.popleft() else self.conn.receive_transaction(2)[1]
        return PushReply(Push(reply[0].decode()), reply[1] if len(reply) > 1 else None)

    def follow(self, moved: PushReply) -> bool:
        """Use the route of a MOVED reply; False if it is not newer: the slot has not yet received the route in use here.

        ProtocolError if it leads to other slots: frames sent so far are answered, the rest has to be sent from a new lane.
        """
        newer = self.newer(moved, self.route.version)
        if newer is None:
            return False
        if newer.slots != self.route.slots:
            there = ", ".join(newer.slots)
            raise ProtocolError(f"lane {self.lane} was opened to {', '.join(self.route.slots)}, but its events now go to {there}")
        self.route = newer
        return True

    def newer(self, moved: PushReply, version: int) -> Route | None:
        """The route of a MOVED reply to a frame sent by that version; None if it is not newer. A slot without a log has none."""
        told = None if moved.value is None else Route.decode(moved.value)
        return told if told is not None and told.version > version else None

    def poll(self) -> list[Frame]:
        """The answers available now, in order."""
        commands: list[Sequence[Arg]] = [("LRANGE", self._out, 0, self.limits.read_frames - 1)]
        if self._collected:
            # Answers returned by the last poll are removed only now: a read whose reply got lost loses no answer.
            commands.insert(0, ("LTRIM", self._out, self._collected, -1))
        self.conn.send(commands)
        replies = [self.conn.receive() for _ in commands]
        if isinstance(replies[-1], Exception):
            raise replies[-1]
        self._collected = len(replies[-1])
        return [decode(f) for f in replies[-1]]

    def collect(self, wait_ms: int) -> list[Frame]:
        """Wait for answers, in order; [] after `wait_ms` or when the slot's status changed. LaneExpired if the lane is gone."""
        self._backoff.reset()
        while not self._backoff.at_ceiling:
            if frames := self.poll():
                return frames
            self._backoff.pause()
        return self._park(wait_ms)

    def _park(self, wait_ms: int) -> list[Frame]:
        """Arm the doorbell, sleep on it and read, in one round trip: a woken reader already has the answers."""
        park: Sequence[Arg] = ("FCALL", "udo_park_lane", 1, self._prefix, self.lane, self.limits.lane_ttl_ms)
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
            raise LaneExpired(gone(self.lane, self.limits))
        self._collected = len(replies[-1])
        return [decode(f) for f in replies[-1]]

    def schema(self, identity: bytes) -> pa.Schema:
        """The schema of that id, as registered on this slot; ProtocolError if it is not registered."""
        return stored_schema(self.conn, self.keys, identity)

    def status(self) -> dict[str, Any] | None:
        """Why the slot does not serve, or None while it does."""
        return slot_status(self.conn, self.keys)

    def close(self) -> None:
        """Remove all keys of the lane."""
        self.conn.call("FCALL", "udo_close", 1, self._prefix, self.lane)
