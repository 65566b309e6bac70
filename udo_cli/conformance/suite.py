"""Runs the cases for one conformance operator, and times frames."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa
from udo_runtime.child.wire import Gone
from udo_runtime.state.codec import pack

from udo_cli.conformance.cases import CASES, Case
from udo_cli.conformance.player import AnsweredFailure, Known, Mismatch, Player, Starting, keyed_tables, said
from udo_cli.conformance.schemas import EVENTS, KEYED_BOTH, KEYED_IN, N
from udo_protocol.errors import UdoError
from udo_protocol.proto import operator_pb2 as pb

# Importing the modules registers their cases, in this order.
for _part in ("handshake", "types", "memory", "events", "keyed_cases", "bounds"):
    import_module(f"udo_cli.conformance.{_part}")
# Frames of each kind before the measurement, after which a JVM has compiled its code, and frames measured.
_WARM, _FRAMES = 20, 30
_ROWS, _KEYS = 10_000, 1_000
# The end of a process's output that is shown with a failed case.
_LINES_CHARS = 2_000


@dataclass(frozen=True)
class Result:
    """The result of one case; `why` is empty if it passed."""

    case: Case
    took_ms: float
    why: str = ""
    lines: str = ""  # the last lines that its process wrote


def run(start: Starting, timeout_s: float, chosen: str = "") -> Iterator[Result]:
    """Run all cases, or those whose part or title contains `chosen`, one after the other."""
    for case in CASES:
        if chosen not in f"{case.part}: {case.title}":
            continue
        opened = _Opened(start, timeout_s)
        started = time.perf_counter()
        try:
            case.run(opened)
            why = ""
        except (Mismatch, AnsweredFailure, Gone, UdoError, pa.ArrowException, ValueError, KeyError, TypeError) as e:
            why = said(e)
        yield Result(case, (time.perf_counter() - started) * 1000, why, opened.lines if why else "")


class _Opened:
    """Starts processes for a case."""

    def __init__(self, start: Starting, timeout_s: float) -> None:
        self._start, self._timeout_s = start, timeout_s
        self.lines = ""

    @contextmanager
    def __call__(
        self, role: str, schemas: tuple[pa.Schema, pa.Schema] | None = None, keyed: dict[str, Any] | None = None, **env: str
    ) -> Iterator[Player]:
        player = Player(self._start, role, env, self._timeout_s)
        try:
            if schemas is not None:
                player.start(schemas, keyed)
            yield player
        finally:
            player.close()
            self.lines = player.process.last_lines[-_LINES_CHARS:]


def frames(start: Starting, timeout_s: float) -> dict[str, float]:
    """Median µs of a frame, request to validated answer, by kind; a kind that fails is left out."""
    open_ = _Opened(start, timeout_s)
    numbers = pa.RecordBatch.from_arrays([pa.array(range(_ROWS), pa.int64())], schema=N)
    some = pa.RecordBatch.from_arrays([pa.array(["add"] * _ROWS), numbers.column(0)], schema=EVENTS)
    names = pa.array([f"k{n % _KEYS}" for n in range(_ROWS)])
    at = pa.nulls(_ROWS, KEYED_IN.types[3])
    counted = pa.RecordBatch.from_arrays([names, pa.array(["count"] * _ROWS), numbers.column(0), at], schema=KEYED_IN)
    tables = keyed_tables(counted, [Known(f"k{n}", pack({"n": n})) for n in range(_KEYS)])
    both = {"columns": ["k"]}
    found: dict[str, float] = {}
    for name, role, schemas, keyed_as, ask in (
        ("one event, batches", "forward", (N, N), None, lambda p: p.data(numbers.slice(0, 1))),
        ("10,000 events, batches", "forward", (N, N), None, lambda p: p.data(numbers)),
        ("10,000 events, one by one", "events", (EVENTS, N), None, lambda p: p.data(some)),
        ("10,000 events of 1,000 keys, one by one", "keyed", KEYED_BOTH, both, lambda p: p.answered(pb.Data(), tables, _KEYS)),
        ("10,000 events of 1,000 keys, batches", "keyed_batches", KEYED_BOTH, both, lambda p: p.answered(pb.Data(), tables, _KEYS)),
    ):
        with contextlib.suppress(Mismatch, AnsweredFailure, Gone, UdoError), open_(role, schemas, keyed_as) as p:
            found[name] = _median_us(p, ask)
    return found


def _median_us(p: Player, ask: Callable[[Player], Any]) -> float:
    took = []
    for _ in range(_WARM + _FRAMES):
        started = time.perf_counter()
        ask(p)
        took.append((time.perf_counter() - started) * 1e6)
    return round(statistics.median(took[_WARM:]), 1)
