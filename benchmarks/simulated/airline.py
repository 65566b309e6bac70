"""The airline-delay job as a load per key group over time: four operators over the flights of a week, played in 48 minutes.

Flights are read from a file or made from a seed. They are sent in the file's order, over and over, at 8,000 a second on average, as in
the paper; the rate follows the departures over the days of a week.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness.rules import InvalidRun

Floats = npt.NDArray[np.floating]
MINUTES, STEP_S = 48, 10
STEPS = MINUTES * 60 // STEP_S
WEEK_MINUTES = 7 * 24 * 60
# Operators: extract delays; sum them per plane; share of time in the air; share delayed, on random samples.
OPERATORS = 4
# Operator 4 takes an event from each instance of operator 1 every 200 ms.
MEAN_EVENTS_PER_S = 8_000
SAMPLES_PER_S, FLIGHT_NODES, SAMPLING_NODES = 5, 16, 4
_COLUMNS = ("sched_dep_local", "dep_local", "carrier", "flight", "tailnum", "dep_delay", "air_time")
_GENERATED, _GENERATED_PLANES = 700_000, 5_000


@dataclass(frozen=True)
class Flights:
    """The flights of one week: minute of the week, flight and plane as hashes, delayed or not, flown or not."""

    minute: npt.NDArray[np.int64]
    flight: npt.NDArray[np.int64]
    plane: npt.NDArray[np.int64]
    delayed: npt.NDArray[np.bool_]
    flown: npt.NDArray[np.bool_]


def read(path: Path) -> Flights:
    """Read flights from a Parquet file. Flights without a departure (cancelled ones) are left out."""
    have = pq.read_schema(path).names
    if missing := [c for c in _COLUMNS if c not in have]:
        raise InvalidRun(f"{path} has no columns {', '.join(missing)}; it has {', '.join(have)}")
    table = pq.read_table(path, columns=list(_COLUMNS))
    departure = pc.coalesce(table["dep_local"], table["sched_dep_local"])
    table = table.append_column("departure", departure).filter(pc.is_valid(departure))
    day = pc.day_of_week(table["departure"]).to_numpy()
    minute = day * 24 * 60 + pc.hour(table["departure"]).to_numpy() * 60 + pc.minute(table["departure"]).to_numpy()
    number = pc.binary_join_element_wise(table["carrier"].cast(pa.string()), table["flight"].cast(pa.string()), "")
    return Flights(
        minute,
        _hashes(number),
        _hashes(pc.fill_null(table["tailnum"], "unknown")),
        pc.fill_null(pc.greater(table["dep_delay"], 0), False).to_numpy(),
        pc.is_valid(table["air_time"]).to_numpy(),
    )


def _hashes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    encoded = column.combine_chunks().dictionary_encode()
    words = np.array([zlib.crc32(str(w).encode()) for w in encoded.dictionary.to_pylist()], np.int64)
    found: npt.NDArray[np.int64] = words[encoded.indices.to_numpy()]
    return found


def generate(seed: int) -> Flights:
    """Make flights that leave by day, fewer at weekends, with planes that fly unequally often."""
    rng = np.random.default_rng(seed)
    day = rng.choice(7, _GENERATED, p=np.array([15, 15, 15, 15, 15, 12, 13]) / 100)
    hour = rng.uniform(5.5, 21.5, _GENERATED)
    weights = rng.lognormal(sigma=0.7, size=_GENERATED_PLANES)
    return Flights(
        (day * 24 * 60 + hour * 60).astype(np.int64),
        rng.integers(0, 4000, _GENERATED),
        rng.choice(_GENERATED_PLANES, _GENERATED, p=weights / weights.sum()),
        rng.random(_GENERATED) < 0.4,
        rng.random(_GENERATED) < 0.98,
    )


def group_of(keys: npt.NDArray[np.int64], groups: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the key group of each key, distributed differently with each seed (multiplicative hashing, the upper bits)."""
    return ((keys + seed * 40503) * 2654435761 % 2**32 >> 8) % groups


def rates(flights: Flights, growth: float) -> Floats:
    """The events per second in each step: the flights' week, played in 48 minutes and growing linearly to `growth` times its rate."""
    step = flights.minute * STEPS // WEEK_MINUTES
    week = np.bincount(step, minlength=STEPS) / len(step)
    return week * STEPS * MEAN_EVENTS_PER_S * np.linspace(1, growth, STEPS)


def events(flights: Flights, rates_per_s: Floats, groups: int, seed: int) -> Floats:
    """The events in each key group and step (key groups × steps); `groups` key groups per operator, operator by operator. The file
    is played over and over."""
    ends = np.cumsum(rates_per_s * STEP_S)
    everything = np.ones(len(flights.flight), np.bool_)
    inputs = ((flights.flight, everything), (flights.plane, flights.delayed), (flights.plane, flights.flown))
    counts = np.zeros((OPERATORS, groups * STEPS))
    for first in range(0, int(ends[-1]), len(flights.minute)):
        step = np.searchsorted(ends, np.arange(first, first + len(flights.minute)), side="right")
        for operator, (key, taken) in enumerate(inputs):
            now = step[taken]
            cell = group_of(key[taken][now < STEPS], groups, seed) * STEPS + now[now < STEPS]
            counts[operator] += np.bincount(cell, minlength=groups * STEPS)
    sampled = np.random.default_rng(seed).multinomial(SAMPLES_PER_S * STEP_S * FLIGHT_NODES, np.ones(groups) / groups, STEPS)
    counts[-1] = sampled.T.ravel()
    return counts.reshape(OPERATORS * groups, STEPS)
