"""First story detection on tweets: LSH gives a tweet its key, and a tweet unlike its key's last ones is a new story (paper 2, section 4).

`first_stories` is the plain oracle, one process and one state per key; `detect` is the same operator on engines whose keys move.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

Vector = dict[str, float]
BITS = 12  # 4,096 keys
KEPT = 100  # tweets that a key remembers (the paper's H)
NOVEL_BELOW = 0.5  # a tweet less similar than this to all of them is a new story
_WORD = re.compile(r"[#$@]?\w+")
_ADDRESS = re.compile(r"https?://\S+")
_DIMENSIONS = 2**14


def vector(text: str) -> Vector:
    """The counts of a tweet's words, normalised to length 1; addresses carry no meaning and are left out."""
    counts = Counter(_WORD.findall(_ADDRESS.sub(" ", text.lower())))
    length = math.sqrt(sum(n * n for n in counts.values()))
    return {word: n / length for word, n in counts.items()}


def lsh_keys(tweets: Sequence[Vector], seed: int = 0) -> np.ndarray:
    """The key of each tweet, 0 … 4095: a bit for its side of each of 12 random hyperplanes."""
    planes = np.random.default_rng(seed).standard_normal((_DIMENSIONS, BITS))
    place: dict[str, int] = {}
    keys = np.zeros(len(tweets), np.int64)
    powers = 2 ** np.arange(BITS)
    for i, tweet in enumerate(tweets):
        rows = [place.setdefault(word, zlib.crc32(word.encode()) % _DIMENSIONS) for word in tweet]
        if rows:
            keys[i] = powers[np.array(list(tweet.values())) @ planes[rows] > 0].sum()
    return keys


def is_first(tweet: Vector, recent: deque[Vector]) -> bool:
    """Whether no recent tweet of the key is similar. Adds the tweet to the recent ones."""
    similar = any(sum(x * other[w] for w, x in tweet.items() if w in other) >= NOVEL_BELOW for other in recent)
    recent.append(tweet)
    return not similar


def first_stories(tweets: Sequence[Vector], keys: Sequence[int]) -> set[int]:
    """The positions of the tweets that are reported."""
    recent: dict[int, deque[Vector]] = defaultdict(lambda: deque(maxlen=KEPT))
    return {i for i, (tweet, key) in enumerate(zip(tweets, keys, strict=True)) if is_first(tweet, recent[key])}


def detect(
    tweets: Sequence[Vector],
    keys: Sequence[int],
    engines: int,
    choose: Callable[[int], int],
    review: Callable[[Sequence[int]], list[tuple[int, int, int]]] | None,
    every: int,
) -> set[int]:
    """Do the same on engines: `choose` names the engine of a key's next tweet; `review`, called with the keys after `every` tweets,
    returns a (key, old engine, new engine) for each state to move."""
    state: list[dict[int, deque[Vector]]] = [{} for _ in range(engines)]
    found = set()
    for i, (tweet, key) in enumerate(zip(tweets, keys, strict=True)):
        if is_first(tweet, state[choose(key)].setdefault(key, deque(maxlen=KEPT))):
            found.add(i)
        if review and (i + 1) % every == 0:
            for moved, old, new in review(keys[i + 1 - every : i + 1]):
                if moved in state[old]:
                    state[new][moved] = state[old].pop(moved)
    return found


def generated(n: int, seed: int) -> list[str]:
    """Make tweets about stories that appear, are reworded, repeated, and forgotten."""
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(20_000)]
    stories: list[list[str]] = []
    texts: list[str] = []
    for _ in range(n):
        if not stories or rng.random() < 0.15:
            stories.append([words[i] for i in rng.integers(0, len(words), 8)])
        if texts and rng.random() < 0.1:
            texts.append(texts[-1 - int(rng.integers(0, min(len(texts), 50)))])
            continue
        # most tweets are about a few, recent stories
        story = stories[-1 - min(int(rng.zipf(1.4)) - 1, len(stories) - 1)]
        said = [w for w in story if rng.random() < 0.85] + [words[int(rng.integers(0, 50))]]
        texts.append(" ".join(said))
    return texts


def from_parquet(path: Path, n: int | None) -> list[str]:
    """Read the first n values of the column `text` of a Parquet file, in its order."""
    import pyarrow.parquet as pq

    return pq.read_table(path, columns=["text"])["text"].to_pylist()[:n]  # type: ignore[no-any-return]
