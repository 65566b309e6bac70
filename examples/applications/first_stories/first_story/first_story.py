"""A keyed operator that remembers the last tweets of each key in `ctx.state`, so that no crash and no update loses one of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from udo_runtime import Operator

REMEMBERED = 50  # tweets of a key
NOVEL_BELOW = 0.5  # a cosine similarity of tweets


class FirstStory(Operator):
    """One answer for every tweet: its similarity to the remembered tweets of its key, and whether it is a first story."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """One tweet of the key `ctx.key`."""
        words, recent = event["words"], ctx.state.get("recent", [])
        counts = Counter(words)
        highest = max((cosine(counts, Counter(other)) for other in recent), default=0.0)
        ctx.state["recent"] = [*recent, words][-REMEMBERED:]
        yield {"similarity": highest, "is_first": bool(words) and highest < NOVEL_BELOW, "version": ctx.version}


def cosine(a: Counter[int], b: Counter[int]) -> float:
    """Cosine similarity of two vectors of word counts; 0 if one has no words."""
    product = sum(n * b[word] for word, n in a.items() if word in b)
    return product / math.sqrt(sum(n * n for n in a.values()) * sum(n * n for n in b.values())) if product else 0.0
