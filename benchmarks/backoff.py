"""The benefit of linear back-off before sleeping: the latency of single events, and processor time with and without events.

One deployment per ceiling (`udo deploy --poll-us`); all are measured in turn, round by round, so that other load affects all alike.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.bringup import Platform, platform, say
from benchmarks.idle import cpu_percent, run_ns
from benchmarks.latency import OPERATOR, WARM_S, event
from benchmarks.openloop import Arrivals, send
from benchmarks.quantiles import summary_ms
from benchmarks.rules import check_sequence
from benchmarks.tables import Section
from udo_interface import connect

CEILINGS_US = (0, 100, 1_000, 5_000)
RATE = 1_000
ROUNDS, QUICK_ROUNDS = 5, 1
IDLE_S = 10.0
MEASURED = ("mean_ms", "p50_ms", "p99_ms", "busy_cpu_percent")


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


def measure(p: Platform, ceiling_us: int, seconds: float) -> dict[str, float]:
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
    return {**summary_ms(latencies), "busy_cpu_percent": round(busy_ns / passed_s / 1e7, 2)}


def run(*, quick: bool, driver: str, seed: int) -> dict[str, Any]:
    """Run the whole suite. The seed changes nothing: events are numbered."""
    rounds, seconds = (QUICK_ROUNDS, 2.0) if quick else (ROUNDS, 5.0)
    with platform(driver) as p:
        p.push(OPERATOR, "1")
        for ceiling in CEILINGS_US:
            p.deploy(deployment(ceiling), OPERATOR, limits={"backoff_ceiling_us": ceiling} if ceiling else {})
        found: dict[int, list[dict[str, float]]] = {c: [] for c in CEILINGS_US}
        for n in range(rounds):
            say(f"round {n + 1} of {rounds}")
            for ceiling, results in found.items():
                results.append(measure(p, ceiling, seconds))
        say(f"idle for {IDLE_S:.0f} s")
        idle = cpu_percent(instances(p), IDLE_S)
    rows = {str(c): {k: round(median(r[k] for r in results), 3) for k in MEASURED} for c, results in found.items()}
    for ceiling in CEILINGS_US:
        rows[str(ceiling)]["idle_cpu_percent"] = idle[deployment(ceiling)]
    return {"ceilings": rows, "rate": RATE, "rounds": rounds, "seconds": seconds, "idle_s": IDLE_S, "driver": driver}


def sections(record: dict[str, Any]) -> list[Section]:
    """The tables of a record."""
    header = ("ceiling µs", "mean ms", "p50", "p99", "CPU %", "idle CPU %", "p50 against 0")
    base = record["ceilings"]["0"]["p50_ms"]
    rows = [
        [c, *(f"{r[k]:.2f}" for k in ("mean_ms", "p50_ms", "p99_ms", "busy_cpu_percent", "idle_cpu_percent")), f"{r['p50_ms'] / base:.2f}"]
        for c, r in record["ceilings"].items()
    ]
    remark = (
        f"{record['rate']:,} events/s, open loop, {record['rounds']} rounds of {record['seconds']:g} s in turn, medians; CPU: processor "
        f"time of the operator's process in percent of a core, idle over {record['idle_s']:g} s with the client gone."
    )
    return [Section("Linear back-off: latency against processor time", header, rows, remark)]
