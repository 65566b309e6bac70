"""The results of a range of seeds, in any part: several queries run at once, and each one is right or has a report."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from benchmarks.chaos.canaries import Canaries
from benchmarks.chaos.judge import Mismatch, Stuck
from benchmarks.chaos.stops import Stops


class NotNeeded(Exception):
    """Another seed has found the mismatch that was looked for; this one was given up."""


class SeededQuery(Protocol):
    """One seed's query. `runs`: the starts of its driver; `faults`: what it did and suffered."""

    faults: Counter[str]

    @property
    def runs(self) -> int: ...

    def run(self) -> None:
        """Run all epochs; Mismatch says what differs, NotNeeded that it was given up."""


Q = TypeVar("Q", bound=SeededQuery)


@dataclass
class Outcome:
    """The results of a range of seeds; `reports` holds one text per seed that failed, and per recovery or canary that did."""

    seeds: int = 0
    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reports: dict[int | str, str] = field(default_factory=dict)
    # Those of them whose answers or state differ; the others met an unexpected error, or did not end.
    mismatched: set[int] = field(default_factory=set)
    slowest_s: float = 0.0
    # The longest time after a stop until all was well.
    slowest_back_s: float = 0.0

    def play(
        self,
        seeds: Iterable[int],
        at_once: int,
        query_of: Callable[[int], Q | None],
        report: Callable[[int, Q, str], str],
        done: Callable[[int], None],
    ) -> None:
        """Start the seeds in order, several at once. query_of: None if a seed is not to be started any more; report: called with a seed,
        its query and the error; done: called with each seed that succeeded."""

        def one(seed: int) -> tuple[int, Q | None, str, bool, float]:
            began, query, error, differs = time.monotonic(), query_of(seed), "", False
            if query is not None:
                try:
                    query.run()
                except NotNeeded:
                    query = None
                except Mismatch as e:
                    error, differs = str(e), not isinstance(e, Stuck)
                except Exception:
                    error = traceback.format_exc()
            return seed, query, error, differs, time.monotonic() - began

        with ThreadPoolExecutor(at_once, thread_name_prefix="seed") as pool:
            try:
                for future in as_completed([pool.submit(one, s) for s in seeds]):
                    seed, query, error, differs, took_s = future.result()
                    if query is None:
                        continue
                    self.seeds += 1
                    self.runs += query.runs
                    self.faults = self.faults + query.faults  # a new object: other seeds may be iterating over the old one
                    self.slowest_s = max(self.slowest_s, took_s)
                    if differs:
                        self.mismatched.add(seed)
                    if error:
                        self.reports[seed] = report(seed, query, error)
                    else:
                        done(seed)
            except BaseException:  # also Ctrl-C: without this, all waiting seeds would run first
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def add_stops(self, stops: Stops, happened: Iterable[str]) -> None:
        """Add the slowest recovery, and a report of each stop after which the platform did not recover."""
        self.slowest_back_s = max(self.slowest_back_s, stops.slowest_s)
        for text in stops.broken:
            self.reports[f"stop {len(self.reports)}"] = "\n".join([f"STOP: {text}", "what befell the platform:", *happened])

    def add(self, canaries: Canaries, happened: Iterable[str]) -> None:
        """Add the counts of a platform's canaries, and a report of each broken one with the platform's faults."""
        self.faults += canaries.counts
        for text in canaries.broken:
            self.reports[f"canary {len(self.reports)}"] = "\n".join([f"CANARY: {text}", "what befell the platform:", *happened])
