"""Percentiles of a whole population: every event counts, none is sampled, nothing is interpolated between events."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Quantiles:
    """Two percentiles, and the greatest value."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Latencies:
    """The mean, three percentiles and the greatest one of latencies, in milliseconds."""

    mean_ms: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


def percentile(ordered: Seconds, q: float) -> float:
    """Nearest rank: the smallest value that at least `q` (0..1) of the population does not exceed."""
    return float(ordered[max(math.ceil(q * len(ordered)) - 1, 0)])


def quantiles(values: Sequence[float], digits: int = 2) -> Quantiles:
    """Return p50, p99, and max."""
    ordered = np.sort(np.array(values))
    return Quantiles(*(round(x, digits) for x in (percentile(ordered, 0.5), percentile(ordered, 0.99), float(ordered[-1]))))


def summary_ms(seconds: Seconds) -> Latencies:
    """mean, p50, p99, p99.9 and max in milliseconds, of at least one value."""
    ordered = np.sort(seconds) * 1000
    ranks = (percentile(ordered, q) for q in (0.5, 0.99, 0.999))
    return Latencies(*(round(x, 4) for x in (float(ordered.mean()), *ranks, float(ordered[-1]))))


def medians(rounds: Sequence[Row], digits: int) -> Row:
    """Return the median of each figure over the rounds, which are dataclasses of figures."""
    kind = type(rounds[0])
    return kind(**{f.name: round(float(statistics.median(getattr(r, f.name) for r in rounds)), digits) for f in fields(kind)})  # type: ignore[arg-type]
