"""The least cost of a count per key in an interpreter: one dict, no groups, no frames, no answers, no server.

It does only the unavoidable work: find the key's value, unpack it at its first use in an epoch and keep it for undo, count, pack
it at the epoch's end, and pack the contents of a checkpoint.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

EVENTS, EPOCHS = 1_000_000, 3


@dataclass(frozen=True)
class Floor:
    """µs of processor time per event: of the whole loop, and of the lookup of the value alone."""

    loop_us: float
    lookup_us: float


def floor(keys: int, seed: int) -> Floor:
    """Measure the best of a few epochs."""
    pack, unpack = msgpack.Packer().pack, msgpack.unpackb
    values = {k: pack({"n": 1}) for k in range(keys)}
    rng = np.random.default_rng(seed)
    loops, lookups = [], []
    for _ in range(EPOCHS):
        events = rng.integers(0, keys, EVENTS).tolist()
        started = time.process_time()
        _epoch(values, events, pack, unpack)
        loops.append(time.process_time() - started)
        started = time.process_time()
        for key in events:
            values[key]
        lookups.append(time.process_time() - started)
    return Floor(round(min(loops) / EVENTS * 1e6, 3), round(min(lookups) / EVENTS * 1e6, 3))


def _epoch(values: dict[int, bytes], events: list[int], pack: Any, unpack: Any) -> tuple[bytes, bytes]:
    live: dict[int, dict[str, int]] = {}
    undo: dict[int, bytes] = {}
    for key in events:
        state = live.get(key)
        if state is None:
            undo[key] = raw = values[key]
            state = live[key] = unpack(raw)
        state["n"] = state.get("n", 0) + 1
    for key, state in live.items():
        values[key] = pack(state)
    return pack([list(live), [values[k] for k in live]]), pack([list(undo), list(undo.values())])
