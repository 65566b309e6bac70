"""Spark types and Arrow types: the columns an operator accepts from a DataFrame, and the types that its answers get there.

| Spark                              | operator (manifest)                   | remark                                              |
|------------------------------------|---------------------------------------|-----------------------------------------------------|
| TimestampType (an instant)         | `timestamp[us]`, `timestamp[us, tz=]` | without a zone the operator sees UTC                |
| TimestampNTZType (a wall clock)    | `timestamp[us]`                       | a column with a zone would invent an instant        |
| the type of the same-named column, | `timestamp[...]` in the output        | without such a column `spark.sql.timestampType`     |
| TimestampType                      | `timestamp[..., tz=]` in the output   | units other than us are converted, ns are cut       |
| Short, Integer, Long, Decimal(20)  | `uint8`, `uint16`, `uint32`, `uint64` | Spark has no unsigned types                         |

All other types map one to one; columns are matched by name and widened where no value is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.functions import col

from udo_interface.spark.settings import is_true
from udo_protocol.errors import SchemaError
from udo_protocol.formats.schema import misfits, type_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SIMPLE: tuple[tuple[type[T.DataType], pa.DataType], ...] = (
    (T.BooleanType, pa.bool_()),
    (T.ByteType, pa.int8()),
    (T.ShortType, pa.int16()),
    (T.IntegerType, pa.int32()),
    (T.LongType, pa.int64()),
    (T.FloatType, pa.float32()),
    (T.DoubleType, pa.float64()),
    (T.StringType, pa.string()),
    (T.CharType, pa.string()),
    (T.VarcharType, pa.string()),
    (T.BinaryType, pa.binary()),
    (T.DateType, pa.date32()),
    (T.TimestampType, pa.timestamp("us", tz="UTC")),
    (T.TimestampNTZType, pa.timestamp("us")),
    (T.DayTimeIntervalType, pa.duration("us")),
    (T.NullType, pa.null()),
)
_OTHER = {
    pa.uint8(): T.ShortType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
    pa.float16(): T.FloatType(),
    pa.large_string(): T.StringType(),
    pa.large_binary(): T.BinaryType(),
    pa.date64(): T.DateType(),
}


def quoted(column: str) -> Column:
    """The column of exactly this name: without quotes Spark would read a dot in it as access to a field of a struct."""
    return col("`" + column.replace("`", "``") + "`")


def arrow_type(t: T.DataType) -> pa.DataType:
    """The Arrow type in which Spark sends and expects a column of type `t`; SchemaError for types operators cannot take."""
    for spark, arrow in _SIMPLE:
        if isinstance(t, spark):
            return arrow
    if isinstance(t, T.DecimalType):
        return pa.decimal128(t.precision, t.scale)
    if isinstance(t, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(t.elementType)))
    if isinstance(t, T.MapType):
        return pa.map_(arrow_type(t.keyType), arrow_type(t.valueType))
    if isinstance(t, T.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType)) for f in t])
    raise SchemaError(f"Spark type {t.simpleString()}, which operators do not take; cast the column first")


def spark_type(t: pa.DataType, like: T.DataType | None = None, zoneless: T.DataType | None = None) -> T.DataType:
    """The Spark type of an operator's output column; `like` is the same-named input column's, `zoneless` the session's default."""
    if pa.types.is_timestamp(t):
        if t.tz is None and isinstance(like, (T.TimestampType, T.TimestampNTZType)):
            return like
        return T.TimestampType() if t.tz is not None else (zoneless or T.TimestampType())
    if t in _OTHER:
        return _OTHER[t]
    if pa.types.is_decimal(t) and t.precision <= 38:
        return T.DecimalType(t.precision, t.scale)
    if pa.types.is_fixed_size_binary(t):
        return T.BinaryType()
    if pa.types.is_duration(t):
        return T.DayTimeIntervalType()
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        return T.ArrayType(spark_type(t.value_type, like.elementType if isinstance(like, T.ArrayType) else None, zoneless))
    if pa.types.is_map(t):
        key, value = (like.keyType, like.valueType) if isinstance(like, T.MapType) else (None, None)
        return T.MapType(spark_type(t.key_type, key, zoneless), spark_type(t.item_type, value, zoneless))
    if pa.types.is_struct(t):
        inner = {f.name: f.dataType for f in like.fields} if isinstance(like, T.StructType) else {}
        return T.StructType([T.StructField(f.name, spark_type(f.type, inner.get(f.name), zoneless)) for f in t.fields])
    for spark, arrow in _SIMPLE:
        if arrow == t:
            return spark()
    raise SchemaError(f"output type {type_text(t)} has no counterpart in Spark; change the operator's output schema")


def _zoned_as(have: pa.DataType, want: pa.DataType) -> pa.DataType:
    """`have` with the time zones of `want`, wherever that keeps the instant (an instant read in another zone, or as UTC)."""
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(want) and have.tz is not None:
        return pa.timestamp(have.unit, tz=want.tz)
    if pa.types.is_list(have) and pa.types.is_list(want):
        return pa.list_(_zoned_as(have.value_type, want.value_type))
    if pa.types.is_map(have) and pa.types.is_map(want):
        return pa.map_(_zoned_as(have.key_type, want.key_type), _zoned_as(have.item_type, want.item_type))
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        wanted = {f.name: f.type for f in want.fields}
        return pa.struct([pa.field(f.name, _zoned_as(f.type, wanted.get(f.name, f.type))) for f in have.fields])
    return have


def untold_type(t: T.DataType) -> T.DataType | None:
    """The type in `t`, or `t` itself, whose Arrow form Spark cannot tell from another type's; None if there is none."""
    return _within(t, _is_untold)


def type_without_arrow(t: T.DataType) -> T.DataType | None:
    """The type in `t`, or `t` itself, that PySpark has no Arrow form for; None if there is none."""
    return _within(t, lambda one: isinstance(one, (T.YearMonthIntervalType, T.CalendarIntervalType)))


def _is_untold(t: T.DataType) -> bool:
    collated = isinstance(t, T.StringType) and t != T.StringType()
    cut = isinstance(t, T.DayTimeIntervalType) and (t.startField, t.endField) != (t.DAY, t.SECOND)
    return collated or cut or isinstance(t, T.UserDefinedType)


def _within(t: T.DataType, meant: Callable[[T.DataType], bool]) -> T.DataType | None:
    """The first type that `meant` accepts, of `t` and the types it consists of."""
    if isinstance(t, T.ArrayType):
        return _within(t.elementType, meant)
    if isinstance(t, T.MapType):
        return _within(t.keyType, meant) or _within(t.valueType, meant)
    if isinstance(t, T.StructType):
        return next(filter(None, (_within(f.dataType, meant) for f in t.fields)), None)
    return t if meant(t) else None


def require_input(have: T.StructType, want: pa.Schema, what: str) -> None:
    """Raise SchemaError listing every column of `want` that the DataFrame does not offer, with similar names."""
    counts: dict[str, int] = {}
    for f in have:
        counts[f.name] = counts.get(f.name, 0) + 1
    problems = [f"column {n!r} appears {counts[n]} times in the DataFrame; rename all but one" for n in want.names if counts.get(n, 0) > 1]
    fields = []
    for f in have:
        if f.name in want.names and counts[f.name] == 1:
            wanted = want.field(f.name).type
            try:
                fields.append(pa.field(f.name, _zoned_as(arrow_type(f.dataType), wanted)))
            except SchemaError as e:
                problems.append(f"column {f.name!r}: expected {type_text(wanted)}, got {e}")
    offered = pa.schema(fields)
    seen = set(offered.names)
    missing = [n for n in want.names if n not in counts]
    problems += misfits(offered, pa.schema([f for f in want if f.name in seen]))
    problems += [_missing(n, type_text(want.field(n).type), list(counts)) for n in missing]
    if problems:
        raise SchemaError(
            f"{what} cannot take this DataFrame: {'; '.join(problems)}. "
            f"It expects {', '.join(f'{f.name}: {type_text(f.type)}' for f in want)}; rename, cast or add columns before the call"
        )


def as_told_apart(conf: Callable[[str, str], str | None]) -> Callable[[str], str]:
    """A function whose result is the same for two column names if a session with these settings treats them as one column."""
    return str if is_true(conf, "spark.sql.caseSensitive") else str.casefold


def require_apart(df: DataFrame, columns: Iterable[str], what: str) -> None:
    """SchemaError if the DataFrame has another column that the session cannot tell apart from one of these."""
    alike = as_told_apart(df.sparkSession.conf.get)
    for name in columns:
        if len(found := [other for other in df.columns if alike(other) == alike(name)]) > 1:
            raise SchemaError(
                f"{what} cannot take this DataFrame: columns {', '.join(found)} of the DataFrame are one to Spark, which does not look at "
                "upper and lower case; rename all but one, or set spark.sql.caseSensitive to true"
            )


def _missing(name: str, text: str, names: list[str]) -> str:
    by_fold = {n.casefold(): n for n in names}
    near = get_close_matches(name.casefold(), by_fold, n=3, cutoff=0.6)
    hint = f"near names: {', '.join(by_fold[n] for n in near)}" if near else f"the DataFrame has: {', '.join(names) or 'no columns'}"
    return f"column {name!r} ({text}) is missing; {hint}"


def output_fields(output: pa.Schema, have: T.StructType, zoneless: T.DataType | None = None) -> list[T.StructField]:
    """Spark's fields for an operator's output columns; `have` is the input DataFrame's schema."""
    like = {f.name: f.dataType for f in have}
    return [T.StructField(f.name, spark_type(f.type, like.get(f.name), zoneless), True) for f in output]


def delivered(fields: list[T.StructField]) -> pa.Schema:
    """The Arrow schema in which Spark expects these columns back: by position, types exact."""
    return pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in fields])
