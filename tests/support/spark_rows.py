"""Rows of all types that Spark and operators have in common."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

EPOCH = datetime.datetime(1970, 1, 1)


def text(r: random.Random) -> str:
    return "äx"[: r.randrange(3)] * (r.choice([0, 1, 7, 40]) if r.random() < 0.98 else 9000)  # longer than the buffers begin


# Arrow's name: Spark's type, and a random value.
KINDS: dict[str, tuple[T.DataType, Callable[[random.Random], Any]]] = {
    "int64": (T.LongType(), lambda r: r.getrandbits(64) - 2**63),
    "int32": (T.IntegerType(), lambda r: r.getrandbits(32) - 2**31),
    "int16": (T.ShortType(), lambda r: r.getrandbits(16) - 2**15),
    "int8": (T.ByteType(), lambda r: r.getrandbits(8) - 2**7),
    "bool": (T.BooleanType(), lambda r: r.random() < 0.5),
    "double": (T.DoubleType(), lambda r: r.choice([-0.0, float("inf"), r.random() * 1e300])),
    "float": (T.FloatType(), lambda r: r.choice([-0.0, float("-inf"), r.randrange(1 << 24) / 8])),
    "string": (T.StringType(), text),
    "binary": (T.BinaryType(), lambda r: r.randbytes(r.choice([0, 1, 30]))),
    "date32": (T.DateType(), lambda r: datetime.date.fromordinal(r.randrange(1, 3_000_000))),
    "timestamp[us]": (
        T.TimestampNTZType(),
        lambda r: EPOCH + datetime.timedelta(days=r.randrange(-9999, 9999), microseconds=r.randrange(99)),
    ),
    "decimal128(20, 3)": (T.DecimalType(20, 3), lambda r: Decimal(r.randrange(10**20)).scaleb(-3)),
    "list<int64>": (T.ArrayType(T.LongType()), lambda r: [r.choice([None, 1, 2])] * r.randrange(3)),
}


def rows_of(kinds: list[str], count: int, nulls: float, seed: int) -> list[tuple[Any, ...]]:
    r = random.Random(seed)
    return [tuple(None if r.random() < nulls else KINDS[k][1](r) for k in kinds) for _ in range(count)]


def schema_of(kinds: list[str]) -> T.StructType:
    return T.StructType([T.StructField(f"c{i}", KINDS[k][0]) for i, k in enumerate(kinds)])


def arrow_of(kinds: list[str]) -> dict[str, str]:
    return {f"c{i}": kind for i, kind in enumerate(kinds)}
