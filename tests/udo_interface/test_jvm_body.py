"""Answers that an operator could send to an executor's JVM, byte by byte: each is read in full, or refused; nothing crashes or leaks."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import types as T

from tests.conftest import require
from udo_interface.spark import jar, jvm_path
from udo_interface.spark.spark_types import spark_type
from udo_protocol.errors import Unavailable
from udo_protocol.formats.schema import to_ipc
from udo_protocol.queue import frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "s": pa.string(),
        "l": pa.list_(pa.string()),
        "r": pa.struct([("a", pa.int32()), ("b", pa.binary())]),
        "m": pa.map_(pa.string(), pa.float64()),
        "n": pa.decimal128(9, 2),
        "t": pa.timestamp("us", "UTC"),
        "b": pa.bool_(),
    }
)
FIXED = pa.schema([SCHEMA.field(name) for name in ("i", "t", "b")])
ROWS = [
    {
        "i": i,
        "s": None if i % 3 == 0 else "text " * (i % 4),
        "l": None if i % 5 == 0 else ["ä", None, "c"][: i % 4],
        "r": None if i % 7 == 0 else {"a": i, "b": b"\xff" * (i % 3)},
        "m": [("k", float(i))] * (i % 3),
        "n": [None, Decimal("9999999.99"), Decimal("-9999999.99"), Decimal("0.01")][i % 4],  # with all digits, which Arrow refuses in Java
        "t": i,
        "b": i % 2 == 0,
    }
    for i in range(40)
]
MUTATIONS = 1500
Read = Callable[[bytes], Any]


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> pa.Schema:
    return getattr(request, "param", SCHEMA)


@pytest.fixture
def read(spark: SparkSession, schema: pa.Schema) -> Any:
    """Read a frame's bytes as the JVM path does; return its rows, each as Spark's own checksum of it, or the error's text."""
    try:
        jar.jar(spark.version)
    except Unavailable as e:
        require("java", str(e))
    jvm_path.calls(spark)
    jvm: Any = spark.sparkContext._jvm
    loader = spark._jsparkSession.sharedState().jarClassLoader()

    def module(name: str) -> Any:
        return loader.loadClass(f"org.apache.spark.sql.udo.{name}$").getField("MODULE$").get(None)

    allocator = getattr(jvm.org.apache.spark.sql.util, "ArrowUtils$").__getattr__("MODULE$").rootAllocator()
    own = allocator.newChildAllocator("test", 0, 1 << 30)
    columns = module("Body").schema(to_ipc(schema))
    fields = T.StructType([T.StructField(f.name, spark_type(f.type)) for f in schema])
    types = jvm.java.util.ArrayList()
    for field in jvm.org.apache.spark.sql.types.DataType.fromJson(fields.json()).fields():
        types.add(field.dataType())
    planned, kept = (jvm.scala.jdk.javaapi.CollectionConverters.asScala(t).toSeq() for t in (types, jvm.java.util.ArrayList()))
    answers = loader.loadClass("org.apache.spark.sql.udo.Answers").getConstructors()[0]
    arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 6)
    never = (
        loader.loadClass("org.apache.spark.sql.udo.InUse")
        .getConstructors()[0]
        .newInstance(spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 1))
    )
    for i, value in enumerate((columns, columns, planned, kept, own, never)):
        arguments[i] = value

    readers = [answers.newInstance(arguments)]

    def one(data: bytes) -> Any:
        buffer, found = own.buffer(len(data)), []
        buffer.setBytes(0, data)
        buffer.writerIndex(len(data))
        try:
            rows = readers[0].rows(module("Frame").decode(buffer), kept.iterator())
            while rows.hasNext():
                found.append(rows.next().hashCode())
        except Py4JJavaError as e:
            with contextlib.suppress(Py4JJavaError):  # as at the end of a failed task
                readers[0].close()
            with contextlib.suppress(Py4JJavaError):
                buffer.close()
            readers[0] = answers.newInstance(arguments)
            return str(e.java_exception.toString())
        readers[0].clear()
        buffer.close()
        return found

    return one


def encoded(batch: pa.RecordBatch) -> bytes:
    pieces = frame.encode(frame.Header(lane="lane-1", number=1, kind=frame.ANSWER), batch)
    return b"".join(bytes(p) for p in pieces)


@pytest.mark.long
@pytest.mark.parametrize("schema", [SCHEMA, FIXED], ids=["any", "fixed width"], indirect=True)
def test_mutated_answers_are_read_or_refused_and_crash_nothing(read: Read, schema: pa.Schema) -> None:
    rng = random.Random(20)
    whole = encoded(pa.RecordBatch.from_pylist([{f.name: row[f.name] for f in schema} for row in ROWS], schema=schema))
    expected = read(whole)
    assert len(expected) == len(ROWS)
    start = 16 + int.from_bytes(whole[8:12], "little")
    outcomes = {"read": 0, "refused": 0}
    for _ in range(MUTATIONS):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(start, len(data))
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        found = read(bytes(data))
        assert isinstance(found, list) or found.startswith("udo_protocol.errors.ProtocolError: "), found
        outcomes["read" if isinstance(found, list) else "refused"] += 1
    assert min(outcomes.values()) > MUTATIONS // 20, outcomes
    assert read(whole) == expected


def test_frames_that_are_none_are_refused_with_what_was_expected(read: Read) -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)
    whole = encoded(batch)
    bad_text = pa.RecordBatch.from_arrays(
        [*batch.columns[:1], pa.array([b"\xff"] * len(ROWS), pa.binary()).view(pa.string()), *batch.columns[2:]], schema=SCHEMA
    )
    digits = pa.py_buffer((10**9).to_bytes(16, "little") * len(ROWS))
    too_large = pa.Array.from_buffers(pa.decimal128(9, 2), len(ROWS), [None, digits])
    bad_decimal = pa.RecordBatch.from_arrays([too_large if f.name == "n" else batch.column(f.name) for f in SCHEMA], schema=SCHEMA)
    head = frame.encode(frame.Header(lane="lane-1", number=1, kind=frame.ANSWER, rows=len(ROWS)))[0]
    body = _compressed(batch)
    compressed = bytes(head)[:12] + len(body).to_bytes(4, "little") + bytes(head)[16:] + body
    for data, why in (
        (b"UDOF", "expected a frame of at least 16 bytes, got 4"),
        (b"XXXX" + whole[4:], "expected a frame starting with UDOF"),
        (whole[:4] + b"\x02" + whole[5:], "frame of protocol version 2"),
        (whole[:-8], "truncated or garbled"),
        (whole[:8] + (1 << 21).to_bytes(4, "little") + whole[12:], "the bound is 1048576"),
        (encoded(bad_text), "Non-UTF-8 data"),
        (encoded(bad_decimal), "does not fit in precision 9"),
        (compressed, "is compressed"),
    ):
        assert why in str(read(data)), (why, read(data))


def _compressed(batch: pa.RecordBatch) -> bytes:
    """Return the batch as a compressed record batch message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    return bytes(messages.read_next_message().serialize())
