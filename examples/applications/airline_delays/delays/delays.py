"""Operator 1, vectorised: one record batch of flights in, one of delays out, with fewer rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import operator


@operator
def delays(batch: pa.RecordBatch) -> pa.Table:
    """The flights whose plane, departure and delay are known."""
    flights = pa.Table.from_batches([batch])
    departed = pc.coalesce(flights["departed"], flights["scheduled"])
    known = pa.table(
        {
            "flight_id": flights["flight_id"],
            "carrier": flights["carrier"],
            "plane": flights["plane"],
            "year": pc.year(departed),
            "departed": departed,
            "delay_min": pc.max_element_wise(flights["delay_min"], 0, skip_nulls=False),
            "air_min": pc.fill_null(flights["air_min"], 0),
        }
    )
    return known.filter(pc.and_(pc.is_valid(known["plane"]), pc.and_(pc.is_valid(known["departed"]), pc.is_valid(known["delay_min"]))))
