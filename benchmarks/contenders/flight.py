"""Arrow Flight: one DoExchange stream per task over a Unix socket, with the same window as UDO.

`python -m benchmarks.contenders.flight SOCKET` serves until it is terminated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight
from pyspark.sql import DataFrame

from benchmarks.contenders.functions import FUNCTIONS, WINDOW


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every batch of a stream with the function its descriptor names."""

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Batches in, batches out, in order."""
        function = FUNCTIONS[descriptor.command.decode()]
        schema = reader.schema
        writer.begin(schema)
        for chunk in reader:
            writer.write_batch(function(chunk.data))


def through_flight(df: DataFrame, operator: str, socket: str) -> DataFrame:
    """Call the function by a mapInArrow whose worker keeps WINDOW batches under way on a stream."""

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return
        with flight.FlightClient(f"grpc+unix://{socket}") as client:
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(operator.encode()))
            with writer:
                writer.begin(first.schema)
                writer.write_batch(first)
                asked = 1
                for batch in batches:
                    if asked == WINDOW:
                        yield reader.read_chunk().data
                        asked -= 1
                    writer.write_batch(batch)
                    asked += 1
                writer.done_writing()
                for _ in range(asked):
                    yield reader.read_chunk().data

    return df.mapInArrow(apply, df.schema)


if __name__ == "__main__":
    Server(f"grpc+unix://{sys.argv[1]}").serve()
