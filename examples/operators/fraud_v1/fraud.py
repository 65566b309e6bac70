"""Rules of version 1: a payment is suspicious if it is high. Vectorised: one record batch in, one out."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import operator

AMOUNT_LIMIT = 220.0


@operator
def flag(batch: pa.RecordBatch) -> pa.RecordBatch:
    """tx_id, score, flagged and the rules' version for every payment, in order."""
    amount = pc.fill_null(batch.column("amount"), 0.0)
    return pa.RecordBatch.from_pydict(
        {
            "tx_id": batch.column("tx_id"),
            "score": pc.min_element_wise(pc.divide(amount, 2 * AMOUNT_LIMIT), 1.0),
            "flagged": pc.greater(amount, AMOUNT_LIMIT),
            "rules": pa.repeat("1", batch.num_rows),
        }
    )
