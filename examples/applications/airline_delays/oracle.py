"""The expected answers, from pandas over all flights at once."""

from __future__ import annotations

import zlib
from typing import Any

import pandas as pd
import pyarrow as pa

ONE_IN = 10  # as in the operator
Answers = dict[str, dict[Any, tuple[Any, ...]]]  # operator -> key -> its last answer


def expected(flights: pa.Table) -> Answers:
    """The last answer of each keyed operator for each key."""
    frame = flights.to_pandas()
    frame["departed"] = frame["departed"].fillna(frame["scheduled"])
    frame = frame.dropna(subset=["plane", "departed", "delay_min"])
    frame = frame.assign(
        year=frame["departed"].dt.year,
        delay_min=frame["delay_min"].clip(lower=0).astype(int),
        air_min=frame["air_min"].fillna(0).astype(int),
    )
    frame["late"] = frame["delay_min"] > 0
    frame["landed"] = frame["departed"] + pd.to_timedelta(frame["air_min"], unit="min")
    found: Answers = {"plane-years": {}, "time-in-air": {}, "delay-sample": {}}
    for key, part in frame.groupby(["plane", "year"]):
        found["plane-years"][key] = (len(part), int(part["late"].sum()), int(part["delay_min"].sum()))
        air, minutes = int(part["air_min"].sum()), (part["landed"].max() - part["departed"].min()) // pd.Timedelta(minutes=1)
        found["time-in-air"][key] = (len(part), air, min(air / max(minutes, 1), 1.0))
    sample = frame[[zlib.crc32(str(i).encode()) % ONE_IN == 0 for i in frame["flight_id"]]]
    for carrier, part in sample.groupby("carrier"):
        found["delay-sample"][(carrier,)] = (len(part), int(part["late"].sum()))
    return found
