"""The part without Spark: many seeds' queries at once against one node under chaos."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from benchmarks.chaos import controlled
from benchmarks.chaos.canaries import Canaries
from benchmarks.chaos.faults import NOTHING, WEIGHTS, Faults, weights_of
from benchmarks.chaos.judge import Mismatch
from benchmarks.chaos.kinds import CHAIN, HISTORY, Kind
from benchmarks.chaos.node import ChaosNode, chaos_node
from benchmarks.chaos.query import NotNeeded, Query
from benchmarks.chaos.stops import Stops

# Two of three seeds are of the first kind; each entry has a deployment of its own.
KINDS = (HISTORY, HISTORY, CHAIN)
AT_ONCE = 6
# A node serves this many seeds, then a fresh one takes over.
SEEDS_PER_NODE = 100
# With controllers that act: the weight of NOTHING per fault.
_CALM = 5


@dataclass
class Outcome:
    """The results of a range of seeds; `reports` holds one text per mismatch."""

    seeds: int = 0
    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reports: dict[int | str, str] = field(default_factory=dict)
    slowest_s: float = 0.0
    # The longest time after a stop until all was well.
    slowest_back_s: float = 0.0

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


def run(
    seeds: Iterable[int],
    *,
    kinds: Sequence[Kind] = KINDS,
    broken: str = "",
    weights: dict[str, float] | None = None,
    points: Sequence[str] = (),
    scale: float = 1.0,
    until_mismatch: bool = False,
    deadline_s: float = float("inf"),
    shown: Callable[[int, Counter[str]], bool] = lambda seeds, faults: True,
    done: Callable[[int], None] = lambda seed: None,
    slots: int = 1,
    auto: bool = False,
) -> Outcome:
    """Run all seeds, in order but several at once, in turn on deployments of these kinds; `done` is called with each one that succeeded.

    slots: of each deployment; with several, key groups move and the number of slots changes, by the default weights. auto: the node's
    controllers move key groups and change the number of slots as well (controlled.py).

    points: points of the runtime at which faults take place; all if none is given.

    until_mismatch: stop at the first one, since a broken build need be caught only once. deadline_s: start no seed after that long, once
    the number of seeds that ended and their faults satisfy `shown`, which takes longer on a busy machine.
    scale: a factor for the lengths of stops and for the times after which the node gives up hanging processes.
    """
    outcome, wanted = Outcome(), list(seeds)
    started = time.monotonic()

    def enough(faults: Callable[[], Counter[str]]) -> bool:
        if until_mismatch and outcome.reports:
            return True
        return time.monotonic() - started > deadline_s and shown(outcome.seeds, faults())

    while wanted and not enough(lambda: outcome.faults):
        part, wanted = wanted[:SEEDS_PER_NODE], wanted[SEEDS_PER_NODE:]
        with chaos_node(*kinds, broken=broken, scale=scale, slots=slots, auto=auto) as (node, names):
            drawn = weights_of(slots, WEIGHTS) if weights is None else weights
            faults = Faults(node, drawn | ({NOTHING: _CALM * sum(drawn.values())} if auto else {}), slots, points)

            def counted(now: Faults = faults, on: ChaosNode = node, of: list[str] = names) -> Counter[str]:
                return outcome.faults + now.counts + (controlled.told(on.api, of)[0] if auto else Counter())

            try:
                _some(
                    part,
                    node,
                    dict(zip(names, kinds, strict=True)),
                    faults,
                    outcome,
                    lambda: until_mismatch and bool(outcome.reports),
                    lambda now=counted: enough(now),
                    done,
                )
            finally:
                faults.close()
            acted, wrong = controlled.told(node.api, names) if auto else (Counter[str](), [])
            outcome.faults += faults.counts + acted
            outcome.reports |= {f"journal {n}": text for n, text in enumerate(wrong, len(outcome.reports))}
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
            outcome.faults = outcome.faults + query.faults  # a new object: other seeds may be iterating over the old one
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
