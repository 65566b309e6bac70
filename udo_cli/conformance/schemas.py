"""The columns of the conformance operator's roles, and events with these columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

EVENTS = pa.schema([("do", pa.string()), ("n", pa.int64())])
N = pa.schema([("n", pa.int64())])
_AT = pa.field("at", pa.timestamp("us", "UTC"))
KEYED_IN = pa.schema([("k", pa.string()), ("do", pa.string()), ("n", pa.int64()), _AT])
KEYED_OUT = pa.schema([("k", pa.string()), ("n", pa.int64()), _AT])
KEYED_BOTH = (KEYED_IN, KEYED_OUT)


def events(*rows: tuple[str, int]) -> pa.RecordBatch:
    """Events (do, n) of the role `events`."""
    return pa.RecordBatch.from_pylist([{"do": do, "n": n} for do, n in rows], schema=EVENTS)


def keyed(*rows: tuple[str, str, int, int | None]) -> pa.RecordBatch:
    """Events (k, do, n, at as µs) of the role `keyed`."""
    return pa.RecordBatch.from_pylist([{"k": k, "do": do, "n": n, "at": at} for k, do, n, at in rows], schema=KEYED_IN)


def answers(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Rows as tuples, times as µs."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
    return list(zip(*(c.to_pylist() for c in columns), strict=True))
