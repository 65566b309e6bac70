"""The part without Spark: many seeds' queries at once against one node under chaos."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from benchmarks.chaos.canaries import Canaries
from benchmarks.chaos.faults import WEIGHTS, Faults
from benchmarks.chaos.judge import Mismatch
from benchmarks.chaos.kinds import CHAIN, HISTORY, Kind
from benchmarks.chaos.node import ChaosNode, chaos_node
from benchmarks.chaos.query import NotNeeded, Query
from benchmarks.chaos.stops import Stops

# Of three seeds two are of the first kind; each has a deployment of its own.
KINDS = (HISTORY, HISTORY, CHAIN)
AT_ONCE = 6
# A node serves this many seeds, then a fresh one takes over.
SEEDS_PER_NODE = 100


@dataclass
class Outcome:
    """What came of a range of seeds; `reports` holds one text per mismatch."""

    seeds: int = 0
    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reports: dict[int | str, str] = field(default_factory=dict)
    slowest_s: float = 0.0
    # After a stop, until all was well.
    slowest_back_s: float = 0.0

    def add_stops(self, stops: Stops, happened: Iterable[str]) -> None:
        """Whether all came back after each."""
        self.slowest_back_s = max(self.slowest_back_s, stops.slowest_s)
        for text in stops.broken:
            self.reports[f"stop {len(self.reports)}"] = "\n".join([f"STOP: {text}", "what befell the platform:", *happened])

    def add(self, canaries: Canaries, happened: Iterable[str]) -> None:
        """What all canaries of a platform came to, and what befell it."""
        self.faults += canaries.counts
        for text in canaries.broken:
            self.reports[f"canary {len(self.reports)}"] = "\n".join([f"CANARY: {text}", "what befell the platform:", *happened])


def run(
    seeds: Iterable[int],
    *,
    kinds: Sequence[Kind] = KINDS,
    broken: str = "",
    weights: dict[str, float] = WEIGHTS,
    scale: float = 1.0,
    until_mismatch: bool = False,
    deadline_s: float = float("inf"),
    shown: Callable[[int, Counter[str]], bool] = lambda seeds, faults: True,
    done: Callable[[int], None] = lambda seed: None,
) -> Outcome:
    """All seeds, in order but several at once, in turn on deployments of these kinds; `done` is told each one that came through.

    until_mismatch: stop at the first, as a broken build is only to be caught. deadline_s: start no seed after that long, once
    the number of seeds that ended and their faults satisfy `shown`: on a busy machine that takes longer.
    scale: of stops, and of the times in which the node gives up what hangs.
    """
    outcome, wanted = Outcome(), list(seeds)
    started = time.monotonic()

    def enough(faults: Counter[str]) -> bool:
        if until_mismatch and outcome.reports:
            return True
        return time.monotonic() - started > deadline_s and shown(outcome.seeds, faults)

    while wanted and not enough(outcome.faults):
        part, wanted = wanted[:SEEDS_PER_NODE], wanted[SEEDS_PER_NODE:]
        with chaos_node(*kinds, broken=broken, scale=scale) as (node, names):
            faults = Faults(node, weights)
            try:
                _some(
                    part,
                    node,
                    dict(zip(names, kinds, strict=True)),
                    faults,
                    outcome,
                    lambda: until_mismatch and bool(outcome.reports),
                    lambda now=faults: enough(outcome.faults + Counter(now.counts)),
                    done,
                )
            finally:
                faults.close()
            outcome.faults += faults.counts
            outcome.add(faults.canaries, _told(faults))
            outcome.add_stops(faults.stops, _told(faults))
    return outcome


def _some(
    seeds: list[int],
    node: ChaosNode,
    deployed: Mapping[str, Kind],
    faults: Faults,
    outcome: Outcome,
    given_up: Callable[[], bool],
    enough: Callable[[], bool],
    done: Callable[[int], None],
) -> None:
    def one(seed: int) -> tuple[int, Query | None, str, float]:
        if enough():
            return seed, None, "", 0.0
        name = list(deployed)[seed % len(deployed)]
        query = Query(
            node,
            name,
            deployed[name],
            seed,
            lambda who, rng: faults.draw(name, who, rng),
            stood_still_s=lambda: faults.stops.stood_still_s,
            enough=given_up,
        )
        started = time.monotonic()
        try:
            query.run()
            error = ""
        except NotNeeded:
            return seed, None, "", 0.0
        except Mismatch as e:
            error = str(e)
        except Exception:
            error = traceback.format_exc()
        return seed, query, error, time.monotonic() - started

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="seed") as pool:
        for future in as_completed([pool.submit(one, s) for s in seeds]):
            seed, query, error, took_s = future.result()
            if query is None:
                continue
            outcome.seeds += 1
            outcome.runs += query.runs
            outcome.faults += query.faults
            outcome.slowest_s = max(outcome.slowest_s, took_s)
            if error:
                outcome.reports[seed] = _report(seed, query, error, faults)
            else:
                done(seed)


def _report(seed: int, query: Query, error: str, faults: Faults) -> str:
    lines = [f"seed {seed}: MISMATCH", error, "what the query did (seconds since its start):", *query.trace]
    return "\n".join([*lines, "what befell the node:", *_told(faults)])


def _told(faults: Faults) -> list[str]:
    return [f"{at:7.3f} {who}: {what}: {', '.join(took) or 'did not take place'}" for at, who, what, took in faults.happened[-60:]]
