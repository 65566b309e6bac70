"""The cost of a diff to the serving version: events per second with and without one, interleaved, on the same deployment.

One client keeps a window of batches under way through an operator that works per event, so that its instance bounds the
throughput, as in the case that matters; the new version, of the same code, answers all events too. Measured with an operator
that does some microseconds of work per event, where client and server need little of a second core and the diff has the rest,
and with one that does next to nothing, where on two cores client, server and both instances share them and none is free.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.harness import record
from benchmarks.harness.bringup import Platform, platform, wait_until
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section, count
from udo_interface import connect
from udo_interface.client import Client

# The operator's name by its cost per event.
OPERATORS = {"costly": "costly", "light": "each"}
BATCH = 10_000
SETTLE_S = 0.5
BEGIN_S, END_S = 30.0, 60.0
# A diff has compared all that it can once this many reports in a row, at two a second, have the same number of frames, seen or missed.
STILL = 3


@dataclass(frozen=True)
class Report:
    """A diff's counts of frames: compared, different, seen in all, and missed."""

    frames: int
    different: int
    seen: int
    missed: int


@dataclass(frozen=True)
class Rates:
    """Events per second, medians."""

    without: int
    diff: int


@dataclass(frozen=True)
class OfOperator:
    """One operator's rates, and the median of their ratios round by round."""

    events_per_s: Rates
    diff_vs_without: float
    frames_compared_share: float
    events: int


@dataclass(frozen=True)
class Figures:
    """By the cost of the operator; `diff_vs_without` is the costly one's."""

    diff_vs_without: float
    operators: dict[str, OfOperator]
    rounds: int
    seconds: float
    rows_per_batch: int
    driver: str


class Tally:
    """The number of answers so far; raises InvalidRun if they are out of order."""

    def __init__(self) -> None:
        self.events = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count an answer batch; this is the client's listener."""
        ids = batch.column("id").to_numpy()
        if ids[0] != self.events or len(ids) != ids[-1] - ids[0] + 1:
            raise InvalidRun(f"expected events from {self.events} on, got {ids[0]} to {ids[-1]}")
        self.events += len(ids)


def flow(client: Client, tally: Tally, sent: int, seconds: float) -> tuple[int, float]:
    """Send for `seconds`, then wait for the answers; return the events sent in all, and the events a second."""
    cards = np.zeros(BATCH, np.int64)
    began, before = time.perf_counter(), sent
    while time.perf_counter() - began < seconds:
        client.send_batch(pa.RecordBatch.from_pydict({"id": np.arange(sent, sent + BATCH), "card": cards}))
        sent += BATCH
    client.flush()
    if tally.events != sent:
        raise InvalidRun(f"{sent} events were sent, {tally.events} came back")
    return sent, (sent - before) / (time.perf_counter() - began)


@contextmanager
def diff(p: Platform, operator: str, reports: list[Report]) -> Iterator[None]:
    """Diff with version 2 inside the block; append to `reports` its report once the waiting frames have been compared. Wait for its end."""
    said: list[str] = []
    failed: list[Exception] = []
    ending = threading.Event()

    def run() -> None:
        try:
            events = p.node().diff(operator, "2", for_s=3600)
            for event in events:
                said.append(event.report_json)
                if ending.is_set() and _still(said):
                    events.close()  # type: ignore[attr-defined]
                    return
        except Exception as e:
            failed.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: bool(said or failed), BEGIN_S, "the diff to begin")
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        ending.set()
        thread.join(END_S)
    if failed or thread.is_alive():
        raise InvalidRun(f"the diff failed: {failed or 'it did not end'}")
    report = record.decode(Report, json.loads(said[-1]))
    if report.different:
        raise InvalidRun(f"the same code was found different: {said[-1]}")
    reports.append(report)
    # Without this the next round, without a diff, would begin while its instance still runs.
    wait_until(lambda: not any(s.diff for s in p.node().status().slots), END_S, "the end of the diff")


def _still(said: list[str]) -> bool:
    """Whether the last reports count the same number of frames, seen or missed."""
    last = [record.decode(Report, json.loads(text)) for text in said[-STILL:]]
    return len(last) == STILL and len({r.seen + r.missed for r in last}) == 1


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the whole suite. The seed changes nothing: events are numbered."""
    rounds, seconds = (4, 2.0) if quick else (13, 5.0)
    with platform(driver) as p:
        found = {kind: _operator(p, operator, rounds, seconds) for kind, operator in OPERATORS.items()}
    return Figures(found["costly"].diff_vs_without, found, rounds - 1, seconds, BATCH, driver)


def _operator(p: Platform, operator: str, rounds: int, seconds: float) -> OfOperator:
    """Measure one operator's events per second without and with a diff, and the median of their ratios round by round."""
    without: list[float] = []
    during: list[float] = []
    reports: list[Report] = []
    tally, sent, diffed = Tally(), 0, 0
    for version in ("1", "2"):
        p.push(operator, version)
    p.deploy(operator, operator)
    with connect(operator, node=p.node_socket) as client:
        client.add_listener(tally.add, batches=True)
        for _ in range(rounds):
            time.sleep(SETTLE_S)
            sent, rate = flow(client, tally, sent, seconds)
            without.append(rate)
            before = sent
            with diff(p, operator, reports):
                sent, rate = flow(client, tally, sent, seconds)
            during.append(rate)
            diffed += sent - before
    # The share of all frames sent: reports do not count frames that wait or were dropped at the end. Each batch is a frame.
    compared = sum(r.frames for r in reports) * BATCH / max(diffed, 1)
    return OfOperator(
        events_per_s=Rates(round(statistics.median(without[1:])), round(statistics.median(during[1:]))),
        diff_vs_without=round(statistics.median(d / w for d, w in zip(during[1:], without[1:], strict=True)), 3),
        frames_compared_share=round(compared, 3),
        events=sent,
    )


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    rows = [
        [
            f"{kind} operator",
            count(r.events_per_s.without),
            count(r.events_per_s.diff),
            f"{r.diff_vs_without:.3f}",
            f"{100 * r.frames_compared_share:.0f} %",
        ]
        for kind, r in f.operators.items()
    ]
    remark = (
        f"{f.rounds} rounds of {f.seconds:g} s each, interleaved; batches of {f.rows_per_batch:,} events. "
        "Costly: a core is free for the diff. Light: on two cores none is, client and server take the second one."
    )
    return [Section("A diff beside the serving version", ("", "events/s", "while a diff runs", "ratio", "compared"), rows, remark)]
