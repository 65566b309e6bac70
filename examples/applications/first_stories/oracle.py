"""The expected answers, from one process without the platform: numpy for the keys, a bounded list per key for the last tweets."""

from __future__ import annotations

import random
import re
import zlib
from collections import deque

import numpy as np
import pyarrow as pa

# The operators' constants.
SEED, DIMENSIONS, PLANES = 2016, 2**14, 12
REMEMBERED, NOVEL_BELOW = 50, 0.5
Story = tuple[int, float, bool]  # tweet, similarity to the most similar one before, first of its story?


def expected(tweets: pa.Table) -> list[Story]:
    """The expected answer to each tweet, in order."""
    draw = random.Random(SEED)
    planes = np.array([draw.choices((-1, 1), k=PLANES) for _ in range(DIMENSIONS)])
    recent: dict[int, deque[tuple[np.ndarray, int]]] = {}
    found = []
    for tweet_id, text in zip(tweets["tweet_id"].to_pylist(), tweets["text"].to_pylist(), strict=True):
        plain = re.sub(r"https?://\S+", " ", (text or "").lower())
        words = np.array([zlib.crc32(w.encode()) % DIMENSIONS for w in re.findall(r"[#$@]?\w+", plain)], np.int64)
        key = int(((planes[words].sum(axis=0) > 0) * 2 ** np.arange(PLANES)).sum())
        last, square = recent.setdefault(key, deque(maxlen=REMEMBERED)), _product(words, words)
        similarity = max((_product(words, other) / float(np.sqrt(max(square * s, 1))) for other, s in last), default=0.0)
        last.append((words, square))
        found.append((tweet_id, similarity, len(words) > 0 and similarity < NOVEL_BELOW))
    return found


def _product(a: np.ndarray, b: np.ndarray) -> int:
    """Inner product of two bags of words: the pairs of equal words."""
    return int((a[:, None] == b).sum())
