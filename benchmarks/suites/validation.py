"""The cost of validating every Arrow body: events per second with and without, interleaved, from one client.

The engine-free client sends frames of 10,000 rows to a vectorised operator that does next to nothing, so that no other cost hides that
of the checks on both sides. Without them, client and instance decode with Arrow alone. Beside the rates, the record has the processor
time per event of client, queue server and instances, which other work on the machine affects less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness.bringup import Platform, platform, say
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section, count
from benchmarks.operators.trusting.trusting import unchecked
from udo_interface import connect
from udo_interface.client import Client
from udo_protocol.formats import body

ROWS = 10_000
# Different batches sent in turn, so that no cache holds all of them.
BATCHES = 32
OPERATOR = "trusting"
WAYS = ("checked", "unchecked")
_NUMBERS = {"id": "int64", "card": "int64", "amount": "double", "at": "int64"}
_TEXT = {"id": "int64", "amount": "double", "merchant": "string", "city": "string"}


@dataclass(frozen=True)
class Case:
    """One function on one kind of event."""

    name: str
    what: str
    function: str
    columns: dict[str, str]
    city: str = "city"


CASES = (
    Case("filter", "filter, numbers", "Filter", _NUMBERS),
    Case("forward", "forward, numbers", "Forward", _NUMBERS),
    Case("filter_text", "filter, two columns of text", "Filter", _TEXT),
    Case("forward_text", "forward, two columns of text", "Forward", _TEXT),
    Case("forward_umlauts", "forward, one of the two not ASCII", "Forward", _TEXT, "Zürich-Örlikon"),
)


@dataclass(frozen=True)
class OfCase:
    """Events per second with the checks, and without, and the medians of the rounds' own ratios."""

    events_per_s: int
    events_per_s_without: int
    ratio: float
    cpu_ratio: float


@dataclass(frozen=True)
class Figures:
    """By case; the first two are those of the filter."""

    validation_vs_without: float
    validation_vs_without_cpu: float
    cases: dict[str, OfCase]
    rounds: int
    rows_per_batch: int
    driver: str


def batches(case: Case, seed: int) -> list[pa.RecordBatch]:
    """Make the batches to send, from the seed."""
    rng = np.random.default_rng(seed)
    made = []
    for n in range(BATCHES):
        numbers = {
            "id": np.arange(n * ROWS, (n + 1) * ROWS),
            "card": rng.integers(0, 5000, ROWS),
            "amount": rng.integers(0, 100_000, ROWS) / 100.0,
            "at": np.arange(n * ROWS, (n + 1) * ROWS) * 1000,
        }
        texts = {
            "merchant": [f"merchant-{i}" for i in rng.integers(0, 100_000, ROWS)],
            "city": [f"{case.city} {i}" for i in rng.integers(0, 1000, ROWS)],
        }
        made.append(pa.RecordBatch.from_pydict({name: {**numbers, **texts}[name] for name in case.columns}))
    return made


def expected(case: Case, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the right answer to a batch."""
    return batch.filter(pc.greater(batch.column("amount"), 500.0)) if case.function == "Filter" else batch


@contextmanager
def switched(way: str) -> Iterator[None]:
    """Switch this process's checks of incoming bodies on or off inside the block."""
    checked = body.read
    if way != "checked":
        body.read = unchecked  # type: ignore[assignment]
    try:
        yield
    finally:
        body.read = checked


class Calls:
    """A case's two deployments, and their clients."""

    def __init__(self, p: Platform, case: Case, first_version: int, seed: int) -> None:
        self._sent = batches(case, seed)
        self._platform, self._case = p, case
        self.clients: dict[str, Client] = {}
        self._rows = 0
        self._answers: list[pa.RecordBatch] | None = None
        for n, way in enumerate(WAYS):
            entry = f"trusting:{'' if way == 'checked' else 'Trusting'}{case.function}"
            version, name = str(first_version + n), f"{case.name}-{way}".replace("_", "-")
            p.push(OPERATOR, version, entry=entry, input=case.columns, output=case.columns)
            p.deploy(name, OPERATOR, version)
            self.clients[way] = connect(name, node=p.node_socket)
            self.clients[way].add_listener(self._answered, batches=True)

    def _answered(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        if self._answers is not None:
            self._answers.append(batch)

    def check(self) -> None:
        """Check that both ways give the right answers, in order."""
        wanted = pa.Table.from_batches([expected(self._case, b) for b in self._sent])
        for way, client in self.clients.items():
            self._answers = []
            with switched(way):
                self._send(client, self._sent)
            if not pa.Table.from_batches(self._answers).equals(wanted):
                raise InvalidRun(f"{self._case.name} {way} answers something else")
        self._answers = None
        found = self._platform.processes()
        self._processes = [psutil.Process(), *found["instance"], *found["queue"]]

    def _cpu_s(self) -> float:
        return sum(sum(p.cpu_times()[:2]) for p in self._processes)

    def rate(self, way: str, times: int) -> tuple[float, float]:
        """Send all batches `times` times; return the events a second, and the events per second of processor time."""
        rows = sum(expected(self._case, b).num_rows for b in self._sent) * times
        self._rows, used_s, started = 0, self._cpu_s(), time.perf_counter()
        with switched(way):
            self._send(self.clients[way], self._sent * times)
        took_s, used_s = time.perf_counter() - started, self._cpu_s() - used_s
        if self._rows != rows:
            raise InvalidRun(f"{self._case.name} {way}: expected {rows} answered events, got {self._rows}")
        events = BATCHES * ROWS * times
        return events / took_s, events / used_s

    def _send(self, client: Client, sent: list[pa.RecordBatch]) -> None:
        for batch in sent:
            client.send_batch(batch)
        client.flush()

    def close(self) -> None:
        """Close the clients."""
        for client in self.clients.values():
            client.close()


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the whole suite; ratios are medians of the rounds' own ratios."""
    rounds, times = (7, 6) if quick else (41, 12)
    rates: dict[str, dict[str, list[tuple[float, float]]]] = {c.name: {w: [] for w in WAYS} for c in CASES}
    with platform(driver) as p:
        for n, case in enumerate(CASES):
            say(case.what)
            calls = Calls(p, case, 1 + 2 * n, seed)
            try:
                calls.check()
                for turn in range(rounds):  # the ways alternate in going first
                    for way in WAYS if turn % 2 else reversed(WAYS):
                        rates[case.name][way].append(calls.rate(way, times))
            finally:
                calls.close()
    found = {name: _figures(by) for name, by in rates.items()}
    return Figures(found["filter"].ratio, found["filter"].cpu_ratio, found, rounds - 1, ROWS, driver)


def _figures(rates: dict[str, list[tuple[float, float]]]) -> OfCase:
    checked, unchecked = (rates[w][1:] for w in WAYS)

    def ratio(which: int) -> float:
        return round(statistics.median(a[which] / b[which] for a, b in zip(checked, unchecked, strict=True)), 3)

    with_s, without_s = (round(statistics.median(r for r, _ in of)) for of in (checked, unchecked))
    return OfCase(with_s, without_s, ratio(0), ratio(1))


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    rows = [
        [c.what, count(of.events_per_s), count(of.events_per_s_without), f"{of.ratio:.3f}", f"{of.cpu_ratio:.3f}"]
        for c in CASES
        for of in [f.cases[c.name]]
    ]
    remark = f"{f.rounds} rounds, interleaved; frames of {f.rows_per_batch:,} events; the engine-free client."
    return [Section("Validating every body", ("", "events/s", "without", "ratio", "by processor time"), rows, remark)]
