"""Key groups in Spark's plan: computed by the JVM, one partition per group, and which groups a partition answers for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from udo_interface.spark_types import spark_type
from udo_protocol.errors import UsageError
from udo_protocol.formats.schema import GROUP_COLUMN
from udo_protocol.limits import KEY_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Marks a DataFrame that is partitioned by key group already, in the metadata of its group column.
_MARK = "udo_key_groups"
_SEED = 42


def by_key_group(df: DataFrame, key: Sequence[str], schema: pa.Schema, partitions: int | None = None) -> tuple[DataFrame, int]:
    """`df` with its key group as one more column, repartitioned by it unless it is so already; and the partitions.

    The group is `pmod(hash(key), KEY_GROUPS)` over the key in the operator's own types, so that it does not change when a
    query sends a narrower type. `partitions` defaults to spark.sql.shuffle.partitions.
    """
    if GROUP_COLUMN in df.columns:
        mark = df.schema[GROUP_COLUMN].metadata.get(_MARK)
        if not mark or list(mark["key"]) != list(key):
            raise UsageError(f"the DataFrame is partitioned by {mark and mark['key']}, this operator keeps state by {', '.join(key)}")
        return df, int(mark["partitions"])
    count = partitions or int(df.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or 200)
    columns = [F.col("`" + n.replace("`", "``") + "`").cast(spark_type(schema.field(n).type)) for n in key]
    group = F.pmod(F.hash(*columns), F.lit(KEY_GROUPS)).cast("int")
    marked = df.withColumn(GROUP_COLUMN, group).withMetadata(GROUP_COLUMN, {_MARK: {"key": list(key), "partitions": count}})
    return marked.repartition(count, F.col(GROUP_COLUMN)), count


def groups_of(partition: int, partitions: int) -> list[int]:
    """The key groups that Spark's hash partitioning sends to this partition."""
    return [g for g in range(KEY_GROUPS) if _murmur3_int(g) % partitions == partition]


def _murmur3_int(value: int) -> int:
    """Spark's hash of an int (Murmur3_x86_32, seed 42), as a signed 32-bit number."""
    mask = 0xFFFFFFFF

    def rotated(x: int, r: int) -> int:
        return ((x << r) | (x >> (32 - r))) & mask

    k = rotated(value * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    h = (rotated(_SEED ^ k, 13) * 5 + 0xE6546B64) & mask
    h ^= 4
    h = (h ^ (h >> 16)) * 0x85EBCA6B & mask
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (1 << 32) if h & 0x80000000 else h
