"""The doorbell of a slot that sleeps: waits for the next frame, which the log takes meanwhile, and measures how soon it is answered."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from node_manager.servers.embedded import Servers
from node_manager.slots.worker import SlotWorker
from udo_protocol.errors import ServerLost, SlotBroken
from udo_protocol.queue import slot
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot_reader import SlotReader

# The name of the bell's reader; instances have other names.
_READER = "asleep"
# A parked reader wakes this often, so that it notices that there is nothing to wait for any more.
_PARK_MS = 2_000
# The first answer is looked for after 1, 2, 3 ... 10 ms, for at most this long. A longer load is not measured.
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


class Doorbell:
    """Waits in a thread other than the slot's, which may end meanwhile. `wakes`: ends of sleeps, oldest first."""

    def __init__(self, worker: SlotWorker, servers: Servers, keys: SlotKeys) -> None:
        self._worker, self._servers, self._keys = worker, servers, keys
        self.wakes: deque[Wake] = deque(maxlen=KEPT_WAKES)

    def listen(self, emitted: int, sleeps: Callable[[], bool], wake: Callable[[], object]) -> None:
        """Wait for a frame after `emitted`, call `wake`, and wait for its answer. Return early if something else has ended this sleep."""
        while sleeps():
            try:
                with contextlib.closing(self._servers.connect("queue")) as conn:
                    reader = SlotReader(conn, self._keys, _READER, slot.owner(conn, self._keys))
                    while sleeps():
                        reader.park(emitted + 1, _PARK_MS)
                        stats = slot.slot_stats(conn, self._keys)
                        emitted = stats.emitted
                        if stats.depth_frames:
                            since, at_s = time.perf_counter(), time.time()
                            wake()
                            self._first_answer(reader, emitted, since, at_s)
                            return
            except (ServerLost, SlotBroken):  # the slot's own look handles it
                time.sleep(_AGAIN_S)

    def _first_answer(self, reader: SlotReader, emitted: int, since: float, at_s: float) -> None:
        backoff = LinearBackoff(_LOOK_INCREMENT_US, _LOOK_CEILING_US)
        while time.perf_counter() - since < _ANSWER_S and not self._worker.stopped:
            if slot.last_emitted(reader.conn, reader.keys) > emitted:
                wake = Wake(self._keys.number, at_s, (time.perf_counter() - since) * 1000)
                self.wakes.append(wake)
                self._worker.log.info("woken", first_answer_ms=round(wake.answer_ms, 1))
                return
            backoff.pause()
