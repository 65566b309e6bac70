"""Scaling policies on a day of the DEBS 2015 top-10 routes (paper 5): real deployments on a short day, or simulated with a large cluster.

In the simulation all policies see the same arrivals, and steps have the assumed cost of live ones; the paper's pause and resume is run too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import click
import numpy as np

from benchmarks.harness import record
from benchmarks.harness.bringup import platform, say
from benchmarks.harness.record import Record
from benchmarks.harness.tables import Section
from benchmarks.loads import live_chain
from benchmarks.loads.live_chain import Decider, LiveDay
from benchmarks.simulated import chain, cluster
from elasticity.scaling.model import Kind


@dataclass(frozen=True)
class Contender:
    """A policy in the simulation, its settings, and how long a step of each kind stops the application."""

    policy: str
    settings: Mapping[str, float] = field(default_factory=dict)
    downtime_ms: Mapping[Kind, float] = field(default_factory=lambda: chain.LIVE_MS)


CONTENDERS = {
    "accept_all": Contender("accept_all"),
    "edf_0.5": Contender("edf", {"beta": 0.5}),
    "edf_0.75": Contender("edf", {"beta": 0.75}),
    "edf_0.75_returning": Contender("edf", {"beta": 0.75, "idle_token_s": 600.0}),
    "ds2": Contender("ds2"),
    "fuzzy": Contender("fuzzy"),
    "pause_and_resume": Contender("edf", {"beta": 0.75}, chain.PAUSE_MS),
    "accept_all_paused": Contender("accept_all", downtime_ms=chain.PAUSE_MS),
}
_TOKEN_S = 60.0 / live_chain.FASTER
_EDF = {**live_chain.NODE_SETTINGS, "token_s": _TOKEN_S, "idle_token_s": 0.0}
_ALL = {**live_chain.NODE_SETTINGS, "token_s": 0.01, "idle_token_s": 0.01, "capacity": 100}
_DS2 = {"token_s": 0.01, "capacity": 100, "reverse_s": live_chain.NODE_SETTINGS["reverse_s"]}
LIVE = {
    "accept_all": Decider("", _ALL),
    "edf_0.5": Decider("", {**_EDF, "beta": 0.5}),
    "edf_0.75": Decider("", {**_EDF, "beta": 0.75}),
    "ds2": Decider("ds2", _DS2),
    "pause_and_resume": Decider("", {**_EDF, "beta": 0.75}, chain.PAUSE_MS["scale_out"] / 1000 / live_chain.FASTER),
}
LIVE_DAY_S, QUICK_LIVE_DAY_S = 300.0, 15.0
QUICK_LIVE = ("accept_all", "edf_0.5")
DAY_S = 86_400
TICK_S, QUICK_TICK_S = 1.0, 5.0
CLUSTER_HOURS, QUICK_CLUSTER_HOURS = 24.0, 2.0

OPTIONS = [
    click.option("--simulated", is_flag=True, help="On a simulated clock, a whole day and a large cluster; the figures are labelled so."),
    click.option("--day-s", type=click.FloatRange(10), help="Seconds that the day takes on real deployments."),
    click.option("--policy", "own", multiple=True, metavar="MODULE:FUNCTION", help="A policy of your own as one more contender."),
]


@dataclass(frozen=True)
class SimulatedDay(chain.DayFigures):
    """A simulated day; `settling_steps`: after a sudden rise of the load."""

    settling_steps: float


@dataclass(frozen=True)
class SimulatedFigures:
    """By policy, and of a large cluster."""

    simulated: Literal[True]
    assumed_live_step_ms: float
    policies: dict[str, SimulatedDay]
    cluster: cluster.ClusterFigures


@dataclass(frozen=True)
class LiveFigures:
    """By policy on a day of `day_s`. model: the simulated run."""

    simulated: Literal[False]
    day_s: float
    faster: float
    slower: float
    r_max_ms: float
    policies: dict[str, LiveDay]
    model: SimulatedFigures | None = None


Figures = LiveFigures | SimulatedFigures


def run(quick: bool, driver: str, seed: int, simulated: bool, day_s: float | None, own: tuple[str, ...]) -> Figures:
    """Play the contenders' days."""
    if not simulated:
        if own:
            raise click.UsageError("expected --simulated with --policy: a node runs the policies that come with the package")
        return _live(quick, driver, seed, day_s or (QUICK_LIVE_DAY_S if quick else LIVE_DAY_S))
    rates, dt = chain.day_rates(DAY_S, np.random.default_rng(seed)), QUICK_TICK_S if quick else TICK_S
    found = {}
    for name, c in (CONTENDERS | {name: Contender(name) for name in own}).items():
        figures = chain.play(rates, c.policy, c.settings, c.downtime_ms, seed, dt).figures()
        found[name] = SimulatedDay(**vars(figures), settling_steps=chain.settling_steps(c.policy, c.settings, c.downtime_ms, seed))
    large = cluster.play("DLB-H", QUICK_CLUSTER_HOURS if quick else CLUSTER_HOURS, seed)
    return SimulatedFigures(True, chain.LIVE_MS["migrate"], found, large)


def _live(quick: bool, driver: str, seed: int, day_s: float) -> LiveFigures:
    """Play one day for each contender, on the same platform."""
    found = {}
    with platform(driver, decide_s=live_chain.DECIDE_S) as p:
        p.push(live_chain.OPERATOR, "1")
        for name in QUICK_LIVE if quick else LIVE:
            say(f"{name}: a day of {day_s:g} s")
            found[name] = live_chain.play(p, day_s, LIVE[name], seed).figures()
    return LiveFigures(False, day_s, live_chain.FASTER, live_chain.SLOWER, live_chain.R_MAX_MS, found)


def together(records: list[Record]) -> Record | None:
    """Return the newest run on real deployments, with the newest simulated one as its `model`. Full runs come before quick ones."""
    return record.beside_its_model(records)


def _cells(day: chain.DayFigures) -> list[str]:
    measured = (day.availability_percent, day.response_ok_percent, day.response_p95_ms, day.reconfigurations, day.replica_hours)
    return [f"{x:.7g}" for x in measured]


def _live_sections(f: LiveFigures) -> list[Section]:
    header = ("policy", "available %", f"response ≤ {f.r_max_ms:g} ms, %", "response p95 ms", "steps", "replica hours")
    rows = [(name, *_cells(day)) for name, day in f.policies.items()]
    remark = (
        f"A day of {f.day_s:g} s; loops, tokens and calm {f.faster:g} times faster, events {f.slower:g} times rarer and "
        f"longer than in the simulation. Available: at most {live_chain.GAP_S:g} s without an answer. pause_and_resume: the source stops "
        "for what paper 1's redeployment takes, by the same factor, at each step."
    )
    return [Section("Real deployments: a short day of top-10 routes", header, rows, remark)]


def sections(f: Figures) -> list[Section]:
    """A row per policy; for a simulated run also the cluster."""
    if isinstance(f, LiveFigures):
        return _live_sections(f) + (sections(f.model) if f.model else [])
    header = ("policy", "available %", "response ≤ 200 ms, %", "response p95 ms", "steps", "replica hours", "steps to settle")
    rows = [(name, *_cells(day), f"{day.settling_steps:.7g}") for name, day in f.policies.items()]
    remark = f"A live step is assumed to stop the application for {f.assumed_live_step_ms:g} ms, pause and resume for 8.6 s."
    large = [(name.replace("_", " "), f"{x:g}") for name, x in vars(f.cluster).items()]
    return [
        Section("Simulated: a day of top-10 routes", header, rows, remark),
        Section("Simulated: a large cluster under DLB-H", ("figure", "value"), large),
    ]
