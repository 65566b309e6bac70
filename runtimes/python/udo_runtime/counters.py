"""The counters of an instance."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

import pyarrow as pa

from udo_protocol.limits import FRAME_TIMES_MS, MOST_KEY_GROUPS

# Enough for a p99; recent, so that a change of behaviour shows within seconds.
_SAMPLES = 1000


@dataclass(frozen=True)
class ProcessLife:
    """An operator in a process of its own: the pid (0: there is none now), how many processes have ended, and how the last one ended."""

    pid: int = 0
    ends: int = 0
    last_end: str = ""


class Counters:
    """Counts frames and events, and the time user code took."""

    def __init__(self) -> None:
        self.events_in = self.events_out = self.frames = self.errors = self.dead_letters = self.retries = 0
        self.bytes_in = self.bytes_out = 0
        self.busy_s = 0.0
        self.process = ProcessLife()
        self._recent: deque[float] = deque(maxlen=_SAMPLES)
        self._within = [0] * (len(FRAME_TIMES_MS) + 1)  # frames by time: up to each bound, and above the one before
        self._groups: list[int] = []  # events of each key group

    def record(self, rows_in: int, rows_out: int, seconds: float) -> None:
        """Count an answered frame."""
        self.frames += 1
        self.events_in += rows_in
        self.events_out += rows_out
        self.busy_s += seconds
        self._recent.append(seconds)
        self._within[bisect_left(FRAME_TIMES_MS, seconds * 1000)] += 1

    def in_groups(self, numbers: pa.Array) -> None:
        """Count a frame's events by key group; `numbers`: the group of each event."""
        counted = numbers.value_counts()
        for group, events in zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True):
            if type(group) is not int or not 0 <= group < MOST_KEY_GROUPS:  # invalid number from the sender
                continue
            self._groups.extend([0] * (group + 1 - len(self._groups)))
            self._groups[group] += events

    def groups(self) -> bytes:
        """Events of each key group from 0 on, 8 bytes each, little-endian; empty if none were counted."""
        return struct.pack(f"<{len(self._groups)}Q", *self._groups)

    def retried(self) -> None:
        """Count a retry of a batch."""
        self.retries += 1

    def values(self) -> dict[str, float]:
        """The counters, and quantiles of the time inside user code over the last frames."""
        ordered = sorted(self._recent) or [0.0]
        return {
            "events_in": self.events_in,
            "events_out": self.events_out,
            "frames": self.frames,
            "errors": self.errors,
            "dead_letters": self.dead_letters,
            "retries": self.retries,
            "busy_s": self.busy_s,
            "p50_ms": ordered[len(ordered) // 2] * 1000,
            "p99_ms": ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)] * 1000,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            **{f"within_{bound:g}_ms": count for bound, count in zip(FRAME_TIMES_MS, self._within, strict=False)},
        }
