"""Injected bottlenecks (paper 3): hits, misses, false alarms, and delays; on real deployments, or simulated.

Compares the fuzzy detection with a threshold on mean CPU use, as in Kubernetes' autoscaler, with the same confirmation by two intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import click
import numpy as np

from benchmarks.harness import record
from benchmarks.harness.bringup import platform, say
from benchmarks.harness.record import Record
from benchmarks.harness.tables import Section
from benchmarks.loads import injected
from benchmarks.simulated.bottlenecks import INTERVAL_S, KINDS, OPERATORS, Episode, play
from elasticity.bottleneck import fuzzy
from elasticity.bottleneck.detector import Hysteresis, OperatorHistory, step
from elasticity.bottleneck.signals import SlotSample, inputs

EPISODES, QUICK_EPISODES = 400, 60  # of each kind
CPU_THRESHOLD = 0.8
CONFIRM = 2
# A bottleneck found later than this counts as missed: by then the queues are full.
DEADLINE_S = 120.0
ROUNDS, QUICK_ROUNDS = 10, 1  # of benchmarks.loads.injected.PAIRS

OPTIONS = [
    click.option("--simulated", is_flag=True, help="On a simulated clock, many episodes; the figures are labelled so."),
    click.option("--rounds", type=click.IntRange(1), help="On real deployments: how often each kind is injected."),
]


@dataclass(frozen=True, kw_only=True)
class Detector:
    """One detector's hits and false alarms; `delay_s`: the median, None without a hit."""

    hit_rate: float
    false_alarm_rate: float
    delay_s: float | None
    hit_rate_by_kind: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Figures(Detector):
    """The fuzzy detection's figures, and those of the threshold beside them. interval_s: on real deployments; model: the simulated run."""

    simulated: bool
    episodes: int
    interval_s: float | None = None
    threshold_baseline: Detector
    model: Figures | None = None


class _Watched:
    """The intervals in which each detector reported each operator, in one episode."""

    def __init__(self, operators: int = OPERATORS) -> None:
        self.model, self.patience = fuzzy.shipped(), Hysteresis(confirm=CONFIRM, settle=0)
        self.watches, self.above = [OperatorHistory()] * operators, [0] * operators
        self.fuzzy: list[list[int]] = [[] for _ in range(operators)]
        self.threshold: list[list[int]] = [[] for _ in range(operators)]

    def see(self, t: int, operators: list[list[SlotSample]]) -> None:
        """Take an interval's samples: the slots of each operator."""
        for o, slots in enumerate(operators):
            if not slots:  # nothing was measured
                self.watches[o], self.above[o] = step(self.watches[o], None, self.model.thresholds, self.patience)[0], 0
                continue
            load = fuzzy.evaluate(self.model, inputs(slots) or {}).load
            self.watches[o], what = step(self.watches[o], load, self.model.thresholds, self.patience)
            if what == "take_over":
                self.fuzzy[o].append(t)
            self.above[o] = self.above[o] + 1 if float(np.mean([s.cpu for s in slots])) > CPU_THRESHOLD else 0
            if self.above[o] >= CONFIRM:
                self.threshold[o].append(t)


def run(quick: bool, driver: str, seed: int, simulated: bool, rounds: int | None) -> Figures:
    """Return the record's figures."""
    rng = np.random.default_rng(seed)
    if not simulated:
        return _live(quick, driver, rng, rounds or (QUICK_ROUNDS if quick else ROUNDS))
    found: list[tuple[Episode, _Watched]] = []
    for _ in range(QUICK_EPISODES if quick else EPISODES):
        for kind in KINDS:
            watched = _Watched()
            found.append((play(kind, rng, watched.see), watched))
    fuzzy_detector, baseline = _detectors(found, INTERVAL_S, DEADLINE_S)
    return Figures(**vars(fuzzy_detector), simulated=True, episodes=len(found), threshold_baseline=baseline)


def _live(quick: bool, driver: str, rng: np.random.Generator, rounds: int) -> Figures:
    """Play episodes on real deployments, two at the same time to save time."""
    bad, found = injected.QUICK_BAD if quick else injected.BAD, list[tuple[Episode, _Watched]]()
    with platform(driver, decide_s=injected.DECIDE_S) as p:
        injected.deploy(p)
        for turn in range(rounds):
            for kinds in injected.PAIRS:
                say(f"round {turn + 1}: {' and '.join(kinds)}")
                watched = {name: _Watched(1) for name in injected.SLOTS}
                episodes = injected.play(p, kinds, rng, bad, lambda name, t, slots: watched[name].see(t, [slots]))  # noqa: B023
                found += zip(episodes, watched.values(), strict=True)
    interval_s = injected.INTERVAL_S
    fuzzy_detector, baseline = _detectors(found, interval_s, bad * interval_s)
    return Figures(**vars(fuzzy_detector), simulated=False, episodes=len(found), interval_s=interval_s, threshold_baseline=baseline)


def _detectors(found: list[tuple[Episode, _Watched]], interval_s: float, deadline_s: float) -> tuple[Detector, Detector]:
    """Judge the fuzzy detection and the threshold."""
    return (
        _judge([(episode, watched.fuzzy) for episode, watched in found], interval_s, deadline_s),
        _judge([(episode, watched.threshold) for episode, watched in found], interval_s, deadline_s),
    )


def together(records: list[Record]) -> Record | None:
    """Return the newest run on real deployments, with the newest simulated one as its `model`. Full runs come before quick ones."""
    return record.beside_its_model(records)


def _judge(reports: list[tuple[Episode, list[list[int]]]], interval_s: float = INTERVAL_S, deadline_s: float = DEADLINE_S) -> Detector:
    """Compute hit and false-alarm rates. Hit: the slow operator was reported within deadline_s. False alarm: an operator was reported
    that was not slow at that time."""
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
                if first is not None and (delay := (first - episode.since + 1) * interval_s) <= deadline_s:
                    delays[episode.kind].append(delay)
    hits = [d for ds in delays.values() for d in ds]
    injected = sum(n for kind, n in of.items() if kind != "none")
    return Detector(
        hit_rate=round(len(hits) / injected, 4),
        false_alarm_rate=round(false / judged, 4),
        delay_s=float(np.median(hits)) if hits else None,
        hit_rate_by_kind={kind: round(len(delays[kind]) / n, 3) for kind, n in of.items() if n and kind != "none"},
    )


def sections(f: Figures) -> list[Section]:
    """One row per detector."""
    detectors: dict[str, Detector] = {"fuzzy (use, memory, queue)": f, f"mean CPU above {CPU_THRESHOLD:.0%}": f.threshold_baseline}
    kinds = list(f.hit_rate_by_kind)
    rows = [
        (
            name,
            f"{100 * d.hit_rate:.1f}",
            f"{100 * d.false_alarm_rate:.1f}",
            "" if d.delay_s is None else f"{d.delay_s:.3g}",
            *(f"{100 * d.hit_rate_by_kind[k]:.0f}" for k in kinds),
        )
        for name, d in detectors.items()
    ]
    header = ("detector", "found %", "false alarms %", "delay s", *(k.replace("_", " ") + " %" for k in kinds))
    if f.simulated:
        remark = f"{f.episodes} chains of {OPERATORS} operators for 10 minutes each; delays in steps of {INTERVAL_S:g} s."
        return [Section("Simulated: injected bottlenecks", header, rows, remark)]
    remark = f"{f.episodes} episodes, two at a time on one machine; delays in steps of {f.interval_s:g} s."
    return [Section("Real deployments: injected bottlenecks", header, rows, remark), *(sections(f.model) if f.model else [])]
