"""Tweets: from a Parquet file, or made from a seed."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa

from examples.applications import common

SCHEMA = pa.schema([("tweet_id", pa.int64()), ("created_at", pa.timestamp("us", "UTC")), ("text", pa.string())])


def read(path: Path, rows: int | None) -> pa.Table:
    """Read the tweets of a file with these columns."""
    return common.read(path, SCHEMA, rows)


def generated(rows: int, seed: int) -> pa.Table:
    """Stories that appear, are told in other words, repeated exactly, and forgotten."""
    draw = random.Random(seed)
    at = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
    stories: list[list[str]] = []
    made: list[tuple[int, dt.datetime, str | None]] = []
    for tweet_id in range(rows):
        at += dt.timedelta(seconds=draw.expovariate(1 / 60))
        if not stories or draw.random() < 0.15:
            stories.append([f"word{draw.randrange(20_000)}" for _ in range(8)])
        story = stories[-1 - min(int(draw.paretovariate(0.7)) - 1, len(stories) - 1)]  # most tweets are about a few recent ones
        text: str | None = " ".join([w for w in story if draw.random() < 0.9] + [f"word{draw.randrange(50)}", "https://t.co/x"])
        if made and draw.random() < 0.1:
            text = made[-1 - draw.randrange(min(len(made), 50))][2]
        made.append((tweet_id, at, None if draw.random() < 0.005 else text))
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(zip(*made, strict=True), SCHEMA, strict=True)], schema=SCHEMA)
