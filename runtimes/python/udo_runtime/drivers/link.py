"""An instance's link to its slot: the connection, the log's reader, parking, the node manager's heartbeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from udo_protocol.errors import Fenced, UdoError, Unavailable
from udo_protocol.limits import SlotLimits
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import HEARTBEAT
from udo_protocol.queue.slot_reader import Read, SlotReader
from udo_runtime.counters import Counters
from udo_runtime.failure import PassedOn
from udo_runtime.output import begin_anew
from udo_runtime.stats import Stats

_HEARTBEAT_EVERY_S = 1.0
# Successive checks without the heartbeat: it may have expired while the queue server hung, and be checked before it is renewed.
_HEARTBEAT_MISSED = 4
# Publishing the last counters must not delay the end.
_LAST_WORDS_S = 2.0
# The size at which the log starts over: far more than a node manager leaves in it, far less than a file may have.
_LOG_BYTES = 64 << 20


class Stopped(PassedOn):
    """Raised by the signal handler while the instance is parked."""


class Link:
    """An instance's connection to its slot; one per instance."""

    def __init__(self, conn: Connection, reader: SlotReader, limits: SlotLimits) -> None:
        self.conn, self.reader, self.limits = conn, reader, limits
        self.keys, self.name = reader.keys, reader.name
        self.counters = Counters()
        self.look_after: Callable[[], None] = lambda: None  # looks after the operator; called periodically between frames
        self._stats = Stats(reader.keys.stats(reader.name), self.counters)
        self._heartbeat_due, self._unheard = 0.0, 0
        self.stopping = self.parked = False

    def stop(self) -> None:
        """Stop after the frame under way, or at once while parked; called by the handler of SIGTERM."""
        self.stopping = True
        if self.parked:
            raise Stopped

    @contextmanager
    def parking(self) -> Iterator[None]:
        """A context in which SIGTERM raises Stopped instead of waiting for the next frame."""
        self.parked = True
        try:
            if self.stopping:
                raise Stopped
            yield
        finally:
            self.parked = False

    def owns(self, read: Read) -> bool:
        """Whether this instance is the owner; Fenced if a newer one is."""
        if read.owner > self.reader.token:
            raise Fenced(f"token {self.reader.token} was overtaken by {read.owner} before it was promoted")
        return read.owner == self.reader.token

    def await_promotion(self) -> Read:
        """Wait until this instance is the owner; returns the look at the slot that showed it, without frames."""
        while True:
            read = self.reader.look()
            if self.owns(read):
                return read
            self.park_standby(read.emitted + 1, self.limits.park_ms)

    def park_standby(self, cursor: int, wait_ms: int) -> None:
        """Sleep until promoted, at most `wait_ms`."""
        with self.parking():
            promoted = self.reader.park(cursor, wait_ms, standby=True)
        if not promoted:  # else the slot waits for this instance; the next housekeeping is that of the owner
            self.housekeeping()

    def housekeeping(self, settle: Callable[[], None] = lambda: None) -> None:
        """Publish the counters and check the heartbeat, if due. `settle` first receives outstanding replies on the connection."""
        now = time.monotonic()
        if now < self._heartbeat_due:
            return
        begin_anew(1, _LOG_BYTES)
        settle()
        self._heartbeat_due = now + _HEARTBEAT_EVERY_S
        self.look_after()
        self._stats.publish(self.conn, now=now)
        self._unheard = 0 if self.conn.call("EXISTS", HEARTBEAT) else self._unheard + 1
        if self._unheard >= _HEARTBEAT_MISSED:
            raise Unavailable(f"no heartbeat from the node manager: instance {self.name} stops itself")

    @contextmanager
    def leaving(self, last: Callable[[Connection], None] = lambda conn: None) -> Iterator[None]:
        """The context of an instance's whole work: allows a stop while parked, and publishes the counters and calls `last` at the end."""
        try:
            yield
        except Stopped:
            pass  # parked: nothing is under way but the parking's own replies
        finally:
            # A connection of its own: that of the loop may have outstanding replies.
            with suppress(UdoError), closing(Connection(self.conn.path, timeout_s=_LAST_WORDS_S, login=self.conn.login)) as conn:
                self._stats.publish(conn, force=True)
                last(conn)
