"""One diff over several slots of a deployment: each is compared by itself, and the findings are added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from queue import SimpleQueue
from threading import Event
from typing import Any

from node_manager.trials.mirrors import MirrorFindings
from udo_protocol import supervised
from udo_protocol.diff_report import DiffReport, FrameTimes

# For these fields the slowest slot's value is reported; other numbers are summed.
_LONGEST = ("p50_ms", "p99_ms", "lasted_s")


def together(runs: Sequence[Iterator[MirrorFindings]], stop: Event) -> Iterator[MirrorFindings]:
    """Yield the findings of these comparisons as one; each ends by itself or by `stop`, which is set when one of them fails."""
    told: SimpleQueue[tuple[int, MirrorFindings | BaseException | None]] = SimpleQueue()

    def take(k: int, run: Iterator[MirrorFindings]) -> None:
        try:
            for found in run:
                told.put((k, found))
            told.put((k, None))
        except BaseException as e:
            told.put((k, e))

    threads = [supervised.once("diff", lambda k=k, run=run: take(k, run)) for k, run in enumerate(runs)]  # type: ignore[misc]
    reports: dict[int, DiffReport] = {}
    left, failure = len(runs), None
    try:
        while left:
            k, found = told.get()
            if isinstance(found, MirrorFindings):
                reports[k] = replace(found.report, final=False)
                if not found.report.final:
                    yield MirrorFindings(added(list(reports.values())), found.examples)
                continue
            left -= 1
            if found is not None:
                failure = failure or found
                stop.set()
        if failure is not None:
            raise failure
        yield MirrorFindings(replace(added(list(reports.values())), final=True), [])
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def added(reports: Sequence[DiffReport]) -> DiffReport:
    """The reports of several slots as one: counts are summed; of times the longest is taken, of other fields the first that is set."""
    total = DiffReport()
    for name in (f.name for f in fields(DiffReport)):
        values: list[Any] = [v for r in reports if (v := getattr(r, name))]
        found: Any
        if not values:
            continue
        if name in _LONGEST:
            found = max(values)
        elif isinstance(values[0], FrameTimes):
            found = FrameTimes(max(v.p50_ms for v in values), max(v.p99_ms for v in values))
        elif isinstance(values[0], dict):
            found = dict(sum(map(Counter, values), Counter[str]()))
        elif isinstance(values[0], bool) or not isinstance(values[0], int):
            found = values[0]
        else:
            found = sum(values)
        setattr(total, name, found)
    return total
