"""Airline delays with four operators: extract them, sum them by plane and year, time in the air, delays estimated from a sample.

python -m examples.applications.airline_delays.run --output delays.svg
python -m examples.applications.airline_delays.run --data flights.parquet --rows 100000 --output delays.svg
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from examples.applications import common
from examples.applications.airline_delays import oracle, source
from udo_interface import udo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = Path(__file__).parent
ROWS, BATCH_ROWS = 20_000, 5_000
# For each keyed operator its key, and the columns compared in its answers, of which the first grows from answer to answer.
KEYED = {
    "plane-years": (["plane", "year"], ["flights", "delayed", "delay_min"]),
    "time-in-air": (["plane", "year"], ["flights", "air_min", "share"]),
    "delay-sample": (["carrier"], ["sampled", "delayed"]),
}
DRAWN = 15  # planes


def answers(spark: SparkSession, flights: pa.Table, work: Path, batch_rows: int = BATCH_ROWS) -> oracle.Answers:
    """Run each micro-batch through the first operator once, and from there through the three others. Returns their last answers by key."""
    last: oracle.Answers = {name: {} for name in KEYED}

    def each(batch: DataFrame, epoch: int) -> None:
        delays = udo("flight-delays")(batch).persist()
        for name, (key, values) in KEYED.items():
            for row in udo(name)(delays, key=key).toArrow().to_pylist():
                place, answer = tuple(row[k] for k in key), tuple(row[v] for v in values)
                last[name][place] = max(answer, last[name].get(place, answer))
        delays.unpersist()

    common.drain(common.stream(spark, flights, work / "flights", batch_rows), work / "checkpoint", each)
    return last


def draw(found: oracle.Answers, path: Path) -> None:
    """Draw the planes with the most delay in a year, the share of time that planes fly, and the estimates by carrier."""
    sums: Counter[str] = Counter({f"{plane} {year}": minutes for (plane, year), (_, _, minutes) in found["plane-years"].items()})
    worst = sums.most_common(DRAWN)[::-1]
    shares = {carrier: 100 * delayed / sampled for (carrier,), (sampled, delayed) in sorted(found["delay-sample"].items())}
    with common.drawing(path, "Airline delays") as figure:
        planes, air, carriers = figure.subplots(1, 3)
        planes.barh([name for name, _ in worst], [minutes / 60 for _, minutes in worst], color="tab:red")
        planes.set_title("planes with the most delay", fontsize=9)
        planes.set_xlabel("hours in the year")
        air.hist([100 * share for _, _, share in found["time-in-air"].values()], bins=20)
        air.set_title("time in the air", fontsize=9)
        air.set_xlabel("% of a plane's time")
        air.set_ylabel("planes and years")
        carriers.bar(list(shares), list(shares.values()), color="tab:orange")
        carriers.tick_params("x", rotation=90)
        carriers.set_title("delayed, from a sample", fontsize=9)
        carriers.set_ylabel("% of a carrier's flights")


def main() -> bool:
    """Run generated or given flights through the query; return whether the answers match the oracle's."""
    given = common.arguments(__doc__ or "", ROWS)
    flights = source.read(given.data, given.rows) if given.data else source.generated(given.rows, given.seed)
    with common.platform(FOLDER) as here:
        found = answers(here.spark, flights, here.work)
    if given.output:
        draw(found, given.output)
    return common.verdict(
        found == oracle.expected(flights), f"{len(found['plane-years']):,} planes and years of {flights.num_rows:,} flights"
    )


if __name__ == "__main__":
    sys.exit(common.run(main))
