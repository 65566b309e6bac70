"""Engines behind a splitter that sends as fast as it can, on a simulated clock (the set-up of paper 2, section 4).

An engine takes a fixed time per event and has a bounded queue; the splitter sends in order and waits while the next event's
queue is full, so that the busiest engine bounds the throughput of all. A moved key's stored events are retrieved one by one by
its new engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from elasticity.balance.grouping import start
from elasticity.balance.view import BalanceDecision, BalanceLimits, LoadView, eng_load, imb_score

Policy = Callable[[LoadView, BalanceLimits], BalanceDecision]


@dataclass(frozen=True)
class Setup:
    """The engines' properties. `events_divisor`: the number of events that each one stands for, to shorten a run."""

    keys: int = 4096
    events_divisor: int = 1
    # Five engines answer 1,200 events/s in the paper, and its store returns an event in 1 ms.
    service_s: float = 5 / 1200
    retrieve_s: float = 0.001
    # The paper moved about 200 stored events with each key.
    stored_per_key: int = 200
    queue_events: int = 1_000
    # The policy sees the load of the last two intervals, and decides at the end of each.
    interval_s: float = 10.0
    window_intervals: int = 2

    def scaled(self) -> tuple[float, float, int, int]:
        """Seconds per event, seconds per retrieved event, stored events per key, queue bound."""
        d = self.events_divisor
        return self.service_s * d, self.retrieve_s * d, max(self.stored_per_key // d, 1), max(self.queue_events // d, 2)


@dataclass(frozen=True)
class Phase:
    """A part of the stream: its keys in order, over and over, for `duration_s`."""

    keys: np.ndarray
    duration_s: float
    skewed: bool


@dataclass
class Outcome:
    """The result of one policy. Fields with `skewed` in their names are of the skewed phases, the others of the whole run."""

    events: int = 0
    skewed_events: int = 0
    skewed_per_engine: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    skewed_per_key: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    imbalance: list[float] = field(default_factory=list)
    imbalance_skewed: list[float] = field(default_factory=list)
    events_per_interval: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)  # keys per rebalance
    events_moved: int = 0


def run(
    setup: Setup, phases: Sequence[Phase], engines: int, policy: Policy | None, route: Callable[[int], int] | None, limits: BalanceLimits
) -> Outcome:
    """Run the stream under a policy that assigns keys, or with `route` under one that chooses an engine per event."""
    service, retrieve, stored_per_key, queue = setup.scaled()
    out = Outcome(skewed_per_engine=np.zeros(engines, np.int64), skewed_per_key=np.zeros(setup.keys, np.int64))
    keys_map = start(setup.keys, engines)
    choose = route or keys_map.tolist().__getitem__
    free, now, ends = [0.0] * engines, 0.0, 0.0
    seen = np.zeros(setup.keys, np.int64)
    window: deque[np.ndarray] = deque(maxlen=setup.window_intervals)
    waiting = queue * service
    for phase in phases:
        keys, at, ends = phase.keys.tolist(), 0, ends + phase.duration_s
        while now < ends:
            until, first, sent = min(now - now % setup.interval_s + setup.interval_s, ends), at, [0] * engines
            while now < until:
                engine = choose(keys[at])
                busy = free[engine]
                if busy - waiting > now:
                    now = busy - waiting
                free[engine] = (busy if busy > now else now) + service
                sent[engine] += 1
                at = at + 1 if at + 1 < len(keys) else 0
            counts = np.bincount(phase.keys[np.arange(first, first + sum(sent)) % len(keys)], minlength=setup.keys)
            _note(out, phase, counts, np.array(sent))
            seen += counts
            window.append(counts)
            if policy is None or route is not None:
                continue
            decision = policy(LoadView(keys_map, np.sum(window, axis=0), engines), limits)
            if len(decision.keys):
                stored = np.minimum(seen, stored_per_key)
                for engine, load in enumerate(eng_load(decision.keys_map[decision.keys], stored[decision.keys], engines)):
                    free[engine] = max(free[engine], now) + load * retrieve
                out.moved.append(len(decision.keys))
                out.events_moved += int(stored[decision.keys].sum())
                keys_map = decision.keys_map
                choose = keys_map.tolist().__getitem__
    return out


def _note(out: Outcome, phase: Phase, counts: np.ndarray, sent: np.ndarray) -> None:
    n, score = int(counts.sum()), imb_score(sent.astype(np.float64))
    out.events += n
    out.events_per_interval.append(n)
    out.imbalance.append(score)
    if phase.skewed:
        out.skewed_events += n
        out.skewed_per_engine += sent
        out.skewed_per_key += counts
        out.imbalance_skewed.append(score)


def zipf_phases(setup: Setup, exponent: float, even: float, engines: int, minutes: Sequence[float], seed: int) -> list[Phase]:
    """Make alternately even and skewed phases of these lengths; key number = rank, as in the paper."""
    rng, service = np.random.default_rng(seed), setup.scaled()[0]
    phases = []
    for i, m in enumerate(minutes):
        weights = np.arange(1, setup.keys + 1) ** -(exponent if i % 2 else even)
        most = int(m * 60 * engines / service * 1.05) + 1
        drawn = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(most), side="right")
        # rank 1 has number 1; the last rank takes number 0
        phases.append(Phase((np.minimum(drawn, setup.keys - 1) + 1) % setup.keys, m * 60, bool(i % 2)))
    return phases
