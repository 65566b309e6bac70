"""A slot without an instance until the next frame comes: its log takes frames meanwhile, and its doorbell wakes it.

Only for operators without state, whose next owner needs nothing from the last one. Anything else that brings an owner ends the sleep.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from node_manager.slots.loads import Loads
from node_manager.slots.ownership import Ownership
from node_manager.slots.restarts import Restarts
from node_manager.slots.thread import SlotThread
from udo_protocol.errors import Conflict, ServerLost, SlotBroken, UdoError
from udo_protocol.queue import slot
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.slot_reader import SlotReader

# The name of the bell's reader; instances have other names.
_READER = "asleep"
# A parked reader looks up this often, so that it notices that there is nothing to wait for any more.
_PARK_MS = 2_000
# The first answer is looked for after 1, 2, 3 ... 10 ms, for at most this long. An operator that loads for longer has no figure.
_LOOK_INCREMENT_US, _LOOK_CEILING_US, _ANSWER_S = 1_000, 10_000, 120.0
# The pause after an error on the queue server.
_AGAIN_S = 0.2
KEPT_WAKES = 100


@dataclass(frozen=True)
class Wake:
    """One end of a sleep. at_s: when a frame came, in s since 1970. answer_ms: from then until it was answered."""

    slot: int
    at_s: float
    answer_ms: float


class Sleep:
    """The sleep of one slot."""

    def __init__(self, thread: SlotThread, ownership: Ownership, loads: Loads, restarts: Restarts) -> None:
        self._thread, self._ownership, self._loads, self._restarts = thread, ownership, loads, restarts
        self._times = 0  # number of sleeps so far
        self._asleep = False
        self.wakes: deque[Wake] = deque(maxlen=KEPT_WAKES)

    @property
    def asleep(self) -> bool:
        """Whether it sleeps. May be called from any thread."""
        return self._asleep and self._ownership.owner is None

    def begin(self, done: Future[None]) -> None:
        """Retire the owner and sleep. Conflict while frames wait, an update is under way, or the operator keeps state."""
        own = self._ownership
        try:
            stats = slot.slot_stats(self._thread.conn("queue"), self._thread.keys)
            if own.owner is None or own.keyed or self._loads.updating or stats.depth_frames:
                raise Conflict(f"slot {self._thread.number} of deployment {self._thread.deployment!r} is in use")
        except UdoError as e:
            done.set_exception(e)
            return
        owner = own.owner
        own.lost()
        own.retire(owner)
        self._asleep, self._times = True, self._times + 1
        at, times = stats.emitted, self._times
        self._thread.beside(lambda: self._listen(at, times))
        self._thread.log.info("asleep", operator=owner.assigned.reference)
        done.set_result(None)

    def end(self) -> None:
        """End the sleep: there is an owner again, or is to be one."""
        self._asleep = False

    def wake(self) -> None:
        """Start an owner, if it sleeps."""
        if self.asleep:
            self._asleep = False
            self._restarts.replace()

    def _listen(self, emitted: int, times: int) -> None:
        """In a thread of its own: wait until a frame comes, or something else has ended this sleep; then for the frame's answer."""
        while self._sleeps(times):
            try:
                with contextlib.closing(self._thread.node.servers.connect("queue")) as conn:
                    reader = SlotReader(conn, self._thread.keys, _READER, slot.owner(conn, self._thread.keys))
                    while self._sleeps(times):
                        reader.park(emitted + 1, _PARK_MS)
                        stats = slot.slot_stats(conn, self._thread.keys)
                        emitted = stats.emitted
                        if stats.depth_frames:
                            since, at_s = time.perf_counter(), time.time()
                            self._thread.post(self.wake)
                            self._first_answer(reader, emitted, since, at_s)
                            return
            except (ServerLost, SlotBroken):  # the slot's own look handles it
                time.sleep(_AGAIN_S)

    def _sleeps(self, times: int) -> bool:
        return self._asleep and self._times == times and not self._thread.stopped and self._ownership.life.state == "replacing"

    def _first_answer(self, reader: SlotReader, emitted: int, since: float, at_s: float) -> None:
        backoff = LinearBackoff(_LOOK_INCREMENT_US, _LOOK_CEILING_US)
        while time.perf_counter() - since < _ANSWER_S and not self._thread.stopped:
            if slot.last_emitted(reader.conn, reader.keys) > emitted:
                wake = Wake(self._thread.number, at_s, (time.perf_counter() - since) * 1000)
                self.wakes.append(wake)
                self._thread.log.info("woken", first_answer_ms=round(wake.answer_ms, 1))
                return
            backoff.pause()
