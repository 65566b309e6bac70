"""Drop irrelevant or invalid events: the start of a ride, and rides without a place (coordinates of zero or null)."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import operator

PLACES = ("start_lon", "start_lat", "end_lon", "end_lat")


@operator
def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The trips that ended. An event that starts a ride is dropped, though it may carry the place of its end already."""
    known = [pc.fill_null(pc.not_equal(batch.column(name), 0.0), False) for name in PLACES]
    trips = batch.filter(reduce(pc.and_, known, pc.invert(pc.fill_null(batch.column("is_start"), True))))
    return pa.RecordBatch.from_pydict({"ended_at": trips.column("at"), **{name: trips.column(name) for name in PLACES}})
