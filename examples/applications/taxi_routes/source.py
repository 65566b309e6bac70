"""Taxi events: from a Parquet file with the columns of the New York taxi rides, or made from a seed."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa

from examples.applications import common

SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("is_start", pa.bool_()),
        ("start_lon", pa.float64()),
        ("start_lat", pa.float64()),
        ("end_lon", pa.float64()),
        ("end_lat", pa.float64()),
    ]
)
PLACES = [(-73.99, 40.75), (-73.98, 40.76), (-73.97, 40.77), (-74.00, 40.73), (-73.96, 40.78), (-73.87, 40.77), (-73.79, 40.64)]
BEGIN, HOURS = dt.datetime(2013, 1, 1, tzinfo=dt.UTC), 2.0


def read(path: Path, rows: int | None) -> pa.Table:
    """Read the taxi events of a file in its order, which is that of time."""
    wanted = pa.schema([pa.field("event_time", SCHEMA.field("at").type), *list(SCHEMA)[1:]])
    return common.read(path, wanted, rows).rename_columns(SCHEMA.names)


def generated(rows: int, seed: int) -> pa.Table:
    """Rides between a few places, some of which get more popular; each is two events. Some have no place, some leave the city."""
    draw = random.Random(seed)
    events = []
    for _ in range(rows // 2):
        hour = draw.uniform(0, HOURS)
        start, end = draw.choices(PLACES, [7, 6, 5, 4, 3, 2 + 4 * hour, 1 + 3 * hour], k=2)
        at = [BEGIN + dt.timedelta(hours=hour), BEGIN + dt.timedelta(hours=hour, minutes=draw.uniform(4, 25))]
        ride = [round(value + draw.gauss(0, 0.002), 6) for value in (*start, *end)]
        if draw.random() < 0.03:
            ride = draw.choice([[0.0] * 4, [*ride[:2], 0.0, 0.0], [ride[0], ride[1] + 1, *ride[2:]]])
        known = draw.random() < 0.5  # an event that starts a ride may know its end
        events += [(at[0], True, *ride[:2], *(ride[2:] if known else (0.0, 0.0))), (at[1], False, *ride)]
    columns = zip(*sorted(events), strict=True)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
