"""Columns that fit, the types that they become, and the conversion of batches from one form to the other; no Spark is started."""

from __future__ import annotations

import datetime as dt
import re

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from udo_interface.lane.columns import Picker
from udo_interface.spark.spark_types import arrow_type, delivered, output_fields, require_input, spark_type
from udo_protocol.errors import SchemaError

EVENT = pa.schema([("card_id", pa.int64()), ("amount", pa.float64()), ("at", pa.timestamp("us"))])


def struct(**columns: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(n, t) for n, t in columns.items()])


def test_columns_fit_by_name_in_any_order_with_more_beside_them() -> None:
    have = struct(at=T.TimestampType(), other=T.VariantType(), amount=T.FloatType(), card_id=T.IntegerType())
    require_input(have, EVENT, "operator fraud@1")


@pytest.mark.parametrize("spark", [T.TimestampType(), T.TimestampNTZType()])
def test_a_timestamp_without_zone_takes_instants_and_wall_clocks(spark: T.DataType) -> None:
    require_input(struct(at=spark), pa.schema([("at", pa.timestamp("us"))]), "op")


def test_a_wall_clock_does_not_fit_where_an_instant_is_wanted() -> None:
    with pytest.raises(SchemaError, match=r"'at': expected timestamp\[us, tz=Europe/Berlin\], got timestamp\[us\]"):
        require_input(struct(at=T.TimestampNTZType()), pa.schema([("at", pa.timestamp("us", tz="Europe/Berlin"))]), "op")


def test_an_instant_fits_an_instant_of_any_zone_even_inside_lists_and_structs() -> None:
    zoned = pa.timestamp("us", tz="Asia/Tokyo")
    want = pa.schema([("l", pa.list_(zoned)), ("s", pa.struct([("t", zoned)])), ("m", pa.map_(pa.string(), zoned))])
    have = struct(
        l=T.ArrayType(T.TimestampType()), s=struct(t=T.TimestampType()), m=T.MapType(T.StringType(), T.TimestampType())
    )  # fmt: skip
    require_input(have, want, "op")


def test_every_misfit_is_listed_with_the_names_that_come_near() -> None:
    have = struct(Card_ID=T.LongType(), amount=T.StringType(), when=T.DateType())
    with pytest.raises(SchemaError) as caught:
        require_input(have, EVENT, "operator fraud@1")
    text = str(caught.value)
    assert "column 'card_id' (int64) is missing; near names: Card_ID" in text
    assert "column 'amount': expected double, got string" in text
    assert "column 'at' (timestamp[us]) is missing; the DataFrame has: Card_ID, amount, when" in text
    assert text.startswith("operator fraud@1 cannot take this DataFrame")


def test_a_column_that_appears_twice_is_ambiguous() -> None:
    have = T.StructType([T.StructField("a", T.LongType()), T.StructField("a", T.LongType())])
    with pytest.raises(SchemaError, match="'a' appears 2 times"):
        require_input(have, pa.schema([("a", pa.int64())]), "op")


@pytest.mark.parametrize("spark", [T.VariantType(), T.TimeType(6)])
def test_a_type_without_counterpart_is_named(spark: T.DataType) -> None:
    says = rf"'a': expected int64, got Spark type {re.escape(spark.simpleString())}, which operators do not take; cast the column first"
    with pytest.raises(SchemaError, match=says):
        require_input(struct(a=spark), pa.schema([("a", pa.int64())]), "op")


@pytest.mark.parametrize(
    ("arrow", "spark"),
    [
        (pa.bool_(), T.BooleanType()),
        (pa.int8(), T.ByteType()),
        (pa.uint8(), T.ShortType()),
        (pa.uint32(), T.LongType()),
        (pa.uint64(), T.DecimalType(20, 0)),
        (pa.float16(), T.FloatType()),
        (pa.large_string(), T.StringType()),
        (pa.decimal128(10, 2), T.DecimalType(10, 2)),
        (pa.date32(), T.DateType()),
        (pa.date64(), T.DateType()),
        (pa.timestamp("ms", tz="UTC"), T.TimestampType()),
        (pa.list_(pa.int16()), T.ArrayType(T.ShortType())),
        (pa.map_(pa.string(), pa.float64()), T.MapType(T.StringType(), T.DoubleType())),
        (pa.struct([("a", pa.int32())]), T.StructType([T.StructField("a", T.IntegerType())])),
    ],
)
def test_output_types_become_spark_types_and_come_back_in_the_form_spark_reads(arrow: pa.DataType, spark: T.DataType) -> None:
    assert spark_type(arrow) == spark
    back = arrow_type(spark)
    batch = pa.RecordBatch.from_arrays([pa.array([None], arrow)], names=["x"])
    assert Picker(pa.schema([("x", back)]), "op")(batch).schema.types == [back]


@pytest.mark.parametrize("arrow", [pa.decimal256(50, 2), pa.time64("ns")])
def test_output_types_without_counterpart_are_refused(arrow: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=rf"output type {re.escape(str(arrow))} has no counterpart in Spark; change"):
        spark_type(arrow)


def test_a_timestamp_without_zone_comes_back_as_the_column_of_that_name_went_in() -> None:
    out = pa.schema([("at", pa.timestamp("us")), ("new", pa.timestamp("us"))])
    assert [f.dataType for f in output_fields(out, struct(at=T.TimestampNTZType()))] == [T.TimestampNTZType(), T.TimestampType()]
    assert [f.dataType for f in output_fields(out, struct(at=T.TimestampType()), T.TimestampNTZType())] == [
        T.TimestampType(),
        T.TimestampNTZType(),
    ]
    assert delivered(output_fields(out, struct(at=T.TimestampType()))).types == [pa.timestamp("us", tz="UTC")] * 2


def test_the_picker_passes_a_fitting_batch_through_untouched() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1])], schema=pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    assert Picker(pa.schema([("a", pa.int64())]), "op")(batch) is batch


def test_the_picker_selects_widens_and_keeps_instants() -> None:
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    batch = pa.RecordBatch.from_pydict(
        {
            "x": ["no"],
            "at": pa.array([noon], pa.timestamp("us", tz="Europe/Berlin")),
            "card_id": pa.array([7], pa.int16()),
            "amount": pa.array([1.5], pa.float32()),
        }
    )
    picked = Picker(EVENT, "op")(batch)
    assert picked.to_pylist() == [{"card_id": 7, "amount": 1.5, "at": noon.replace(tzinfo=None)}]
    assert picked.schema == EVENT


def test_the_picker_cuts_nanoseconds_but_no_other_value() -> None:
    batch = pa.RecordBatch.from_pydict({"t": pa.array([1_999], pa.timestamp("ns"))})
    assert Picker(pa.schema([("t", pa.timestamp("us"))]), "op")(batch).column(0).cast(pa.int64()).to_pylist() == [1]
    with pytest.raises(SchemaError, match="column 't' of type int64 cannot become int8"):
        Picker(pa.schema([("t", pa.int8())]), "op")(pa.RecordBatch.from_pydict({"t": [1000]}))
