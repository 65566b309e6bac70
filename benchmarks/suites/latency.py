"""Added round trip of an event through an operator, without an engine: client, queue, operator, queue, client.

Measured in an open loop at fixed rates with the engine-free client; afterwards, without the client, the processor time of idle parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contenders.bare import bare_client
from benchmarks.harness.bringup import Platform, platform, say
from benchmarks.harness.idle import cpu_percent
from benchmarks.harness.openloop import DRAIN_TIMEOUT_S, Arrivals, Client, send
from benchmarks.harness.quantiles import Latencies, summary_ms
from benchmarks.harness.rules import check_sequence
from benchmarks.harness.tables import Section
from udo_interface import connect
from udo_interface.lane.channel import ChannelSettings

RATES = (1_000, 10_000, 100_000)
WARM_S = 1.0
IDLE_S = 20.0
OPERATOR = "forward"


@dataclass(frozen=True)
class AtRate(Latencies):
    """One rate: events/s as offered and as answered, the events of a frame of answers, and the time to the first answer before the load."""

    offered: int
    achieved: int
    events_per_frame: float
    first_answer_ms: float | None = None


@dataclass(frozen=True)
class Figures:
    """By contender and rate, and the processor time of idle parts."""

    rates: dict[str, AtRate]
    bare_redis: dict[str, AtRate]
    bare_redis_py: dict[str, AtRate]
    idle_cpu_percent: float
    idle_cpu_percent_others: dict[str, float]
    idle_s: float
    linger_ms: float
    seconds: float
    driver: str


def event(i: int) -> dict[str, Any]:
    """Make event `i`: 32 bytes, as in `throughput`."""
    return {"id": i, "card": i % 5000, "amount": 1.5, "at": i * 1000}


@contextmanager
def through_udo(p: Platform, arrivals: Arrivals) -> Iterator[Client]:
    """Yield a client of the deployment, on a new lane."""
    with connect(OPERATOR, node=p.node_socket) as client:
        client.add_listener(arrivals.add, batches=True)
        yield client


@contextmanager
def _bare(codec: str, p: Platform, arrivals: Arrivals) -> Iterator[Client]:
    """Yield a client of the floor, on a server of its own."""
    with TemporaryDirectory(prefix="udo-bare-") as directory, bare_client(Path(directory), codec, arrivals.add) as client:
        yield client


CONTENDERS: Mapping[str, Callable[[Platform, Arrivals], AbstractContextManager[Client]]] = {
    "rates": through_udo,
    "bare_redis": partial(_bare, "own"),
    "bare_redis_py": partial(_bare, "redis-py"),
}
TEXTS = {"rates": "UDO", "bare_redis": "two bare lists", "bare_redis_py": "two bare lists, redis-py with hiredis"}


def first_answer_ms(client: Client, arrivals: Arrivals) -> float:
    """Send one event before the load and wait for its answer: a late start, like that of an echo still importing, shows only here."""
    asked = time.perf_counter()
    client.send(event(0))
    client.flush(DRAIN_TIMEOUT_S)
    took_ms = (arrivals.times[-1] - asked) * 1000
    arrivals.clear()
    return round(took_ms, 2)


def measure(p: Platform, contender: str, rate: int, seconds: float) -> AtRate:
    """Measure one rate with a new client, from its first answer on. A second warms up: it is not counted, but its answers are checked."""
    warm, events = int(rate * WARM_S), int(rate * (WARM_S + seconds))
    arrivals = Arrivals()
    with CONTENDERS[contender](p, arrivals) as client:
        first_ms = first_answer_ms(client, arrivals)
        sent = send(client, rate, events, event)
    ids, at = arrivals.column("id"), arrivals.at()
    check_sequence(ids, events).require_clean(f"{rate:,} events/s")
    latencies = (at - sent.due(ids))[warm:]
    achieved = (events - warm) / (at[-1] - (sent.started + warm / rate))
    frames = sum(1 for t in arrivals.times if t >= at[warm])
    return AtRate(
        **vars(summary_ms(latencies)),
        offered=rate,
        achieved=round(achieved),
        events_per_frame=round((events - warm) / frames, 1),
        first_answer_ms=first_ms,
    )


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the whole suite. The seed changes nothing: events are numbered."""
    seconds = 4.0 if quick else 20.0
    with platform(driver) as p:
        p.push(OPERATOR, "1")
        p.deploy(OPERATOR, OPERATOR)
        found: dict[str, dict[str, AtRate]] = {name: {} for name in CONTENDERS}
        for rate in RATES:
            say(f"{rate:,} events/s")
            for name, rates in found.items():
                rates[str(rate)] = measure(p, name, rate, seconds)
        say(f"idle for {IDLE_S:.0f} s")
        idle = cpu_percent(p.processes(), IDLE_S)
    return Figures(
        **found,
        idle_cpu_percent=idle.pop("instance"),
        idle_cpu_percent_others=idle,
        idle_s=IDLE_S,
        linger_ms=ChannelSettings.linger_ms,
        seconds=seconds,
        driver=driver,
    )


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    ways = {"rates": f.rates, "bare_redis": f.bare_redis, "bare_redis_py": f.bare_redis_py}
    header = ("through", "events/s", "achieved", "mean ms", "p50", "p99", "p99.9", "max", "a frame", "first answer")
    rows = [
        [
            *(TEXTS[name], f"{r.offered:,.0f}", f"{r.achieved:,.0f}"),
            *(f"{ms:.2f}" for ms in (r.mean_ms, r.p50_ms, r.p99_ms, r.p999_ms, r.max_ms, r.events_per_frame)),
            "–" if r.first_answer_ms is None else f"{r.first_answer_ms:.1f}",
        ]
        for name, rates in ways.items()
        for r in rates.values()
    ]
    remark = (
        f"Open loop, all events of {f.seconds:g} s after a second of warm-up; linger {f.linger_ms:g} ms. The first answer (in ms) comes "
        "before that, from a new client, and of the lists from a new echo. "
        "Two bare lists: the same events through RPUSH and BLPOP to an echoing process, without log, numbering, fence or lease."
    )
    idle = [["idle instance", f"{f.idle_cpu_percent:.3f}"]]
    idle += [[name.replace("_", " "), f"{value:.3f}"] for name, value in sorted(f.idle_cpu_percent_others.items())]
    return [
        Section("Latency: round trip of an event", header, rows, remark),
        Section(f"Processor time when idle, over {f.idle_s:g} s", ("part", "% of a core"), idle),
    ]
