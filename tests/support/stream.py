"""A stateless operator whose answers name its version, and streaming queries that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

VERSION = """
import pyarrow as pa
from udo_runtime import operator
@operator
def run(batch):
    return {{"id": batch.column("id"), "v": pa.repeat({v}, batch.num_rows)}}
"""
OUT = {"id": "int64", "v": "int64"}


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query at the end whatever happens."""
    try:
        yield query
    finally:
        query.stop()
