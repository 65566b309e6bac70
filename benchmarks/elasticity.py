"""Scaling policies on a day of the DEBS 2015 top-10 routes (paper 5): real deployments on a short day, or simulated with a large cluster.

In the simulation all policies see the same arrivals, and steps have the assumed cost of live ones; the paper's pause and resume is run too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import numpy as np

from benchmarks import live_chain, record
from benchmarks.bringup import platform, say
from benchmarks.simulated import chain, cluster
from benchmarks.tables import Section

# name -> policy, its settings, the cost of each kind of step
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
# On real deployments: each one's elasticity, the application that they form (None: each node decides alone), the source's pause per step.
_TOKEN_S = 60.0 / live_chain.FASTER
_MANAGED: dict[str, Any] = {"interval_s": live_chain.DECIDE_S}
_EDF = {**live_chain.NODE_SETTINGS, "token_s": _TOKEN_S, "idle_token_s": 0.0}
_ALL = {**live_chain.NODE_SETTINGS, "token_s": 0.01, "idle_token_s": 0.01, "capacity": 100}
_DS2 = {"token_s": 0.01, "capacity": 100, "reverse_s": live_chain.NODE_SETTINGS["reverse_s"]}
LIVE: dict[str, tuple[dict[str, Any], dict[str, Any] | None, float]] = {
    "accept_all": ({}, {**_MANAGED, "settings": _ALL}, 0.0),
    "edf_0.5": ({}, {**_MANAGED, "settings": {**_EDF, "beta": 0.5}}, 0.0),
    "edf_0.75": ({}, {**_MANAGED, "settings": {**_EDF, "beta": 0.75}}, 0.0),
    "ds2": ({"mode": "auto", "policy": "ds2", "settings": _DS2}, None, 0.0),
    "pause_and_resume": ({}, {**_MANAGED, "settings": {**_EDF, "beta": 0.75}}, chain.PAUSE_MS["scale_out"] / 1000 / live_chain.FASTER),
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


def run(quick: bool, driver: str, seed: int, simulated: bool, day_s: float | None, own: tuple[str, ...]) -> dict[str, Any]:
    """Return the record's figures."""
    if not simulated:
        if own:
            raise click.UsageError("expected --simulated with --policy: a node runs the policies that come with the package")
        return _live(quick, driver, seed, day_s or (QUICK_LIVE_DAY_S if quick else LIVE_DAY_S))
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


def _live(quick: bool, driver: str, seed: int, day_s: float) -> dict[str, Any]:
    """Play one day for each contender, on the same platform."""
    found = {}
    with platform(driver, decide_s=live_chain.DECIDE_S) as p:
        p.push(live_chain.OPERATOR, "1")
        for name in QUICK_LIVE if quick else LIVE:
            elasticity, application, pause_s = LIVE[name]
            say(f"{name}: a day of {day_s:g} s")
            found[name] = live_chain.play(p, day_s, elasticity, application, pause_s, seed).figures()
    scale = {"faster": live_chain.FASTER, "slower": live_chain.SLOWER, "r_max_ms": live_chain.R_MAX_MS}
    return {"simulated": False, "day_s": day_s, **scale, "policies": found}


def together(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the newest run on real deployments, with the newest simulated one as its `model`. Full runs come before quick ones."""
    return record.beside_its_model(records)


def _live_sections(made: dict[str, Any]) -> list[Section]:
    keys = ("availability_percent", "response_ok_percent", "response_p95_ms", "reconfigurations", "replica_hours")
    header = ("policy", "available %", f"response ≤ {made['r_max_ms']:g} ms, %", "response p95 ms", "steps", "replica hours")
    rows = [(name, *(f"{p[k]:.7g}" for k in keys)) for name, p in made["policies"].items()]
    remark = (
        f"A day of {made['day_s']:g} s; loops, tokens and calm {made['faster']:g} times faster, events {made['slower']:g} times rarer and "
        f"longer than in the simulation. Available: at most {live_chain.GAP_S:g} s without an answer. pause_and_resume: the source stops "
        "for what paper 1's redeployment takes, by the same factor, at each step."
    )
    return [Section("Real deployments: a short day of top-10 routes", header, rows, remark)]


def sections(made: dict[str, Any]) -> list[Section]:
    """A row per policy; for a simulated run also the cluster."""
    if not made["simulated"]:
        return _live_sections(made) + (sections(made["model"]) if "model" in made else [])
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
