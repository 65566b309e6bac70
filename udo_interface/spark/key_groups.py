"""Key groups in Spark's plan, computed by the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from udo_interface.spark.spark_types import quoted, spark_type
from udo_protocol.formats.schema import GROUP_COLUMN
from udo_protocol.limits import KEY_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_key_group(df: DataFrame, key: Sequence[str], schema: pa.Schema, *, key_groups: int = KEY_GROUPS) -> DataFrame:
    """`df` with each row's key group as one more column.

    The group is `pmod(hash(key), key_groups)` over the key in the operator's own types, so that it does not change when a
    query sends a narrower type, nor with the session's time zone.
    """
    # A wall clock stays a wall clock: as an instant it would depend on the session's time zone.
    columns = [quoted(n).cast(spark_type(schema.field(n).type, df.schema[n].dataType)) for n in key]
    group = F.pmod(F.hash(*columns), F.lit(key_groups)).cast("int")
    return df.withColumn(GROUP_COLUMN, group)
