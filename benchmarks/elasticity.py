"""Scaling policies on a day of the DEBS 2015 top-10 routes (paper 5), and balancing in a large cluster. Simulated.

All policies see the same arrivals and steps that cost what live ones are assumed to; beside them the paper's pause and resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import numpy as np

from benchmarks.simulated import chain, cluster
from benchmarks.tables import Section

# name -> policy, its settings, what a step costs
CONTENDERS: dict[str, tuple[str, dict[str, Any], Mapping[Any, float]]] = {
    "accept_all": ("accept_all", {}, chain.LIVE_MS),
    "edf_0.5": ("edf", {"beta": 0.5}, chain.LIVE_MS),
    "edf_0.75": ("edf", {"beta": 0.75}, chain.LIVE_MS),
    "edf_0.75_returning": ("edf", {"beta": 0.75, "idle_token_s": 600.0}, chain.LIVE_MS),
    "ds2": ("ds2", {}, chain.LIVE_MS),
    "fuzzy": ("fuzzy", {}, chain.LIVE_MS),
    "pause_and_resume": ("edf", {"beta": 0.75}, chain.PAUSE_MS),
    "accept_all_paused": ("accept_all", {}, chain.PAUSE_MS),
}
DAY_S = 86_400
TICK_S, QUICK_TICK_S = 1.0, 5.0
CLUSTER_HOURS, QUICK_CLUSTER_HOURS = 24.0, 2.0

OPTIONS = [
    click.option("--simulated", is_flag=True, help="On a simulated clock; the only form so far, and the figures are labelled so."),
    click.option("--policy", "own", multiple=True, metavar="MODULE:FUNCTION", help="A policy of your own as one more contender."),
]


def run(quick: bool, driver: str, seed: int, simulated: bool, own: tuple[str, ...]) -> dict[str, Any]:
    """The record's figures."""
    if not simulated:
        raise click.UsageError("expected --simulated: applications are not scaled live yet")
    rates, dt = chain.day_rates(DAY_S, np.random.default_rng(seed)), QUICK_TICK_S if quick else TICK_S
    found = {}
    for name, (policy, settings, cost) in (CONTENDERS | {name: (name, {}, chain.LIVE_MS) for name in own}).items():
        figures = chain.play(rates, policy, settings, cost, seed, dt).figures()
        found[name] = {**figures, "settling_steps": chain.settling_steps(policy, settings, cost, seed)}
    return {
        "simulated": True,
        "assumed_live_step_ms": chain.LIVE_MS["migrate"],
        "policies": found,
        "cluster": cluster.play("DLB-H", QUICK_CLUSTER_HOURS if quick else CLUSTER_HOURS, seed),
    }


def sections(made: dict[str, Any]) -> list[Section]:
    """A row per policy; the cluster."""
    keys = ("availability_percent", "response_ok_percent", "response_p95_ms", "reconfigurations", "replica_hours", "settling_steps")
    header = ("policy", "available %", "response ≤ 200 ms, %", "response p95 ms", "steps", "replica hours", "steps to settle")
    rows = [(name, *(f"{p[k]:.7g}" for k in keys)) for name, p in made["policies"].items()]
    remark = f"A live step is assumed to stop the application for {made['assumed_live_step_ms']:g} ms, pause and resume for 8.6 s."
    c = made["cluster"]
    large = [(k.replace("_", " "), f"{v:g}") for k, v in c.items()]
    return [
        Section("Simulated: a day of top-10 routes", header, rows, remark),
        Section("Simulated: a large cluster under DLB-H", ("figure", "value"), large),
    ]
