"""The plan of one demo run, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from udo_cli.demo import generator, source
from udo_protocol.errors import UsageError

# The default run: long enough to watch, short enough to wait for.
RATE, SECONDS = 60_000.0, 20.0
# A paced stream makes one micro-batch a second; an unpaced one makes them so large that larger ones would gain nothing.
BATCHES_PER_S, UNPACED_BATCH_ROWS = 1, 50_000
LEAST_ROWS = 1_000


@dataclass(frozen=True)
class DemoPlan:
    """The input and its pace. `rate` in rows a second, None for as fast as possible; `update_at` is the row of the update."""

    table: pa.Table
    origin: str
    rate: float | None
    update_at: int

    @property
    def batch_rows(self) -> int:
        """Rows of one micro-batch at most."""
        return UNPACED_BATCH_ROWS if self.rate is None else max(1, round(self.rate / BATCHES_PER_S))


def make(data: Path | None, rate: float | None, seconds: float | None, rows: int | None, update_at: int | None, seed: int) -> DemoPlan:
    """Make a plan from the options; UsageError, NotFound or SchemaError if they cannot work."""
    if data is None:
        rate = rate or (RATE if seconds is None or rows is None else rows / seconds)
        table = generator.transactions(max(LEAST_ROWS, rows or round(rate * (seconds or SECONDS))), seed)
    else:
        wanted = [n for n in (rows, round(rate * seconds) if rate and seconds else None) if n]
        table = source.read(data, min(wanted, default=None))
        if rate is None and seconds is not None:
            rate = table.num_rows / seconds
    if table.num_rows < LEAST_ROWS:
        raise UsageError(f"the demo needs at least {LEAST_ROWS:,} rows to say anything, got {table.num_rows:,}")
    at = table.num_rows // 2 if update_at is None else update_at
    if not 0 < at < table.num_rows:
        raise UsageError(f"--update-at {at:,} is not inside the stream of {table.num_rows:,} rows")
    return DemoPlan(table, "generated" if data is None else data.name, rate, at)
