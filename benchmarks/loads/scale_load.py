"""A keyed stream in an open loop whose rate changes, and which can be held like a query that is stopped and started again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness.openloop import undisturbed
from benchmarks.loads.keyed_load import BACK, EPOCH_S, SENT, KeyedLoad
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_interface.lane.split import SplitExchange
from udo_protocol.limits import KEY_GROUPS

SESSION = "load"
_LOOK_S = 0.005
# Long enough for several events per frame, so that the load does not come from the fixed cost of frames.
FRAME_S = 0.025


@dataclass
class ChangingLoad(KeyedLoad):
    """`rate_at(seconds since the start)` events/s. `due` has the intended time of each event, by its id."""

    rate_at: Callable[[float], float] = lambda _: 0.0
    begun: float = 0.0  # perf_counter
    hold: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)
    runs: int = 1
    _left: float = 0.0

    def produced(self, now: float) -> float:
        """Return the number of events due by `now` (perf_counter), including those not sent yet."""
        return float(sum(self.rate_at(i * FRAME_S) for i in range(int((now - self.begun) / FRAME_S))) * FRAME_S) if self.begun else 0.0

    def run(self, stop: threading.Event, seed: int) -> None:
        """Run epochs until `stop` is set. While held, none is under way; events that were due meanwhile are sent afterwards."""
        rng = np.random.default_rng(seed)
        patterns = np.arange(self.cards)
        with undisturbed():
            self.begun = self._due = time.perf_counter()
            while not stop.is_set():
                if self.hold.is_set():
                    self.held.set()
                    time.sleep(_LOOK_S)
                    continue
                self.held.clear()
                self._noted(self._until(stop, rng, patterns))

    def _until(self, stop: threading.Event, rng: np.random.Generator, patterns: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        ends = max(self._due, time.perf_counter()) + EPOCH_S
        while self._due < ends and not (stop.is_set() or self.hold.is_set()):
            self._due += FRAME_S
            time.sleep(max(self._due - time.perf_counter(), 0))
            self._left += self.rate_at(self._due - self.begun) * FRAME_S
            rows, self._left = int(self._left), self._left % 1
            if rows:
                self.due += [self._due] * rows
                yield self._batch(np.arange(self.sent, self.sent + rows), rng.choice(patterns, rows))
                self.sent += rows

    def _exchange(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keyed = KeyedCall(f"r{self.runs}", "load", tuple(range(KEY_GROUPS)), plan=self.runs)
        request = Request(self.deployment, SESSION, 0, self._epoch + 1, self._epoch, keyed=keyed)
        with conversations(self.address, request, SENT, BACK) as (lanes, opened):
            split = SplitExchange(lanes, opened.group_slots or (0,), opened.place.window_frames, open_lane=opened.open_lane)
            for _, answer in split.run(((b, None) for b in batches), interleave=True):
                yield answer
        self._epoch += 1
