"""The grid of the DEBS 2015 Grand Challenge: cells of 500 m x 500 m, counted to the east and to the south from 1.1."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import operator

# The middle of cell 1.1, and the size of a cell in degrees.
LON, LAT = -74.913585, 41.474937
WIDTH, HEIGHT = 0.005986, 0.004491556


@operator
def route(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The route of every trip."""

    def cell(lon: str, lat: str) -> pa.Array:
        east = pc.add(pc.floor(pc.divide(pc.subtract(batch.column(lon), LON - WIDTH / 2), WIDTH)), 1.0)
        south = pc.add(pc.floor(pc.divide(pc.subtract(LAT + HEIGHT / 2, batch.column(lat)), HEIGHT)), 1.0)
        return pc.binary_join_element_wise(*(n.cast(pa.int64()).cast(pa.string()) for n in (east, south)), ".")

    routes = pc.binary_join_element_wise(cell("start_lon", "start_lat"), cell("end_lon", "end_lat"), "-")
    return pa.RecordBatch.from_pydict({"ended_at": batch.column("ended_at"), "route": routes})
