"""A slot through TLS compared with the same slot through its Unix socket: throughput and round trip, in turn, on loopback addresses.

Both lanes lead to one instance and differ only in the transport: relay and TLS on both sides, or neither.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.harness.bringup import Platform, platform, say
from benchmarks.harness.quantiles import Latencies, summary_ms
from benchmarks.harness.rules import InvalidRun, check_sequence
from benchmarks.harness.tables import Section
from benchmarks.harness.tables import count as readable
from udo_interface.lane.lane import exchange
from udo_interface.lane.opening import Request, conversations
from udo_interface.lane.opening import ask as open_lane

OPERATOR = "forward"
ROWS_PER_FRAME = 10_000
WAYS = {"local": "Unix socket", "remote": "TLS through the relay"}


@dataclass(frozen=True)
class Figures:
    """By way; `events_per_s`: of each round. `throughput_ratio`: the median of the rounds' ratios, remote to local."""

    events_per_s: dict[str, list[float]]
    round_trip: dict[str, Latencies]
    throughput_ratio: float
    medians: dict[str, float]
    relay: str
    rows_per_frame: int
    rounds: int
    driver: str


def frame(first: int, rows: int) -> pa.RecordBatch:
    """Make a frame of numbered events of 32 bytes."""
    ids = np.arange(first, first + rows)
    columns = [pa.array(c) for c in (ids, ids % 5000, np.full(rows, 1.5), ids * 1000)]
    return pa.RecordBatch.from_arrays(columns, names=["id", "card", "amount", "at"])


class Way:
    """A transport to the operator: the Unix socket or TLS."""

    def __init__(self, p: Platform, name: str) -> None:
        port = (p.home.node / "port").read_text("utf-8").strip()
        self.name, self._node = name, p.node_socket if name == "local" else f"https://127.0.0.1:{port}"
        self._tls = None if name == "local" else p.tls
        self._schema = open_lane(self._node, Request(OPERATOR), tls=self._tls).input

    def events_per_s(self, frames: int) -> float:
        """Measure the throughput of a lane with a full window under way."""
        batches = [frame(n * ROWS_PER_FRAME, ROWS_PER_FRAME).cast(self._schema) for n in range(frames)]
        with conversations(self._node, Request(OPERATOR), self._schema, self._schema, tls=self._tls) as ([(sender, collector)], opened):
            began = time.perf_counter()
            answers = [a for _, a in exchange(sender, collector, ((b, None) for b in batches), opened.place.window_frames)]
            took_s = time.perf_counter() - began
        ids = np.concatenate([a.column("id").to_numpy() for a in answers])
        check_sequence(ids, frames * ROWS_PER_FRAME).require_clean(self.name)
        return frames * ROWS_PER_FRAME / took_s

    def round_trips_s(self, trips: int) -> list[float]:
        """Measure round trips of one event at a time."""
        found = []
        with conversations(self._node, Request(OPERATOR), self._schema, self._schema, tls=self._tls) as ([(sender, collector)], _):
            for n in range(trips):
                one, began = frame(n, 1).cast(self._schema), time.perf_counter()
                ((_, pieces),) = sender.encode(one)
                collector.due()
                sender.push(pieces)
                sender.settle()
                answers: list[pa.RecordBatch] = []
                while not answers:
                    answers = collector.wait()
                found.append(time.perf_counter() - began)
                if answers[0].column("id").to_pylist() != [n]:
                    raise InvalidRun(f"{self.name}: event {n} came back as {answers[0].to_pylist()}")
        return found


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the whole suite. The seed changes nothing: events are numbered."""
    rounds, frames, trips = (5, 100, 1000) if quick else (9, 400, 4000)
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    trip_s: dict[str, list[float]] = {name: [] for name in WAYS}
    with platform(driver, tls=True) as p:
        p.push(OPERATOR, "1")
        p.deploy(OPERATOR, OPERATOR)
        ways = [Way(p, name) for name in WAYS]
        for turn in range(rounds + 1):  # the first one warms up
            say(f"round {turn} of {rounds}")
            for way in ways:
                rate, trip = way.events_per_s(frames), way.round_trips_s(trips)
                if turn:
                    rates[way.name].append(round(rate))
                    trip_s[way.name] += trip
        with closing(p.node()) as node:
            relay = next(s for s in node.status().servers if s.role == "relay")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    pairs = [r / n for r, n in zip(rates["remote"], rates["local"], strict=True)]
    return Figures(
        events_per_s=rates,
        round_trip={name: summary_ms(np.array(values)) for name, values in trip_s.items()},
        throughput_ratio=round(statistics.median(pairs), 3),
        medians=medians,
        relay=relay.version,
        rows_per_frame=ROWS_PER_FRAME,
        rounds=rounds,
        driver=driver,
    )


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    rows = []
    for name, text in WAYS.items():
        trip, rates = f.round_trip[name], f.events_per_s[name]
        spread = f"{readable(min(rates))} – {readable(max(rates))}"
        share = f"{f.throughput_ratio:.2f}" if name == "remote" else "1"
        rows.append([text, readable(f.medians[name]), spread, share, f"{trip.p50_ms:.3f}", f"{trip.p99_ms:.3f}"])
    remark = (
        f"One lane, frames of {f.rows_per_frame:,} events of 32 bytes, a full window under way; one event at a time for the round "
        f"trip. {f.rounds} rounds in turn; × is the median of the rounds' ratios. Both ends, relay and instance share the machine."
    )
    header = ("a lane by", "events/s", "from – to", "×", "round trip p50, ms", "p99, ms")
    return [Section("A slot on another host, on loopback addresses", header, rows, remark)]
