"""Percentiles of a whole population: every event counts, none is sampled, nothing is interpolated between events."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


def percentile(ordered: Seconds, q: float) -> float:
    """Nearest rank: the smallest value that at least `q` (0..1) of the population does not exceed."""
    return float(ordered[max(math.ceil(q * len(ordered)) - 1, 0)])


def summary_ms(seconds: Seconds) -> dict[str, float]:
    """mean, p50, p99, p99.9 and max in milliseconds, of at least one value."""
    ordered = np.sort(seconds) * 1000
    return {
        "mean_ms": round(float(ordered.mean()), 4),
        "p50_ms": round(percentile(ordered, 0.5), 4),
        "p99_ms": round(percentile(ordered, 0.99), 4),
        "p999_ms": round(percentile(ordered, 0.999), 4),
        "max_ms": round(float(ordered[-1]), 4),
    }
