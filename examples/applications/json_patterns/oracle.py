"""The expected answers, from pandas over all events at once."""

from __future__ import annotations

import datetime as dt
import json

import pandas as pd
import pyarrow as pa

WINDOW, FREQUENT = "1min", 30  # as in the operators
Pattern = tuple[dt.datetime, str, int]  # end of the window, pattern, count


def expected(events: pa.Table, until: dt.datetime) -> list[Pattern]:
    """The frequent patterns of all windows that end by `until`, sorted."""
    found = []
    for event in map(json.loads, events["body"].to_pylist()):
        at, items = event.pop("at"), sorted(f"{name}={value}" for name, value in event.items())
        pairs = [f"{a} & {b}" for i, a in enumerate(items) for b in items[i + 1 :]]
        found += [(at, pattern) for pattern in items + pairs]
    frame = pd.DataFrame(found, columns=["at", "pattern"])
    frame["end"] = pd.to_datetime(frame["at"], format="ISO8601", utc=True).dt.floor(WINDOW) + pd.Timedelta(WINDOW)
    counts = frame[frame["end"] <= until].groupby(["end", "pattern"]).size()
    return sorted((end.to_pydatetime(), pattern, int(n)) for (end, pattern), n in counts.items() if n >= FREQUENT)
