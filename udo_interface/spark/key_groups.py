"""Key groups in Spark's plan: their computation by the JVM, and the groups that each partition answers for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from udo_interface.spark.spark_types import spark_type
from udo_protocol.formats.schema import GROUP_COLUMN
from udo_protocol.limits import KEY_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SEED = 42


def with_key_group(df: DataFrame, key: Sequence[str], schema: pa.Schema, *, key_groups: int = KEY_GROUPS) -> DataFrame:
    """`df` with each row's key group as one more column.

    The group is `pmod(hash(key), key_groups)` over the key in the operator's own types, so that it does not change when a
    query sends a narrower type, nor with the session's time zone.
    """
    # A wall clock stays a wall clock: as an instant it would depend on the session's time zone.
    columns = [F.col("`" + n.replace("`", "``") + "`").cast(spark_type(schema.field(n).type, df.schema[n].dataType)) for n in key]
    group = F.pmod(F.hash(*columns), F.lit(key_groups)).cast("int")
    return df.withColumn(GROUP_COLUMN, group)


def groups_of(partition: int, partitions: int, key_groups: int = KEY_GROUPS) -> list[int]:
    """The key groups that Spark's hash partitioning sends to this partition."""
    found: list[int] = np.flatnonzero(_murmur3(key_groups) % partitions == partition).tolist()
    return found


def partition_of(group: int, partitions: int, key_groups: int = KEY_GROUPS) -> int:
    """The partition that Spark's hash partitioning sends this key group to."""
    return int(_murmur3(key_groups)[group] % partitions)


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
