"""A filter by coordinates."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import operator

WEST, EAST, SOUTH, NORTH = -74.05, -73.75, 40.60, 40.90  # degrees


@operator
def inside(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keep the trips with both ends in the area."""
    bounds = [("start_lon", WEST, EAST), ("end_lon", WEST, EAST), ("start_lat", SOUTH, NORTH), ("end_lat", SOUTH, NORTH)]
    tests = [pc.and_(pc.greater_equal(batch.column(c), low), pc.less(batch.column(c), high)) for c, low, high in bounds]
    return batch.filter(reduce(pc.and_, tests))
