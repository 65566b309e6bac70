"""Rules of version 2: high payments, payments far above the card's habit, and terminals with a record of frauds."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import operator

AMOUNT_LIMIT = 220.0
HABIT_FACTOR = 3.0  # payments vary by half their mean: three times the mean is four standard deviations away
HABIT_PAYMENTS = 5  # fewer payments are not a habit
TERMINAL_FRAUDS = 2  # one may be the card's fault, two are the terminal's


@operator
def flag(batch: pa.RecordBatch) -> pa.RecordBatch:
    """tx_id, score, flagged, the rules' version and the reason for every payment, in order."""
    amount = pc.fill_null(batch.column("amount"), 0.0)
    usual = pc.fill_null(batch.column("card_mean_amount"), float("inf"))
    payments = pc.fill_null(batch.column("card_count"), 0)
    frauds = pc.fill_null(batch.column("terminal_frauds"), 0)

    high = pc.greater(amount, AMOUNT_LIMIT)
    unusual = pc.and_(pc.greater(amount, pc.multiply(usual, HABIT_FACTOR)), pc.greater_equal(payments, HABIT_PAYMENTS))
    terminal = pc.greater_equal(frauds, TERMINAL_FRAUDS)
    flagged = pc.or_(high, pc.or_(unusual, terminal))
    reason = pc.if_else(high, "amount", pc.if_else(terminal, "terminal", pc.if_else(unusual, "habit", "")))
    score = pc.max_element_wise(pc.min_element_wise(pc.divide(amount, 2 * AMOUNT_LIMIT), 1.0), pc.if_else(flagged, 0.9, 0.0))
    return pa.RecordBatch.from_pydict(
        {
            "tx_id": batch.column("tx_id"),
            "score": score,
            "flagged": flagged,
            "rules": pa.repeat("2", batch.num_rows),
            "reason": reason,
        }
    )
