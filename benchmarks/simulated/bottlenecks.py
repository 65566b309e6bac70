"""A simulated chain of three operators, of which one may become too slow: the signals that the detection gets, and the truth.

Each slot is a bounded fluid queue; while the next operator's queue is full, answers have no room and the slot is blocked.
Measurements carry noise. An episode is one chain for ten minutes, with at most one injected bottleneck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elasticity.bottleneck.signals import SlotSample

OPERATORS, SLOTS = 3, 4
INTERVAL_S, INTERVALS = 10.0, 60
RATE = 1_000.0  # events/s into the chain
QUEUE_S = 30.0  # the bound of a slot's queue, as work at its healthy speed
KINDS = ("none", "cpu", "memory", "skew", "slow_downstream")
# The relative standard deviation of measured shares and rates.
NOISE = 0.08
# The relative standard deviation of an interval's arrivals.
JITTER = 0.1


@dataclass(frozen=True)
class Episode:
    """The truth of an episode: `operator` is a bottleneck from interval `since` on; both are None if there is none."""

    kind: str
    operator: int | None
    since: int | None


def play(kind: str, rng: np.random.Generator, see: Callable[[int, list[list[SlotSample]]], None]) -> Episode:
    """Run an episode; `see` gets each interval's number and the slots of every operator."""
    slow = int(rng.integers(OPERATORS)) if kind != "none" else None
    since = int(rng.integers(15, 30)) if kind != "none" else None
    # Healthy slots are busy for 20 to 85 % of the time, including their waits for others.
    service = rng.uniform(0.2, 0.85, OPERATORS) * SLOTS / RATE
    on_cpu, memory = rng.uniform(0.5, 1.0, OPERATORS), rng.uniform(0.1, 0.85, OPERATORS)
    burst_at, burst = int(rng.integers(INTERVALS)), float(rng.uniform(1.0, 1.6))  # short: queues are meant to absorb it
    strength, backlog = float(rng.uniform(1.05, 1.8)), np.zeros((OPERATORS, SLOTS))
    for t in range(INTERVALS):
        injected = slow is not None and since is not None and t >= since
        share = np.full((OPERATORS, SLOTS), 1 / SLOTS)
        speed, cpu_share, used = np.ones(OPERATORS), on_cpu.copy(), memory.copy()
        if injected and slow is not None and since is not None:
            needed = strength / (RATE * service[slow] / SLOTS)  # the slowdown for a use of `strength`
            if kind == "skew":
                share[slow] = (1 - min(needed / SLOTS, 0.85)) / (SLOTS - 1)
                share[slow, 0] = min(needed / SLOTS, 0.85)
                needed = max(1.0, strength / (RATE * service[slow] * share[slow, 0])) if share[slow, 0] == 0.85 else 1.0
            elif kind == "memory":
                used[slow] = min(memory[slow] + (0.98 - memory[slow]) * (t - since + 1) / 3, 0.98)
                needed = needed if used[slow] > 0.9 else 1.0  # collecting garbage
            # the additional time is computing, except with a slow service that the operator calls
            cpu_share[slow] = on_cpu[slow] / needed if kind == "slow_downstream" else 1 - (1 - on_cpu[slow]) / needed
            speed[slow] = needed
        arrivals = RATE * rng.normal(1, JITTER) * (burst if t == burst_at else 1)
        seen: list[list[SlotSample]] = []
        room = [(QUEUE_S / service[o] - backlog[o]).clip(0).sum() for o in range(OPERATORS)]
        for o in range(OPERATORS):
            into = share[o] * arrivals
            could = INTERVAL_S / (service[o] * speed[o])
            wanted = np.minimum(backlog[o] + into * INTERVAL_S, could)
            last = o + 1 == OPERATORS
            allowed = np.inf if last else room[o + 1] + INTERVAL_S * SLOTS / (service[o + 1] * speed[o + 1])
            done = wanted * min(1.0, allowed / max(wanted.sum(), 1e-9))
            busy, blocked = done / could, 1 - done / np.maximum(wanted, 1e-9)
            backlog[o] = np.minimum(backlog[o] + into * INTERVAL_S - done, QUEUE_S / service[o])
            measured = rng.normal(1, NOISE, (4, SLOTS))
            seen.append(
                [
                    SlotSample(
                        cpu=min(busy[s] * cpu_share[o] * measured[0, s], 1.0),
                        memory=min(used[o] * measured[1, s], 1.0),
                        busy=min(busy[s] * measured[2, s], 1.0),
                        blocked=blocked[s],
                        arrivals=into[s] * measured[3, s],
                        answers=done[s] / INTERVAL_S * measured[3, s],
                        backlog=backlog[o, s],
                    )
                    for s in range(SLOTS)
                ]
            )
            arrivals = done.sum() / INTERVAL_S
        see(t, seen)
    return Episode(kind, slow, since)
