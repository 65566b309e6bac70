"""Flights: from a Parquet file with the columns of the on-time dataset, or made from a seed."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa

from examples.applications import common

SCHEMA = pa.schema(
    [
        ("flight_id", pa.int64()),  # the number of the row
        ("carrier", pa.string()),
        ("scheduled", pa.timestamp("us")),
        ("departed", pa.timestamp("us")),
        ("plane", pa.string()),
        ("delay_min", pa.int64()),
        ("air_min", pa.int64()),
    ]
)
_COLUMNS = ("carrier", "sched_dep_local", "dep_local", "tailnum", "dep_delay", "air_time")


def read(path: Path, rows: int | None) -> pa.Table:
    """Read the flights of a file in its order; delays, departures and tail numbers may be null."""
    wanted = pa.schema([(name, field.type) for name, field in zip(_COLUMNS, list(SCHEMA)[1:], strict=True)])
    table = common.read(path, wanted, rows)
    return pa.Table.from_arrays([pa.array(range(table.num_rows), pa.int64()), *table.columns], schema=SCHEMA)


def generated(rows: int, seed: int) -> pa.Table:
    """Sixty planes of four carriers that fly from morning to night; some flights are cancelled, some planes unknown."""
    draw = random.Random(seed)
    planes = [(f"N{100 + i}", f"C{i % 4}", draw.uniform(0.1, 0.7)) for i in range(60)]  # plane, carrier, share of delayed flights
    made = []
    for flight_id in range(rows):
        plane, carrier, late = draw.choice(planes)
        scheduled = dt.datetime(2013, 12, 1) + dt.timedelta(minutes=60 * 24 * 60 * flight_id // rows)  # sixty days, over New Year
        cancelled = draw.random() < 0.02
        delay = round(draw.expovariate(1 / 30)) if draw.random() < late else -draw.randrange(10)
        departed = None if cancelled else scheduled + dt.timedelta(minutes=delay)
        air = None if cancelled or draw.random() < 0.01 else draw.randrange(40, 300)
        known = None if draw.random() < 0.02 else plane
        made.append((flight_id, carrier, scheduled, departed, known, None if cancelled else delay, air))
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(zip(*made, strict=True), SCHEMA, strict=True)], schema=SCHEMA)
