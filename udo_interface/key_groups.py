"""Key groups in Spark's plan: computed by the JVM, one partition per group, and which groups a partition answers for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
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


def by_key_group(
    df: DataFrame, key: Sequence[str], schema: pa.Schema, partitions: int | None = None, *, key_groups: int = KEY_GROUPS
) -> tuple[DataFrame, int]:
    """`df` with its key group as one more column, repartitioned by it unless it is so already; and the partitions.

    The group is `pmod(hash(key), key_groups)` over the key in the operator's own types, so that it does not change when a
    query sends a narrower type, nor with the session's time zone. `partitions` defaults to spark.sql.shuffle.partitions.
    """
    if GROUP_COLUMN in df.columns:
        mark = df.schema[GROUP_COLUMN].metadata.get(_MARK)
        if not mark or list(mark["key"]) != list(key):
            raise UsageError(f"the DataFrame is partitioned by {mark and mark['key']}, this operator keeps state by {', '.join(key)}")
        if int(mark["groups"]) != key_groups:
            raise UsageError(
                f"the DataFrame is partitioned into {mark['groups']} key groups, this deployment has {key_groups}: operators that are "
                "called one after the other with the same key need the same number (udo deploy --key-groups)"
            )
        return df, int(mark["partitions"])
    count = partitions or int(df.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or 200)
    # A wall clock stays one: as an instant it would depend on the session's time zone.
    columns = [F.col("`" + n.replace("`", "``") + "`").cast(spark_type(schema.field(n).type, df.schema[n].dataType)) for n in key]
    group = F.pmod(F.hash(*columns), F.lit(key_groups)).cast("int")
    mark = {"key": list(key), "partitions": count, "groups": key_groups}
    marked = df.withColumn(GROUP_COLUMN, group).withMetadata(GROUP_COLUMN, {_MARK: mark})
    return marked.repartition(count, F.col(GROUP_COLUMN)), count


def groups_of(partition: int, partitions: int, key_groups: int = KEY_GROUPS) -> list[int]:
    """The key groups that Spark's hash partitioning sends to this partition."""
    found: list[int] = np.flatnonzero(_murmur3(key_groups) % partitions == partition).tolist()
    return found


@functools.lru_cache(maxsize=16)
def _murmur3(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Spark's hash of the ints below `count` (Murmur3_x86_32, seed 42), as signed 32-bit numbers."""
    value = np.arange(count, dtype=np.uint32)

    def rotated(x: Any, r: int) -> Any:
        return (x << np.uint32(r)) | (x >> np.uint32(32 - r))

    k = rotated(value * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    h = rotated(np.uint32(_SEED) ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    h ^= np.uint32(4)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    hashed: np.ndarray[Any, np.dtype[np.int64]] = (h ^ (h >> np.uint32(16))).view(np.int32).astype(np.int64)
    return hashed
