"""The closing report of a demo: for people and, with --json, for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from udo_cli.demo.verify import Quality, Verification

# Spark's name for the whole of a micro-batch.
WHOLE = "triggerExecution"


@dataclass(frozen=True)
class DemoUpdate:
    """The live update as it happened. Times in ms; rows are those of the stream."""

    asked_row: int
    requested_row: int
    first_row: int | None
    took_ms: float
    longest_round_trip_ms: float | None


@dataclass(frozen=True)
class DemoReport:
    """All results of a run. `steps_ms`: median time of each step of a micro-batch, by its name in Spark's `durationMs`."""

    origin: str
    events_in: int
    micro_batches: int
    steps_ms: Mapping[str, float]
    stream_s: float
    total_s: float
    round_trip_p50_ms: float | None
    round_trip_p99_ms: float | None
    round_trips: int
    update: DemoUpdate
    verdict: Verification

    @property
    def events_per_s(self) -> float:
        """Rate over the whole stream, from its start to the last commit."""
        return self.events_in / self.stream_s if self.stream_s else 0.0

    @property
    def good(self) -> bool:
        """Whether every event was answered once and in order, and both versions answered."""
        return self.verdict.exact and {"1", "2"} <= self.verdict.quality.keys()

    def document(self) -> dict[str, Any]:
        """The report as JSON, for --json."""
        quality = {f"v{v}": asdict(q) | {"precision": q.precision, "recall": q.recall} for v, q in self.verdict.quality.items()}
        counted = {k: getattr(self.verdict, k) for k in ("events_out", "lost", "duplicated", "reordered", "unknown", "mixed_rows")}
        own: dict[str, Any] = {k: getattr(self, k) for k in ("origin", "events_in", "events_per_s", "micro_batches", "stream_s", "total_s")}
        trips = {"p50": self.round_trip_p50_ms, "p99": self.round_trip_p99_ms, "samples": self.round_trips}
        micro_batch = {"p50": self.steps_ms.get(WHOLE), "steps": {k: v for k, v in self.steps_ms.items() if k != WHOLE}}
        own |= {"good": self.good, "micro_batch_ms": micro_batch, "round_trip_ms": trips, "update": asdict(self.update)}
        return own | counted | {"quality": quality}

    def lines(self) -> list[tuple[str, str]]:
        """(name, figures) of each line for people."""
        v, u = self.verdict, self.update
        return [
            ("events in / out", f"{self.events_in:,} / {v.events_out:,} ({self.origin}, {self.micro_batches} micro-batches)"),
            ("events/s", f"{self.events_per_s:,.0f} over {self.stream_s:.1f} s"),
            ("one micro-batch", f"p50 {_ms(self.steps_ms.get(WHOLE))}"),
            (
                "round trip of one event",
                f"p50 {_ms(self.round_trip_p50_ms)}, p99 {_ms(self.round_trip_p99_ms)} ({self.round_trips:,} beside the stream)",
            ),
            ("live update", f"asked for at row {u.asked_row:,}, requested at {u.requested_row:,}, done after {u.took_ms:.0f} ms"),
            ("", f"first row answered by v2: {_row(u.first_row)}; longest round trip meanwhile {_ms(u.longest_round_trip_ms)}"),
            ("lost / doubled / reordered", f"{v.lost} / {v.duplicated} / {v.reordered}"),
            *((f"fraud v{name}", _quality(q)) for name, q in v.quality.items()),
            ("in all", f"{self.total_s:.0f} s"),
        ]


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} ms"


def _row(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


def _quality(q: Quality) -> str:
    precision = "-" if q.precision is None else f"{q.precision:.2f}"
    recall = "-" if q.recall is None else f"{q.recall:.2f}"
    return f"precision {precision}, recall {recall} ({q.caught:,} of {q.frauds:,} frauds in {q.rows:,} payments, {q.flagged:,} flagged)"
