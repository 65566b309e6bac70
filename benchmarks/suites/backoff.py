"""The benefit of linear back-off before sleeping: the latency of single events, and processor time with and without events.

One deployment per ceiling (`udo deploy --poll-us`); all are measured in turn, round by round, so that other load affects all alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.harness.bringup import Platform, platform, say
from benchmarks.harness.idle import cpu_percent, run_ns
from benchmarks.harness.openloop import Arrivals, send
from benchmarks.harness.quantiles import medians, summary_ms
from benchmarks.harness.rules import check_sequence
from benchmarks.harness.tables import Section
from benchmarks.suites.latency import OPERATOR, WARM_S, event
from udo_interface import connect

CEILINGS_US = (0, 100, 1_000, 5_000)
RATE = 1_000
ROUNDS, QUICK_ROUNDS = 5, 1
IDLE_S = 10.0


@dataclass(frozen=True)
class Round:
    """One ceiling's latencies and processor time, in one round or as medians of all."""

    mean_ms: float
    p50_ms: float
    p99_ms: float
    busy_cpu_percent: float


@dataclass(frozen=True)
class Ceiling(Round):
    """One ceiling's figures, with the processor time without events."""

    idle_cpu_percent: float


@dataclass(frozen=True)
class Figures:
    """By ceiling in µs."""

    ceilings: dict[str, Ceiling]
    rate: int
    rounds: int
    seconds: float
    idle_s: float
    driver: str


def deployment(ceiling_us: int) -> str:
    """The name of the deployment with this ceiling."""
    return f"poll-{ceiling_us}"


def instances(p: Platform) -> dict[str, list[Any]]:
    """The operator's processes, by deployment."""
    import psutil

    found = {}
    for slot in p.node().status().slots:
        if slot.pid:
            first = psutil.Process(slot.pid)
            found[slot.deployment] = [first, *first.children(True)]
    return found


def measure(p: Platform, ceiling_us: int, seconds: float) -> Round:
    """Measure one round: events at a fixed rate, of which the first second warms up."""
    name = deployment(ceiling_us)
    warm, events = int(RATE * WARM_S), int(RATE * (WARM_S + seconds))
    arrivals, processes = Arrivals(), instances(p)[name]
    with connect(name, node=p.node_socket) as client:
        client.add_listener(arrivals.add, batches=True)
        before = sum(run_ns(x.pid) for x in processes)
        sent = send(client, RATE, events, event)
        busy_ns = sum(run_ns(x.pid) for x in processes) - before
    ids = arrivals.column("id")
    check_sequence(ids, events).require_clean(name)
    passed_s = sent.ended - sent.started
    latencies = (arrivals.at() - sent.due(ids))[warm:]
    found = summary_ms(latencies)
    return Round(found.mean_ms, found.p50_ms, found.p99_ms, round(busy_ns / passed_s / 1e7, 2))


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the whole suite. The seed changes nothing: events are numbered."""
    rounds, seconds = (QUICK_ROUNDS, 2.0) if quick else (ROUNDS, 5.0)
    with platform(driver) as p:
        p.push(OPERATOR, "1")
        for ceiling in CEILINGS_US:
            p.deploy(deployment(ceiling), OPERATOR, limits={"backoff_ceiling_us": ceiling} if ceiling else {})
        found: dict[int, list[Round]] = {c: [] for c in CEILINGS_US}
        for n in range(rounds):
            say(f"round {n + 1} of {rounds}")
            for ceiling, results in found.items():
                results.append(measure(p, ceiling, seconds))
        say(f"idle for {IDLE_S:.0f} s")
        idle = cpu_percent(instances(p), IDLE_S)
    rows = {str(c): Ceiling(**vars(medians(results, 3)), idle_cpu_percent=idle[deployment(c)]) for c, results in found.items()}
    return Figures(rows, RATE, rounds, seconds, IDLE_S, driver)


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    header = ("ceiling µs", "mean ms", "p50", "p99", "CPU %", "idle CPU %", "p50 against 0")
    base = f.ceilings["0"].p50_ms
    rows = [
        [c, *(f"{x:.2f}" for x in (r.mean_ms, r.p50_ms, r.p99_ms, r.busy_cpu_percent, r.idle_cpu_percent, r.p50_ms / base))]
        for c, r in f.ceilings.items()
    ]
    remark = (
        f"{f.rate:,} events/s, open loop, {f.rounds} rounds of {f.seconds:g} s in turn, medians; CPU: processor "
        f"time of the operator's process in percent of a core, idle over {f.idle_s:g} s with the client gone."
    )
    return [Section("Linear back-off: latency against processor time", header, rows, remark)]
