"""The ten most frequent taxi routes of the last 30 minutes, every five minutes (DEBS 2015 Grand Challenge, query 1).

python -m examples.applications.taxi_routes.run --output routes.svg
python -m examples.applications.taxi_routes.run --data rides.parquet --output routes.svg
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from examples.applications import common
from examples.applications.taxi_routes import oracle, source
from udo_interface import udo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
ROWS, BATCH_ROWS = 20_000, 2_000
PARTS = 4  # parts of the routes, ranked in parallel


def answers(spark: SparkSession, events: pa.Table, work: Path, batch_rows: int = BATCH_ROWS) -> common.Rows:
    """Run the query: a chain of three stateless and three keyed operators."""
    from pyspark.sql import functions as F

    trips = udo("taxi-area")(udo("taxi-parser")(common.stream(spark, events, work / "events", batch_rows)))
    counts = udo("route-counts")(udo("taxi-route")(trips), key="route")
    parts = counts.withColumn("part", F.pmod(F.hash("route"), F.lit(PARTS)))
    best = udo("partial-rank")(parts, key=["window_end", "part"])
    return common.collected(udo("global-rank")(best, key="window_end"), work / "checkpoint")


def comparable(rows: common.Rows) -> list[oracle.Rank]:
    """The answers in the oracle's form."""
    return sorted((r["window_end"], r["rank"], r["route"], r["trips"]) for r in rows)


def draw(rows: common.Rows, path: Path) -> None:
    """Draw how the ten best routes of the last window rose."""
    ends = sorted({r["window_end"] for r in rows})
    trips = {(r["route"], r["window_end"]): r["trips"] for r in rows}
    last = [r["route"] for r in sorted(rows, key=lambda r: r["rank"]) if r["window_end"] == ends[-1]]
    with common.drawing(path, "Most frequent taxi routes of the last 30 minutes") as figure:
        axes = figure.subplots()
        for rank, route in enumerate(last, start=1):
            axes.plot(ends, [trips.get((route, end)) for end in ends], marker=".", label=f"{rank}. {route}")
        axes.set_ylabel("trips, while among the ten")
        figure.legend(loc="outside right upper")


def main() -> bool:
    """Run generated or given taxi events through the query; return whether the answers match the oracle's."""
    given = common.arguments(__doc__ or "", ROWS)
    events = source.read(given.data, given.rows) if given.data else source.generated(given.rows, given.seed)
    with common.platform(FOLDER) as here:
        rows = answers(here.spark, events, here.work)
    if not rows:
        return common.verdict(False, "no window has closed: too few events; answers")
    if given.output:
        draw(rows, given.output)
    found = comparable(rows)
    until = found[-1][0]  # windows still open when the stream ends have no answers
    return common.verdict(found == oracle.expected(events, until), f"{len(found):,} ranks of routes in windows up to {until:%H:%M}")


if __name__ == "__main__":
    sys.exit(common.run(main))
