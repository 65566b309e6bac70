"""A keyed stream in an open loop: epochs of timed frames over one lane at a time, every answer with its time of arrival."""

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

from benchmarks.openloop import undisturbed
from benchmarks.rules import InvalidRun
from udo_interface.lane import exchange
from udo_interface.opening import KeyedCall, Request, conversation
from udo_protocol.formats.schema import GROUP_COLUMN
from udo_protocol.limits import KEY_GROUPS

EPOCH_S, FRAME_S = 1.0, 0.005
FILL_ROWS, FILL_EPOCH_ROWS = 5_000, 50_000
SENT = pa.schema([("id", pa.int64()), ("card", pa.int64()), ("size", pa.int64()), (GROUP_COLUMN, pa.int32())])
BACK = pa.schema([("id", pa.int64()), ("card", pa.int64()), ("n", pa.int64()), ("version", pa.int64())])


def group_of(card: int) -> int:
    """Any fixed way from key to group."""
    return zlib.crc32(card.to_bytes(8, "little")) % KEY_GROUPS


@dataclass
class KeyedLoad:
    """One session's epochs, from one partition. `at`, `batches`, `epochs`: the answers to the timed events, in order of arrival."""

    address: str
    deployment: str
    cards: int
    size: int
    rate: int
    at: list[float] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    sent: int = 0
    _epoch: int = 0

    def __post_init__(self) -> None:
        self._groups = np.array([group_of(c) for c in range(self.cards)], np.int32)

    def fill(self) -> None:
        """One event per card: the state is as large as it is to be."""
        for start in range(0, self.cards, FILL_EPOCH_ROWS):
            part = range(start, min(start + FILL_EPOCH_ROWS, self.cards))
            frames = (np.arange(a, min(a + FILL_ROWS, part.stop)) for a in range(part.start, part.stop, FILL_ROWS))
            for _ in self._exchange(self._batch(np.full(len(c), -1), c) for c in frames):
                pass

    def run(self, stop: threading.Event, seed: int) -> None:
        """Timed epochs until told to stop."""
        rng = np.random.default_rng(seed)
        hot = rng.choice(self.cards, min(2_000, self.cards), replace=False)
        with undisturbed():
            self._due = time.perf_counter()
            while not stop.is_set():
                for answer in self._exchange(self._timed(rng, hot)):
                    if answer.num_rows:
                        self.at.append(time.perf_counter())
                        self.batches.append(answer)
                        self.epochs.append(self._epoch)

    def _timed(self, rng: np.random.Generator, hot: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        rows = round(self.rate * FRAME_S)
        for _ in range(round(EPOCH_S / FRAME_S)):
            self._due += FRAME_S
            time.sleep(max(self._due - time.perf_counter(), 0))
            yield self._batch(np.arange(self.sent, self.sent + rows), rng.choice(hot, rows))
            self.sent += rows

    def _batch(self, ids: npt.NDArray[np.int64], cards: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return pa.record_batch([ids, cards, np.full(len(ids), self.size), self._groups[cards]], schema=SENT)

    def _exchange(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keyed = KeyedCall("r1", "load", tuple(range(KEY_GROUPS)))
        request = Request(self.deployment, "load", 0, self._epoch + 1, self._epoch, keyed=keyed)
        with conversation(self.address, request, SENT, BACK) as (sender, collector, place):
            for _, answer in exchange(sender, collector, ((b, None) for b in batches), place.window_frames, interleave=True):
                yield answer
        self._epoch += 1

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of all timed answers, in order of arrival."""
        return np.concatenate([b.column(name).to_numpy() for b in self.batches])

    def arrivals(self) -> npt.NDArray[np.float64]:
        """When each came (perf_counter)."""
        return np.repeat(np.array(self.at), [b.num_rows for b in self.batches])

    def ends(self) -> npt.NDArray[np.int64]:
        """Which answers are the last ones of their epochs."""
        return np.flatnonzero(np.diff(np.repeat(self.epochs, [b.num_rows for b in self.batches])))

    def require_counts(self) -> None:
        """InvalidRun unless every answer says how often its card had been seen."""
        seen: Counter[int] = Counter()
        for card, n in zip(self.column("card").tolist(), self.column("n").tolist(), strict=True):
            seen[card] += 1
            if n != seen[card] + 1:  # one event filled it
                raise InvalidRun(f"card {card} was counted {n} times after {seen[card] + 1} events")
