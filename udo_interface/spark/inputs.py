"""Calls of operators with several inputs: their DataFrames become one, as udo_protocol.formats.inputs describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from udo_interface.spark.deployed import Deployed
from udo_interface.spark.spark_types import quoted, require_input, spark_type
from udo_protocol.errors import SchemaError, UsageError
from udo_protocol.formats.inputs import INPUT_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def united(given: Mapping[str, DataFrame], deployed: Deployed, keep: Sequence[str]) -> DataFrame:
    """The events of all inputs as one DataFrame, with the kept columns; UsageError or SchemaError names the input that does not fit."""
    if not deployed.inputs:
        raise UsageError(f"{deployed.what} has a single input: call it with one DataFrame, got {', '.join(f'{n}=' for n in given)}")
    if given.keys() != deployed.inputs.keys():
        wanted, got = (", ".join(f"{name}=" for name in names) for names in (deployed.inputs, given))
        raise UsageError(f"{deployed.what} takes a DataFrame for each of its inputs: expected {wanted}, got {got}")
    if len({df.isStreaming for df in given.values()}) > 1:
        of = [", ".join(n for n, df in given.items() if df.isStreaming is streaming) for streaming in (True, False)]
        raise UsageError(f"{deployed.what}: {of[0]} is a stream, and {of[1]} is not: expected all inputs as streams, or none")
    parts = []
    for name, schema in deployed.inputs.items():
        what = f"input {name!r} of {deployed.what}"
        require_input(given[name].schema, schema, what)
        if lacking := [n for n in keep if n not in given[name].columns]:
            raise SchemaError(f"keep={lacking[0]!r}: {what} has no such column; every input needs a column that is kept")
        carried = [quoted(n) for n in keep if n not in deployed.input.names]
        parts.append(given[name].select(*(_column(f, name, schema) for f in deployed.input), *carried))
    return reduce(lambda one, other: one.union(other), parts)


def require_inputs(df: DataFrame, deployed: Deployed) -> None:
    """UsageError if an operator with several inputs is given a single DataFrame without the column that names each event's input."""
    if deployed.inputs and INPUT_COLUMN not in df.columns:
        wanted = ", ".join(f"{name}=..." for name in deployed.inputs)
        raise UsageError(
            f"{deployed.what} has several inputs: call it with {wanted}, or with one DataFrame that has the columns of all of them and a "
            f"column {INPUT_COLUMN!r} ({', '.join(deployed.inputs)})"
        )


def _column(wanted: pa.Field, name: str, schema: pa.Schema) -> Column:
    if wanted.name == INPUT_COLUMN:
        return F.lit(name).alias(INPUT_COLUMN)
    if wanted.name in schema.names:
        return quoted(wanted.name)
    return F.lit(None).cast(spark_type(wanted.type)).alias(wanted.name)
