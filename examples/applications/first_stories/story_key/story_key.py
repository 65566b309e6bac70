"""Locality-sensitive hashing with random hyperplanes: the more similar two tweets are, the more likely they are to get the same key.

A tweet is a vector of word counts; the hash of a word is its dimension. Each of 12 planes through the origin gives one bit of the key,
the side on which the vector lies (Charikar, STOC 2002). The planes are drawn once per instance, from a fixed seed, so that every
instance, on any node and after any restart, gives the same keys.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

SEED, DIMENSIONS, PLANES = 2016, 2**14, 12  # 2**12 = 4,096 keys, as in the paper
WORD, ADDRESS = re.compile(r"[#$@]?\w+"), re.compile(r"https?://\S+")


class StoryKey(Operator):
    """The key and the words of a tweet; addresses carry no meaning and are left out."""

    def open(self, ctx: Any) -> None:
        """Draw each dimension's component, +1 or -1, of the normal vectors of all planes."""
        draw = random.Random(SEED)
        self.components = [draw.choices((-1, 1), k=PLANES) for _ in range(DIMENSIONS)]

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """One answer for every tweet, even without words."""
        words = [zlib.crc32(word.encode()) % DIMENSIONS for word in WORD.findall(ADDRESS.sub(" ", (event["text"] or "").lower()))]
        products = (sum(of_plane) for of_plane in zip(*(self.components[word] for word in words), strict=True))
        yield {"key": sum(1 << plane for plane, product in enumerate(products) if product > 0), "words": words}
