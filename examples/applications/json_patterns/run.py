"""Frequent patterns in a stream of JSON events: which fields and pairs of fields come up often in a minute?

python -m examples.applications.json_patterns.run --output patterns.svg
python -m examples.applications.json_patterns.run --data events.jsonl --output patterns.svg
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from examples.applications import common
from examples.applications.json_patterns import oracle, source
from udo_interface import udo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
ROWS, BATCH_ROWS = 6_000, 600
DRAWN = 8  # patterns


def answers(spark: SparkSession, events: pa.Table, work: Path, batch_rows: int = BATCH_ROWS) -> common.Rows:
    """Run the query: one operator finds the patterns in an event, the other one counts each pattern."""
    stream = common.stream(spark, events, work / "events", batch_rows)
    frequent = udo("frequent-patterns")(udo("json-patterns")(stream), key="pattern")
    return common.collected(frequent, work / "checkpoint")


def comparable(rows: common.Rows) -> list[oracle.Pattern]:
    """The answers in the oracle's form."""
    return sorted((r["window_end"], r["pattern"], r["count"]) for r in rows)


def draw(rows: common.Rows, path: Path) -> None:
    """Draw the counts of the patterns that change most."""
    ends = sorted({r["window_end"] for r in rows})
    counts = {(r["pattern"], r["window_end"]): r["count"] for r in rows}
    courses = {p: [counts.get((p, end), 0) for end in ends] for p in {r["pattern"] for r in rows}}
    with common.drawing(path, "Frequent patterns in JSON events") as figure:
        axes = figure.subplots()
        for pattern in sorted(courses, key=lambda p: (min(courses[p]) - max(courses[p]), p))[:DRAWN]:
            axes.plot(ends, courses[pattern], marker=".", label=pattern)
        axes.set_ylabel("times in a minute")
        figure.legend(loc="outside right upper")


def main() -> bool:
    """Run generated or given events through the query; return whether the answers match the oracle's."""
    given = common.arguments(__doc__ or "", ROWS)
    events = source.read(given.data, given.rows) if given.data else source.generated(given.rows, given.seed)
    with common.platform(FOLDER) as here:
        rows = answers(here.spark, events, here.work)
    if not rows:
        return common.verdict(False, "no window has closed: too few events, or none frequent; answers")
    if given.output:
        draw(rows, given.output)
    found = comparable(rows)
    until = found[-1][0]  # windows still open when the stream ends have no answers
    return common.verdict(found == oracle.expected(events, until), f"{len(found):,} frequent patterns in windows up to {until:%H:%M}")


if __name__ == "__main__":
    sys.exit(common.run(main))
