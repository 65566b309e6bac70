"""An open-loop load on an engine-free client: events are sent at their intended times whatever comes back.

Event i is due at t0 + i / rate; its latency counts from then, so that a stalled sender or operator cannot hide its delay.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness.rules import InvalidRun

_PR_SET_TIMERSLACK = 29
DRAIN_TIMEOUT_S = 60.0
Make = Callable[[int], dict[str, Any]]


class Client(Protocol):
    """The part of a client that a load uses."""

    def send(self, event: dict[str, Any]) -> None:
        """Hand over one event."""

    def flush(self, timeout_s: float) -> None:
        """Wait until all events are answered."""


@dataclass
class Arrivals:
    """Every answer batch with the time at which its listener was called; `add` is the listener."""

    times: list[float] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch) -> None:
        """Note a batch; nothing is computed while events are under way."""
        self.times.append(time.perf_counter())
        self.batches.append(batch)

    def clear(self) -> None:
        """Forget what came so far."""
        self.times.clear()
        self.batches.clear()

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of all answers, in order of arrival."""
        return np.concatenate([b.column(name).to_numpy() for b in self.batches]) if self.batches else np.empty(0, np.int64)

    def at(self) -> npt.NDArray[np.float64]:
        """Return the time of arrival of every answer."""
        return np.repeat(np.array(self.times), [b.num_rows for b in self.batches])


@dataclass(frozen=True)
class Sent:
    """The events sent: 0 .. events-1 at `rate` a second from `started` (perf_counter); the last one was handed over at `ended`."""

    events: int
    rate: float
    started: float
    ended: float

    def due(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the intended send times of these events."""
        return self.started + ids / self.rate


def send(client: Client, rate: float, events: int, make: Make, stop: threading.Event | None = None) -> Sent:
    """Send `events` events (fewer if `stop` is set), one call of `Client.send` each, at their times; then wait for the answers."""
    with undisturbed():
        done = 0
        started = time.perf_counter() + 0.01
        while done < events and not (stop and stop.is_set()):
            now = time.perf_counter()
            due = min(int((now - started) * rate) + 1, events) if now >= started else 0
            if due <= done:
                time.sleep(max(started + done / rate - now, 0))
                continue
            for i in range(done, due):
                client.send(make(i))
            done = due
        ended = time.perf_counter()
        client.flush(DRAIN_TIMEOUT_S)
    return Sent(done, rate, started, ended)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep latencies free of delays of the sender: timer slack, by which Linux prolongs sleeps up to 50 µs, and garbage collection."""
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0) != 0:
        raise InvalidRun("the timer slack of the sending thread cannot be set (prctl): latencies would carry the timer's own delay")
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
