"""A keyed stream in an open loop: epochs of timed frames, one attempt at a time, with the time of arrival of every answer."""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness.openloop import undisturbed
from benchmarks.harness.rules import InvalidRun
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_interface.lane.split import SplitExchange
from udo_protocol.certificates import Tls
from udo_protocol.errors import UsageError
from udo_protocol.formats.schema import GROUP_COLUMN
from udo_protocol.limits import KEY_GROUPS

EPOCH_S, FRAME_S = 1.0, 0.005
FILL_ROWS, FILL_EPOCH_ROWS = 5_000, 50_000
SENT = pa.schema([("id", pa.int64()), ("card", pa.int64()), ("size", pa.int64()), (GROUP_COLUMN, pa.int32())])
BACK = pa.schema([("id", pa.int64()), ("card", pa.int64()), ("n", pa.int64()), ("version", pa.int64())])


def group_of(card: int) -> int:
    """Map a key to its group; any fixed hash will do."""
    return zlib.crc32(card.to_bytes(8, "little")) % KEY_GROUPS


def rows_of_frame(rate: int) -> int:
    """The number of rows in a timed frame; UsageError if that is not a whole number, since another rate would be sent."""
    frames_per_s = round(1 / FRAME_S)
    if rate < frames_per_s or rate % frames_per_s:
        raise UsageError(f"--rate: expected a multiple of {frames_per_s} events/s, got {rate}")
    return rate // frames_per_s


@dataclass
class KeyedLoad:
    """One session's epochs, from one partition. `at`, `batches`, `epochs`: those of the answers to timed events, in order of arrival."""

    address: str
    deployment: str
    cards: int
    size: int
    rate: int
    tls: Tls | None = None  # for slots on other nodes
    at: list[float] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    sent: int = 0
    answered: int = 0
    due: list[float] = field(default_factory=list)  # the intended time of each timed event, by its id
    _epoch: int = 0

    def __post_init__(self) -> None:
        self._groups = np.array([group_of(c) for c in range(self.cards)], np.int32)

    def fill(self) -> None:
        """Send one event per card, which fills the state to its full size."""
        for start in range(0, self.cards, FILL_EPOCH_ROWS):
            part = range(start, min(start + FILL_EPOCH_ROWS, self.cards))
            frames = (np.arange(a, min(a + FILL_ROWS, part.stop)) for a in range(part.start, part.stop, FILL_ROWS))
            for _ in self._exchange(self._batch(np.full(len(c), -1), c) for c in frames):
                pass

    def run(self, stop: threading.Event, seed: int) -> None:
        """Run timed epochs until `stop` is set."""
        rng = np.random.default_rng(seed)
        hot = self._hot(rng)
        with undisturbed():
            self._due = time.perf_counter()
            while not stop.is_set():
                self._noted(self._timed(rng, hot, round(EPOCH_S / FRAME_S)))

    def run_one(self, before: int, begun: threading.Event, stop: threading.Event, seed: int) -> None:
        """Run an epoch: first `before` events as fast as they are answered, then timed frames until `stop` is set.

        `begun` is set when the first timed frame is sent.
        """
        rng = np.random.default_rng(seed)
        hot, most = self._hot(rng), 1 << 30

        def events() -> Iterator[pa.RecordBatch]:
            for start in range(0, before, FILL_ROWS):
                rows = min(FILL_ROWS, before - start)
                yield self._batch(np.arange(self.sent, self.sent + rows), rng.integers(0, self.cards, rows))
                self.sent += rows
                self.due += [time.perf_counter()] * rows
            self._due = time.perf_counter()
            for batch in self._timed(rng, hot, most):
                if stop.is_set():
                    return
                yield batch
                begun.set()

        with undisturbed():
            self._noted(events())

    def _hot(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        return rng.choice(self.cards, min(2_000, self.cards), replace=False)

    def _noted(self, batches: Iterator[pa.RecordBatch]) -> None:
        for answer in self._exchange(batches):
            if answer.num_rows:
                self.at.append(time.perf_counter())
                self.batches.append(answer)
                self.epochs.append(self._epoch)
                self.answered += answer.num_rows

    def _timed(self, rng: np.random.Generator, hot: npt.NDArray[np.int64], frames: int) -> Iterator[pa.RecordBatch]:
        rows = rows_of_frame(self.rate)
        for _ in range(frames):
            self._due += FRAME_S
            time.sleep(max(self._due - time.perf_counter(), 0))
            yield self._batch(np.arange(self.sent, self.sent + rows), rng.choice(hot, rows))
            self.due += [self._due] * rows  # not for the frame that is made when the epoch ends, which is not sent
            self.sent += rows

    def _batch(self, ids: npt.NDArray[np.int64], cards: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return pa.record_batch([ids, cards, np.full(len(ids), self.size), self._groups[cards]], schema=SENT)

    def _exchange(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keyed = KeyedCall("r1", "load", tuple(range(KEY_GROUPS)))
        request = Request(self.deployment, "load", 0, self._epoch + 1, self._epoch, keyed=keyed)
        with conversations(self.address, request, SENT, BACK, tls=self.tls) as (lanes, opened):
            split = SplitExchange(lanes, opened.group_slots or (0,), opened.place.window_frames, open_lane=opened.open_lane)
            for _, answer in split.run(((b, None) for b in batches), interleave=True):
                yield answer
        self._epoch += 1

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of all timed answers, in order of arrival."""
        return np.concatenate([b.column(name).to_numpy() for b in self.batches])

    def arrivals(self) -> npt.NDArray[np.float64]:
        """Return the time of arrival of each answer (perf_counter)."""
        return np.repeat(np.array(self.at), [b.num_rows for b in self.batches])

    def ends(self) -> npt.NDArray[np.int64]:
        """Return the indexes of the last answers of the epochs, except the last epoch."""
        return np.flatnonzero(np.diff(np.repeat(self.epochs, [b.num_rows for b in self.batches])))

    def require_counts(self) -> None:
        """InvalidRun unless every answer has the right count of its card's events."""
        seen: Counter[int] = Counter()
        for card, n in zip(self.column("card").tolist(), self.column("n").tolist(), strict=True):
            seen[card] += 1
            if n != seen[card] + 1:  # `fill` sent one event too
                raise InvalidRun(f"card {card} was counted {n} times after {seen[card] + 1} events")
