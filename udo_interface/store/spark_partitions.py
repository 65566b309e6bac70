"""Which key groups Spark's hash partitioning sends to which partition."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from udo_protocol.limits import KEY_GROUPS

_SEED = 42


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
