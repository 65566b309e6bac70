"""Injected bottlenecks in a chain of operators (paper 3): found, missed, reported where there is none, and after how long. Simulated.

The fuzzy detection beside a threshold on mean CPU use, as Kubernetes' autoscaler has it, with the same confirmation by two intervals.
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from benchmarks.simulated.bottlenecks import INTERVAL_S, KINDS, OPERATORS, Episode, play
from benchmarks.tables import Section
from elasticity.bottleneck import fuzzy
from elasticity.bottleneck.detector import Hysteresis, OperatorHistory, step
from elasticity.bottleneck.signals import SlotSample, inputs

EPISODES, QUICK_EPISODES = 400, 60  # of each kind
CPU_THRESHOLD = 0.8
CONFIRM = 2
# Found later than this is not found: by then the queues are full.
DEADLINE_S = 120.0

OPTIONS = [click.option("--simulated", is_flag=True, help="On a simulated clock; the only form so far, and the figures are labelled so.")]


class _Watched:
    """The intervals in which each detector reported each operator, in one episode."""

    def __init__(self) -> None:
        self.model, self.patience = fuzzy.shipped(), Hysteresis(confirm=CONFIRM, settle=0)
        self.watches, self.above = [OperatorHistory()] * OPERATORS, [0] * OPERATORS
        self.fuzzy: list[list[int]] = [[] for _ in range(OPERATORS)]
        self.threshold: list[list[int]] = [[] for _ in range(OPERATORS)]

    def see(self, t: int, operators: list[list[SlotSample]]) -> None:
        """One interval."""
        for o, slots in enumerate(operators):
            load = fuzzy.evaluate(self.model, inputs(slots) or {}).load
            self.watches[o], what = step(self.watches[o], load, self.model.thresholds, self.patience)
            if what == "take_over":
                self.fuzzy[o].append(t)
            self.above[o] = self.above[o] + 1 if float(np.mean([s.cpu for s in slots])) > CPU_THRESHOLD else 0
            if self.above[o] >= CONFIRM:
                self.threshold[o].append(t)


def run(quick: bool, driver: str, seed: int, simulated: bool) -> dict[str, Any]:
    """The record's figures."""
    if not simulated:
        raise click.UsageError("expected --simulated: bottlenecks are not injected live yet")
    rng = np.random.default_rng(seed)
    found: list[tuple[Episode, _Watched]] = []
    for _ in range(QUICK_EPISODES if quick else EPISODES):
        for kind in KINDS:
            watched = _Watched()
            found.append((play(kind, rng, watched.see), watched))
    detectors = {name: _judge([(e, getattr(w, name)) for e, w in found]) for name in ("fuzzy", "threshold")}
    return {"simulated": True, "episodes": len(found), **detectors["fuzzy"], "threshold_baseline": detectors["threshold"]}


def _judge(reports: list[tuple[Episode, list[list[int]]]]) -> dict[str, Any]:
    """Hit: the slow operator was reported within DEADLINE_S. False alarm: one was reported that was not slow, at that time."""
    delays: dict[str, list[float]] = {kind: [] for kind in KINDS}
    of = dict.fromkeys(KINDS, 0)
    false = judged = 0
    for episode, by_operator in reports:
        of[episode.kind] += 1
        for operator, times in enumerate(by_operator):
            judged += 1
            slow = operator == episode.operator and episode.since is not None
            false += any(not slow or t < (episode.since or 0) for t in times)
            if slow and episode.since is not None:
                first = next((t for t in times if t >= episode.since), None)
                if first is not None and (delay := (first - episode.since + 1) * INTERVAL_S) <= DEADLINE_S:
                    delays[episode.kind].append(delay)
    hits = [d for ds in delays.values() for d in ds]
    injected = sum(n for kind, n in of.items() if kind != "none")
    return {
        "hit_rate": round(len(hits) / injected, 4),
        "false_alarm_rate": round(false / judged, 4),
        "delay_s": float(np.median(hits)) if hits else None,
        "hit_rate_by_kind": {kind: round(len(delays[kind]) / n, 3) for kind, n in of.items() if n and kind != "none"},
    }


def sections(made: dict[str, Any]) -> list[Section]:
    """One row per detector."""
    detectors = {"fuzzy (use, memory, queue)": made, f"mean CPU above {CPU_THRESHOLD:.0%}": made["threshold_baseline"]}
    kinds = list(made["hit_rate_by_kind"])
    rows = [
        (
            name,
            f"{100 * d['hit_rate']:.1f}",
            f"{100 * d['false_alarm_rate']:.1f}",
            "" if d["delay_s"] is None else f"{d['delay_s']:.0f}",
            *(f"{100 * d['hit_rate_by_kind'][k]:.0f}" for k in kinds),
        )
        for name, d in detectors.items()
    ]
    header = ("detector", "found %", "false alarms %", "delay s", *(k.replace("_", " ") + " %" for k in kinds))
    remark = f"{made['episodes']} chains of {OPERATORS} operators for 10 minutes each; delays in steps of {INTERVAL_S:g} s."
    return [Section("Simulated: injected bottlenecks", header, rows, remark)]
