"""Schemas of every type that operators take from Spark, at any depth, and rows with values that often go wrong: ends of ranges, hours
that clocks skip or show twice, empty, null, NaN and -0.0."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from udo_interface.spark.spark_types import arrow_type
from udo_protocol.formats.schema import type_text

_DEPTH = 3
_NULL = 0.15
# 2024-03-31 and 2024-10-27: Berlin skips an hour, and repeats one; 1582: calendars; 1969 and 2038: the epoch and its 32 bits.
_TIMES = [
    dt.datetime(1, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(1582, 10, 10, 12),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2038, 1, 19, 3, 14, 8),
    dt.datetime(2024, 3, 31, 1, 30),
    dt.datetime(2024, 3, 31, 2, 30),
    dt.datetime(2024, 10, 27, 0, 30),
    dt.datetime(2024, 10, 27, 1, 30, 0, 1),
]
_TEXTS = ["", "a", " ", "\x00", "ß€", "日本語", "👩‍👩‍👧", "e\u0301", "null", "1", "x" * 10_000]
_FLOATS = [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, -1.7976931348623157e308]
_SIMPLE: list[Callable[[random.Random], T.DataType]] = [
    *(lambda _, t=t: t() for t in (T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType)),  # type: ignore[misc]
    *(lambda _, t=t: t() for t in (T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType)),  # type: ignore[misc]
    lambda draw: T.DecimalType(p := draw.randint(1, 38), draw.randint(0, p)),
    lambda _: T.DayTimeIntervalType(),
]


def drawn_schema(draw: random.Random) -> T.StructType:
    """A schema with each simple type, and as many nested ones."""
    types = [make(draw) for make in _SIMPLE] + [_drawn(draw, _DEPTH, nested=True) for _ in _SIMPLE]
    return T.StructType([T.StructField(f"c{n}", t) for n, t in enumerate(types)])


def _drawn(draw: random.Random, depth: int, *, nested: bool = False) -> T.DataType:
    kind = draw.randrange(3 if nested else 9) if depth else 9
    if kind == 0:
        return T.ArrayType(_drawn(draw, depth - 1))
    if kind == 1:
        return T.MapType(
            draw.choice([make for make in _SIMPLE if make is not _SIMPLE[5] and make is not _SIMPLE[6]])(draw), _drawn(draw, depth - 1)
        )
    if kind == 2:
        return T.StructType(
            [T.StructField(name, _drawn(draw, depth - 1)) for name in draw.sample(["a", "b", "B c", "ö", "x.y"], draw.randint(1, 3))]
        )
    return draw.choice(_SIMPLE)(draw)


def columns(schema: T.StructType) -> dict[str, str]:
    """The columns as a manifest names them."""
    return {f.name: type_text(arrow_type(f.dataType)) for f in schema}


def drawn_rows(draw: random.Random, schema: T.StructType, rows: int) -> list[tuple[Any, ...]]:
    """Random rows for createDataFrame."""
    return [tuple(drawn_value(draw, f.dataType) for f in schema) for _ in range(rows)]


def drawn_value(draw: random.Random, t: T.DataType, *, null: bool = True) -> Any:
    """A value of that type as createDataFrame accepts it."""
    if null and draw.random() < _NULL:
        return None
    if isinstance(t, T.ArrayType):
        return [drawn_value(draw, t.elementType) for _ in range(draw.choice([0, 1, 1, 3]))]
    if isinstance(t, T.MapType):
        return {_key(drawn_value(draw, t.keyType, null=False)): drawn_value(draw, t.valueType) for _ in range(draw.choice([0, 1, 3]))}
    if isinstance(t, T.StructType):
        return tuple(drawn_value(draw, f.dataType) for f in t.fields)
    return _simple(draw, t)


def _key(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _simple(draw: random.Random, t: T.DataType) -> Any:
    if isinstance(t, T.BooleanType):
        return draw.random() < 0.5
    bits = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}.get(type(t))
    if bits:
        return draw.choice([0, 1, -1, (1 << bits - 1) - 1, -(1 << bits - 1), draw.getrandbits(bits - 1)])
    if isinstance(t, T.FloatType):
        return struct.unpack("f", struct.pack("f", draw.choice([0.0, -0.0, 1.5, math.inf, math.nan, 1e-45, draw.uniform(-1e6, 1e6)])))[0]
    if isinstance(t, T.DoubleType):
        return draw.choice([*_FLOATS, draw.uniform(-1e9, 1e9)])
    if isinstance(t, T.StringType):
        return draw.choice(_TEXTS)
    if isinstance(t, T.BinaryType):
        return draw.choice([b"", b"\x00", b"\xff\xfe", draw.randbytes(40)])
    if isinstance(t, T.DateType):
        return draw.choice([at.date() for at in _TIMES])
    if isinstance(t, T.TimestampNTZType):
        return draw.choice(_TIMES)
    if isinstance(t, T.TimestampType):
        return draw.choice(_TIMES[2:]).replace(tzinfo=dt.UTC)  # PySpark has no year 0 or 10000, which the ends fall into in some zones
    if isinstance(t, T.DecimalType):
        most = 10**t.precision - 1
        whole = draw.choice([0, 1, most, -most, draw.randint(-most, most)])
        return decimal.Decimal(whole).scaleb(-t.scale, decimal.Context(prec=38))
    assert isinstance(t, T.DayTimeIntervalType), t
    return draw.choice([dt.timedelta(0), dt.timedelta(microseconds=-1), dt.timedelta(days=106_751_991), dt.timedelta(days=-106_751_991)])


def exact(value: Any) -> Any:
    """A form for comparison: floats are equal if their bits are, but every NaN is; maps are equal in any order."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if hasattr(value, "asDict"):
        return {name: exact(v) for name, v in value.asDict().items()}
    if isinstance(value, Mapping):
        return {exact(k): exact(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(v) for v in value]
    return value


def as_batch(schema: T.StructType, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """The rows as an engine-free client sends them."""
    arrow = pa.schema([(f.name, arrow_type(f.dataType)) for f in schema])
    return pa.RecordBatch.from_arrays(
        [pa.array([_named(row[n], f.dataType) for row in rows], arrow.field(n).type) for n, f in enumerate(schema)], schema=arrow
    )


def _named(value: Any, t: T.DataType) -> Any:
    if value is None:
        return None
    if isinstance(t, T.ArrayType):
        return [_named(v, t.elementType) for v in value]
    if isinstance(t, T.MapType):
        return [(k, _named(v, t.valueType)) for k, v in value.items()]
    if isinstance(t, T.StructType):
        return {f.name: _named(v, f.dataType) for f, v in zip(t.fields, value, strict=True)}
    return value
