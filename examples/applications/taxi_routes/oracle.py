"""The expected answers in plain Python: for each window, count all of its trips and sort."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from math import floor

import pyarrow as pa

# The operators' constants.
WINDOW, EVERY, BEST = dt.timedelta(minutes=30), dt.timedelta(minutes=5), 10
WEST, EAST, SOUTH, NORTH = -74.05, -73.75, 40.60, 40.90
Rank = tuple[dt.datetime, int, str, int]  # end of the window, rank, route, trips


def expected(events: pa.Table, until: dt.datetime) -> list[Rank]:
    """The ten most frequent routes of all windows that end by `until`."""
    trips = []
    for at, is_start, *ride in zip(*(column.to_pylist() for column in events.columns), strict=True):
        if is_start is not False or None in ride or 0.0 in ride:
            continue
        if all(WEST <= lon < EAST and SOUTH <= lat < NORTH for lon, lat in (ride[:2], ride[2:])):
            trips.append((at, f"{_cell(*ride[:2])}-{_cell(*ride[2:])}"))
    found: list[Rank] = []
    first = min(at for at, _ in trips).replace(minute=0, second=0, microsecond=0)
    for n in range(1, (until - first) // EVERY + 1):
        end = first + n * EVERY
        counts = Counter(route for at, route in trips if end - WINDOW <= at < end)
        best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:BEST]
        found += [(end, rank, route, count) for rank, (route, count) in enumerate(best, start=1)]
    return found


def _cell(lon: float, lat: float) -> str:
    width, height = 0.005986, 0.004491556
    return f"{floor((lon - (-74.913585 - width / 2)) / width) + 1}.{floor((41.474937 + height / 2 - lat) / height) + 1}"
