"""One diff over several slots of a deployment: each is compared by itself, and the findings are added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Event
from typing import Any

from node_manager.trials.mirrors import COUNTED, MirrorFindings, outcome
from udo_protocol import supervised

# Figures of which the slowest slot's is shown; all other numbers are summed.
_TIMES = ("p50_ms", "p99_ms")


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
    reports: dict[int, dict[str, Any]] = {}
    left, failure = len(runs), None
    try:
        while left:
            k, found = told.get()
            if isinstance(found, MirrorFindings):
                final = found.report.get("final")
                reports[k] = {name: value for name, value in found.report.items() if name != "final"}
                if not final:
                    yield MirrorFindings(added(list(reports.values())), found.examples)
                continue
            left -= 1
            if found is not None:
                failure = failure or found
                stop.set()
        if failure is not None:
            raise failure
        yield MirrorFindings({**added(list(reports.values())), "final": True}, [])
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def added(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine several reports: counts are summed; of times the slowest is taken, of all else the first that says anything."""
    total: dict[str, Any] = {}
    for report in reports:
        for name, value in report.items():
            if name in _TIMES:
                total[name] = max(total.get(name, 0.0), value)
            elif name in COUNTED:
                total[name] = total.get(name, 0) + value
            elif name == "serving":
                before = total.setdefault(name, dict(value))
                total[name] = {each: max(before.get(each, 0.0), value[each]) for each in value}
            elif not total.get(name):
                total[name] = value
    if "outcome" in total:
        total["outcome"] = outcome(total)
    return total
