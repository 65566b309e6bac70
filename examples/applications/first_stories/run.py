"""First story detection: which tweets tell something new?

python -m examples.applications.first_stories.run --update --output stories.svg
python -m examples.applications.first_stories.run --data tweets.parquet --output stories.svg
"""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from examples.applications import common
from examples.applications.first_stories import oracle, source
from udo_cli.demo import platform as demo_platform
from udo_cli.platform import remote
from udo_interface import udo
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
ROWS, BATCH_ROWS = 6_000, 1_000


def answers(
    spark: SparkSession, tweets: pa.Table, work: Path, batch_rows: int = BATCH_ROWS, after: Callable[[int], None] = lambda epoch: None
) -> common.Rows:
    """Run the query: the first operator gives a tweet its key, the second one keeps state by it."""
    stream = common.stream(spark, tweets, work / "tweets", batch_rows)
    keyed = udo("story-key")(stream, keep=["tweet_id", "created_at"])
    stories = udo("first-story")(keyed, key="key", keep=["tweet_id", "created_at"])
    return common.collected(stories, work / "checkpoint", after)


def comparable(rows: common.Rows, tweets: pa.Table) -> list[oracle.Story]:
    """The answers in the order of the tweets, in the oracle's form."""
    place = {tweet_id: i for i, tweet_id in enumerate(tweets["tweet_id"].to_pylist())}
    return sorted(((r["tweet_id"], r["similarity"], r["is_first"]) for r in rows), key=lambda story: place[story[0]])


@contextmanager
def updating(registry: Registry, cache: Path, batches: int) -> Iterator[Callable[[int], None]]:
    """A function to call after each micro-batch: in the middle of the stream it starts to replace version 1 of `first-story` by version 2.

    The last micro-batch waits for the end of the update, so that version 2 has something to answer.
    """
    demo_platform.push(registry, FOLDER / "first_story", cache, version="2")
    update: Future[dict[str, Any]] | None = None
    with ThreadPoolExecutor(1, "update") as background:

        def after(epoch: int) -> None:
            nonlocal update
            if epoch == batches // 2 - 1:
                update = background.submit(lambda: remote.follow(registry.update("first-story", "2"), common.say))
            if epoch == batches - 2 and update is not None:
                update.result()

        yield after


def draw(rows: common.Rows, path: Path) -> None:
    """Draw tweets and first stories over time."""
    times = sorted(r["created_at"] for r in rows)
    width = max((times[-1] - times[0]) / 60, dt.timedelta(microseconds=1))
    parts = Counter(((r["created_at"] - times[0]) // width, r["is_first"]) for r in rows)
    at = [times[0] + i * width for i in range(61)]
    with common.drawing(path, "First stories among tweets") as figure:
        axes = figure.subplots()
        every, first = [parts[i, True] + parts[i, False] for i in range(61)], [parts[i, True] for i in range(61)]
        axes.fill_between(at, every, step="mid", color="lightgray", label=f"{len(rows):,} tweets")
        axes.fill_between(at, first, step="mid", color="tab:red", label=f"{sum(first):,} first stories")
        axes.set_ylabel("tweets")
        axes.legend()


def main() -> bool:
    """Run generated or given tweets through the query; return whether the answers match the oracle's."""
    given = common.arguments(__doc__ or "", ROWS, update="replace the keyed operator by its version 2 in the middle of the stream")
    tweets = source.read(given.data, given.rows) if given.data else source.generated(given.rows, given.seed)
    with common.platform(FOLDER) as here:
        if given.update:
            with updating(here.registry, here.home.dependencies, -(-tweets.num_rows // BATCH_ROWS)) as after:
                rows = answers(here.spark, tweets, here.work, after=after)
        else:
            rows = answers(here.spark, tweets, here.work)
    by_version = Counter(r["version"] for r in rows)
    print(", ".join(f"version {version} answered {n:,} tweets" for version, n in sorted(by_version.items())))
    if given.output:
        draw(rows, given.output)
    found = comparable(rows, tweets)
    return common.verdict(
        found == oracle.expected(tweets), f"{sum(first for *_, first in found):,} first stories among {len(found):,} tweets"
    )


if __name__ == "__main__":
    sys.exit(common.run(main))
