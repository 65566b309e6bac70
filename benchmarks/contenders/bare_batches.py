"""The floor of `throughput`: a batch through two bare Redis lists and back, by this project's RESP codec or by redis-py with hiredis.

As with HTTP, a request waits for its answer; there is no log, numbering, fence, lease or window.
`python -m benchmarks.contenders.bare_batches SOCKET READY` answers for both codecs, each function and both partitions until it is
terminated; it creates the file READY when it is ready.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from benchmarks.contenders.bare import CODECS, SCHEMA
from benchmarks.contenders.functions import FUNCTIONS
from benchmarks.harness.bringup import server
from node_manager.servers.binaries import find_server

_PARTITIONS = 2


def through_lists(df: DataFrame, operator: str, socket: str, codec: str) -> DataFrame:
    """Call the function by a mapInArrow whose worker pushes each batch to the partition's list."""
    schema = df.schema

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context
        name = f"{codec}:{operator}:{context.partitionId()}"
        lists = CODECS[codec](socket)
        try:
            for batch in batches:
                answer = lists.exchange(f"{name}:in", batch.serialize(), f"{name}:out")
                yield pa.ipc.read_record_batch(pa.py_buffer(answer), batch.schema)
        finally:
            lists.close()

    return df.mapInArrow(apply, schema)


@contextmanager
def lists_server(directory: Path) -> Iterator[str]:
    """Run a Redis server and the answering process; yield the server's socket."""
    socket, ready = directory / "lists.sock", directory / "lists.ready"
    redis = [find_server(None)[0].path, "--port", "0", "--unixsocket", str(socket), "--dir", str(directory), "--save", ""]
    with server(redis, socket), server([sys.executable, "-m", "benchmarks.contenders.bare_batches", str(socket), str(ready)], ready):
        yield str(socket)


def _answer(socket: str, codec: str, operator: str, partition: int) -> None:
    lists, name = CODECS[codec](socket), f"{codec}:{operator}:{partition}"
    data = lists.pop(f"{name}:in")
    while True:
        batch = FUNCTIONS[operator](pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA))
        data = lists.exchange(f"{name}:out", batch.serialize(), f"{name}:in")


if __name__ == "__main__":
    for each in product(CODECS, FUNCTIONS, range(_PARTITIONS)):
        threading.Thread(target=_answer, args=(sys.argv[1], *each)).start()
    Path(sys.argv[2]).touch()
