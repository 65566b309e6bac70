"""The part without Spark: many seeds' queries at once against one node under chaos."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.chaos import controlled
from benchmarks.chaos.faults import NOTHING, WEIGHTS, Faults, weights_of
from benchmarks.chaos.kinds import CHAIN, HISTORY
from benchmarks.chaos.node import ChaosNode, NodeSetup, chaos_node
from benchmarks.chaos.outcome import Outcome
from benchmarks.chaos.query import Query

# Two of three seeds are of the first kind; each entry has a deployment of its own.
KINDS = (HISTORY, HISTORY, CHAIN)
AT_ONCE = 6
# A node serves this many seeds, then a fresh one takes over.
SEEDS_PER_NODE = 100
# With controllers that act: the weight of NOTHING per fault.
_CALM = 5


@dataclass(frozen=True)
class Until:
    """When a run ends before its last seed: after `deadline_s`, no seed is started once the number of seeds that ended and their faults
    satisfy `shown`, which takes longer on a busy machine. mismatch: at the first one, since a broken build needs to be caught only once."""

    deadline_s: float = float("inf")
    shown: Callable[[int, Counter[str]], bool] = lambda seeds, faults: True
    mismatch: bool = False


def run(
    seeds: Iterable[int],
    setup: NodeSetup,
    until: Until,
    *,
    weights: dict[str, float] | None = None,
    points: Sequence[str] = (),
    done: Callable[[int], None] = lambda seed: None,
) -> Outcome:
    """Run all seeds, in order but several at once, in turn on a node's deployments; `done` is called with each one that succeeded.

    weights: of faults; the default ones include moves if there are several slots. points: points of the runtime at which faults take
    place; all if none is given.
    """
    outcome, wanted = Outcome(), list(seeds)
    started = time.monotonic()
    drawn = weights_of(setup.slots, WEIGHTS) if weights is None else weights
    if setup.auto:
        drawn = drawn | {NOTHING: _CALM * sum(drawn.values())}

    def given_up() -> bool:
        return until.mismatch and bool(outcome.mismatched)

    def enough(faults: Callable[[], Counter[str]]) -> bool:
        return given_up() or (time.monotonic() - started > until.deadline_s and until.shown(outcome.seeds, faults()))

    while wanted and not enough(lambda: outcome.faults):
        part, wanted = wanted[:SEEDS_PER_NODE], wanted[SEEDS_PER_NODE:]
        with chaos_node(setup) as node:
            faults = Faults(node, drawn, points)

            def query_of(seed: int, on: ChaosNode = node, under: Faults = faults) -> Query | None:
                if enough(lambda: outcome.faults + under.counts + _acted(on)[0]):
                    return None
                return Query(on, list(on.deployed)[seed % len(on.deployed)], seed, under, given_up)

            def report(seed: int, query: Query, error: str, under: Faults = faults) -> str:
                did = ["what the query did (seconds since its start):", *query.trace]
                return "\n".join([f"seed {seed}: MISMATCH", error, *did, "what befell the node:", *_told(under)])

            try:
                outcome.play(part, AT_ONCE, query_of, report, done)
            finally:
                faults.close()
            acted, wrong = _acted(node)
            outcome.faults += faults.counts + acted
            outcome.reports |= {f"journal {n}": text for n, text in enumerate(wrong, len(outcome.reports))}
            outcome.add(faults.canaries, _told(faults))
            outcome.add_stops(faults.stops, _told(faults))
    return outcome


def _acted(node: ChaosNode) -> tuple[Counter[str], list[str]]:
    """The steps that the node's controllers took so far, and the faults of their journals."""
    return controlled.told(node.api, node.deployed) if node.setup.auto else (Counter[str](), [])


def _told(faults: Faults) -> list[str]:
    return [f"{at:7.3f} {who}: {what}: {', '.join(took) or 'did not take place'}" for at, who, what, took in faults.happened[-60:]]
