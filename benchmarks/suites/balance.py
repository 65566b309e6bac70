"""Balancing keys between engines (paper 2): each policy against static key grouping and against the bound for whole keys.

Runs on real engines (benchmarks/loads/engines.py), or with --simulated on a model of them (benchmarks/simulated/engines.py): the model
covers the paper's 40 minutes, the policies that split keys, which no deployment does, and the first stories that each policy detects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import numpy as np
from pydantic import Field

from benchmarks.harness import record
from benchmarks.harness.bringup import platform, say
from benchmarks.harness.quantiles import medians
from benchmarks.harness.record import Record
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section, count
from benchmarks.loads import engines
from benchmarks.simulated import stories
from benchmarks.simulated.engines import Outcome, Phase, Setup, zipf_phases
from benchmarks.simulated.engines import run as simulate
from elasticity import policies
from elasticity.balance.grouping import start
from elasticity.balance.view import BalanceLimits, LoadView

ENGINES = 5


@dataclass(frozen=True)
class Contender:
    """A policy on `engines` engines.

    literal: θ alone decides, as in the paper, and nothing bounds a rebalance. live: moved keys need no retrieval, as if their
    state were at the target already.
    """

    policy: str
    kind: str = "balance"
    engines: int = ENGINES
    literal: bool = False
    live: bool = False


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """One policy on one stream, beside static key grouping and beside the limit for whole keys (`bound`, × key grouping)."""

    throughput_vs_kg: float
    throughput_vs_kg_skewed: float
    throughput_vs_bound: float
    bound: float
    events_moved: float
    imbalance_mean: float
    imbalance_mean_skewed: float
    keys_moved_percent: float
    keys_moved_percent_max: float


@dataclass(frozen=True, kw_only=True)
class OnEngines(Balanced):
    """On real engines; medians of the rounds."""

    events_per_s_skewed: float
    rebalances: float
    rebalance_ms: float


@dataclass(frozen=True, kw_only=True)
class Modelled(Balanced):
    """On a model of engines."""

    events: int
    rebalances: int


@dataclass(frozen=True, kw_only=True)
class Detected:
    """The first stories that a policy detects in the tweets."""

    events_detected: int
    events_expected: int
    events_false: int
    events_missed: int


@dataclass(frozen=True, kw_only=True)
class Simulated(Modelled, Detected):
    """All simulated figures of a policy."""


@dataclass(frozen=True)
class Tweets:
    """The number of tweets, and whether they come from a file or were generated."""

    rows: int
    source: str


@dataclass(frozen=True, kw_only=True)
class SimulatedFigures:
    """By policy, at the exponents 1.5 and 1.2 and on the tweets' keys in their own order; processor time of decisions."""

    simulated: Literal[True]
    tweets: Tweets
    policies: dict[str, Simulated]
    policies_12: Annotated[dict[str, Simulated], Field(alias="policies_1.2")]
    policies_own_order: dict[str, Simulated]
    decision_ms_at_scale: float
    decision_ms_by_policy: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class LiveFigures:
    """By policy, at the exponents 1.5 and 1.2. timeline: the first round's epochs, by policy. model: the simulated run."""

    simulated: Literal[False]
    policies: dict[str, OnEngines]
    timeline: dict[str, list[list[float]]]
    policies_12: Annotated[dict[str, OnEngines], Field(alias="policies_1.2")]
    model: SimulatedFigures | None = None


Figures = LiveFigures | SimulatedFigures
CONTENDERS = {
    "KG": Contender("KG"),
    "KG6": Contender("KG", engines=ENGINES + 1),
    "PKG": Contender("PKG", "routing"),
    "D-Choices": Contender("D-Choices", "routing"),
    "W-Choices": Contender("W-Choices", "routing"),
    "LPTF": Contender("LPTF", literal=True),
    "DLB-L paper": Contender("DLB-L", literal=True),
    "DLB-H paper": Contender("DLB-H", literal=True),
    "DLB-L": Contender("DLB-L"),
    "DLB-H": Contender("DLB-H"),
    "DLB-S": Contender("DLB-S"),
    "DLB-H live": Contender("DLB-H", live=True),
    "DLB-H6": Contender("DLB-H", engines=ENGINES + 1),
}
# A bound of this project, not of the paper: a rebalance moves at most this share of the keys, and the next one continues.
MOST_MOVED = 0.05
MINUTES = (5, 10, 5, 10, 5, 5)  # of even and of skewed keys in turn: 40 in all, as in the paper
EVEN, SKEWS = 0.2, (1.5, 1.2)
# On real engines: the seconds of even and of skewed keys in turn, and the events drawn for each second.
SECONDS, QUICK_SECONDS, DRAWN_PER_S = (6, 14, 6, 14), (2, 6), 20_000
ROUNDS, QUICK_ROUNDS = 3, 1
LIVE = ("KG", "KG6", "LPTF", "DLB-L", "DLB-H", "DLB-S")
QUICK_LIVE = ("KG", "DLB-H")
QUICK_DIVISOR, FULL_DIVISOR = 4, 1
QUICK_TWEETS, FULL_TWEETS = 12_000, 100_000
REVIEW_TWEETS = 1_000
SCALE_KEYS, SCALE_ENGINES, SCALE_ROUNDS = 1_000_000, 1_000, 7

OPTIONS = [
    click.option("--simulated", is_flag=True, help="On a simulated clock, the paper's 40 minutes; the figures are labelled so."),
    click.option("--tweets", type=click.Path(exists=True, dir_okay=False), help="Simulated: Parquet with a column `text`; else generated."),
    click.option("--policy", "own", multiple=True, metavar="MODULE:FUNCTION", help="A policy of your own as one more contender."),
]


def run(quick: bool, driver: str, seed: int, simulated: bool, tweets: str | None, own: Sequence[str]) -> Figures:
    """Run the contenders."""
    contenders = CONTENDERS | {name: Contender(name) for name in own}
    if not simulated:
        chosen = {name: contenders[name] for name in (*(QUICK_LIVE if quick else LIVE), *own)}
        return _live(chosen, driver, seed, quick)
    setup = Setup(events_divisor=QUICK_DIVISOR if quick else FULL_DIVISOR)
    texts = (
        stories.from_parquet(Path(tweets), QUICK_TWEETS if quick else None)
        if tweets
        else stories.generated(QUICK_TWEETS if quick else FULL_TWEETS, seed)
    )
    vectors = [stories.vector(t) for t in texts]
    keys = stories.lsh_keys(vectors)
    detected = _detected(contenders, vectors, keys.tolist(), seed)
    streams = [zipf_phases(setup, skew, EVEN, ENGINES + 1, MINUTES, seed) for skew in SKEWS]
    made = [_stream(setup, phases, contenders, seed) for phases in (*streams, [Phase(keys, sum(MINUTES) * 60, True)])]
    found = [{name: Simulated(**vars(of), **vars(detected[name])) for name, of in stream.items()} for stream in made]
    by_policy = {name: _decision_ms(name, seed) for name in ("DLB-H", "DLB-L")}
    return SimulatedFigures(
        simulated=True,
        tweets=Tweets(len(texts), "file" if tweets else "generated"),
        policies=found[0],
        policies_12=found[1],
        policies_own_order=found[2],
        decision_ms_at_scale=max(by_policy.values()),
        decision_ms_by_policy=by_policy,
    )


def _live(contenders: dict[str, Contender], driver: str, seed: int, quick: bool) -> LiveFigures:
    """Run the contenders in turn, round by round, on the same stream; each figure is the median of its rounds."""
    found, timelines = list[dict[str, OnEngines]](), list[dict[str, list[list[float]]]]()
    with platform(driver) as p:
        p.push(engines.OPERATOR, "1")
        for skew in SKEWS:
            rounds: list[dict[str, OnEngines]] = []
            for number in range(QUICK_ROUNDS if quick else ROUNDS):
                stream = engines.phases(skew, EVEN, QUICK_SECONDS if quick else SECONDS, DRAWN_PER_S, seed + number)
                played = {}
                for name, c in contenders.items():
                    limits = _limits(c, engines.KEYS)
                    policy = None if c.policy == "KG" else policies.find("balance", c.policy)
                    played[name] = engines.play(
                        p, f"round{number}-{name.lower()}-{skew:g}".replace(".", "-"), stream, c.engines, policy, limits
                    )
                    say(f"ε = {skew:g}, round {number + 1}: {name} {played[name].rate(True):,.0f} events/s in the skewed parts")
                timelines.append({name: o.timeline for name, o in played.items()})
                rounds.append({name: _live_figures(o, played["KG"], contenders[name].engines) for name, o in played.items()})
            found.append({name: medians([r[name] for r in rounds], 4) for name in contenders})
    return LiveFigures(simulated=False, policies=found[0], timeline=timelines[0], policies_12=found[1])


def _live_figures(o: engines.Outcome, kg: engines.Outcome, count_of: int) -> OnEngines:
    ratio = o.rate(True) / kg.rate(True)
    bound = _bound(kg.engine_load, kg.key_load, count_of)
    all_events_per_s, kg_per_s = (sum(x.events.values()) / sum(x.seconds.values()) for x in (o, kg))
    return OnEngines(
        events_per_s_skewed=round(o.rate(True)),
        throughput_vs_kg=round(all_events_per_s / kg_per_s, 3),
        throughput_vs_kg_skewed=round(ratio, 3),
        throughput_vs_bound=round(ratio / bound, 3),
        bound=round(bound, 3),
        rebalances=len(o.moved),
        events_moved=o.events_moved,
        imbalance_mean=round(float(np.mean(o.imbalance[True] + o.imbalance[False])), 1),
        imbalance_mean_skewed=round(float(np.mean(o.imbalance[True])), 1),
        keys_moved_percent=round(100 * float(np.mean(o.moved)) / engines.KEYS, 2) if o.moved else 0.0,
        keys_moved_percent_max=round(100 * max(o.moved) / engines.KEYS, 2) if o.moved else 0.0,
        rebalance_ms=round(1000 * float(np.median(o.moves_s)), 1) if o.moves_s else 0.0,
    )


def _limits(c: Contender, keys: int) -> BalanceLimits:
    return BalanceLimits(slack=None, max_moves=keys) if c.literal else BalanceLimits(max_moves=int(MOST_MOVED * keys))


def _bound(engine_load: np.ndarray, key_load: np.ndarray, count_of: int) -> float:
    """The greatest throughput (× KG) of any policy that keeps keys whole, on the stream as it was sent: limited by the hottest key, or by
    an equal share."""
    total = key_load.sum()
    return float(engine_load.max() / total / max(key_load.max() / total, 1 / count_of))


def _stream(setup: Setup, phases: Sequence[Phase], contenders: dict[str, Contender], seed: int) -> dict[str, Modelled]:
    outcomes = {}
    for name, c in contenders.items():
        found = policies.find(c.kind, c.policy)
        assign, route = (found, None) if c.kind == "balance" else (None, found(c.engines, seed).route)
        limits = _limits(c, setup.keys)
        outcomes[name] = simulate(replace(setup, retrieve_s=0) if c.live else setup, phases, c.engines, assign, route, limits)
    kg = outcomes["KG"]
    possible = {n: _bound(kg.skewed_per_engine, kg.skewed_per_key, n) for n in (ENGINES, ENGINES + 1)}
    return {name: _figures(o, kg, possible[contenders[name].engines], setup.keys) for name, o in outcomes.items()}


def _figures(o: Outcome, kg: Outcome, possible: float, keys: int) -> Modelled:
    ratio = o.skewed_events / kg.skewed_events
    return Modelled(
        events=o.events,
        throughput_vs_kg=round(o.events / kg.events, 3),
        throughput_vs_kg_skewed=round(ratio, 3),
        throughput_vs_bound=round(ratio / possible, 3),
        bound=round(possible, 3),
        rebalances=len(o.moved),
        events_moved=o.events_moved,
        imbalance_mean=round(float(np.mean(o.imbalance)), 1),
        imbalance_mean_skewed=round(float(np.mean(o.imbalance_skewed)), 1),
        keys_moved_percent=round(100 * float(np.mean(o.moved)) / keys, 2) if o.moved else 0.0,
        keys_moved_percent_max=round(100 * max(o.moved) / keys, 2) if o.moved else 0.0,
    )


def _detected(contenders: dict[str, Contender], tweets: list[stories.Vector], keys: list[int], seed: int) -> dict[str, Detected]:
    expected = stories.first_stories(tweets, keys)
    figures = {}
    for name, c in contenders.items():
        found = policies.find(c.kind, c.policy)
        if c.kind == "balance":
            reviewed = _Reviewed(found, c.engines)
            got = stories.detect(tweets, keys, c.engines, reviewed.choose, reviewed.review, REVIEW_TWEETS)
            if got != expected:
                raise InvalidRun(f"{name} reports {len(got)} stories, {len(got - expected)} of them false; one process {len(expected)}")
        else:
            got = stories.detect(tweets, keys, c.engines, found(c.engines, seed).route, None, REVIEW_TWEETS)
        figures[name] = Detected(
            events_detected=len(got),
            events_expected=len(expected),
            events_false=len(got - expected),
            events_missed=len(expected - got),
        )
    return figures


class _Reviewed:
    """An assignment of keys that the policy reviews at intervals (REVIEW_TWEETS)."""

    def __init__(self, policy: Callable[..., Any], engines: int) -> None:
        self._policy, self._engines, self._map = policy, engines, start(2**stories.BITS, engines)

    def choose(self, key: int) -> int:
        return int(self._map[key])

    def review(self, keys: Sequence[int]) -> list[tuple[int, int, int]]:
        load = np.bincount(keys, minlength=len(self._map))
        decision = self._policy(LoadView(self._map, load, self._engines), BalanceLimits())
        moved = [(int(k), int(self._map[k]), int(decision.keys_map[k])) for k in decision.keys]
        self._map = decision.keys_map
        return moved


def _decision_ms(name: str, seed: int) -> float:
    """The median processor time of a decision over a million keys on a thousand engines, a tenth of which carry double load."""
    rng, policy = np.random.default_rng(seed), policies.find("balance", name)
    keys_map, took = start(SCALE_KEYS, SCALE_ENGINES), []
    for _ in range(SCALE_ROUNDS):
        load = rng.lognormal(0, 1, SCALE_KEYS) * np.where(rng.random(SCALE_ENGINES) < 0.1, 2, 1)[keys_map]
        begun = time.thread_time()
        policy(LoadView(keys_map, load, SCALE_ENGINES), BalanceLimits())
        took.append(1000 * (time.thread_time() - begun))
    return round(float(np.median(took[1:])), 1)


def together(records: list[Record]) -> Record | None:
    """Return the newest run on real engines, with the newest simulated one as its `model`. Full runs come before quick ones."""
    return record.beside_its_model(records)


def sections(f: Figures) -> list[Section]:
    """One table per stream; for a simulated run also one for the stories."""
    if isinstance(f, LiveFigures):
        return _live_sections(f) + (sections(f.model) if f.model else [])
    streams = {
        "Zipf 0.2 / 1.5 alternating": f.policies,
        "Zipf 0.2 / 1.2 alternating": f.policies_12,
        f"Tweets in their own order ({f.tweets.source})": f.policies_own_order,
    }
    header = (
        "policy",
        "× KG, skewed",
        "of the bound",
        "× KG, all",
        "imbalance %",
        "skewed",
        "rebalances",
        "keys moved % (most)",
        "events moved",
    )
    found = []
    for title, stream in streams.items():
        rows = [
            (
                name,
                f"{p.throughput_vs_kg_skewed:.3f}",
                f"{p.throughput_vs_bound:.3f}",
                f"{p.throughput_vs_kg:.3f}",
                f"{p.imbalance_mean:.1f}",
                f"{p.imbalance_mean_skewed:.1f}",
                str(p.rebalances),
                f"{p.keys_moved_percent:.1f} ({p.keys_moved_percent_max:.1f})",
                count(p.events_moved),
            )
            for name, p in stream.items()
        ]
        found.append(Section(f"Simulated: {title}", header, rows))
    detected = [(n, str(p.events_detected), str(p.events_false), str(p.events_missed)) for n, p in f.policies.items()]
    remark = f"One process detects {next(iter(f.policies.values())).events_expected} in {f.tweets.rows} tweets. "
    remark += f"A decision over 1 M keys and 1,000 engines takes {f.decision_ms_at_scale:g} ms of processor time."
    return [*found, Section("First stories detected", ("policy", "reported", "false", "missed"), detected, remark)]


def _live_sections(f: LiveFigures) -> list[Section]:
    header = (
        "policy",
        "events/s, skewed",
        "× KG, skewed",
        "of the bound",
        "× KG, all",
        "imbalance %",
        "skewed",
        "rebalances",
        "keys moved %",
        "ms",
    )
    found = []
    for skew, policies_of in zip(SKEWS, (f.policies, f.policies_12), strict=True):
        rows = [
            (
                name,
                count(p.events_per_s_skewed),
                f"{p.throughput_vs_kg_skewed:.3f}",
                f"{p.throughput_vs_bound:.3f}",
                f"{p.throughput_vs_kg:.3f}",
                f"{p.imbalance_mean:.1f}",
                f"{p.imbalance_mean_skewed:.1f}",
                f"{p.rebalances:g}",
                f"{p.keys_moved_percent:.1f} ({p.keys_moved_percent_max:.1f})",
                f"{p.rebalance_ms:,.0f}",
            )
            for name, p in policies_of.items()
        ]
        remark = "ms: from the decision of a rebalance until its keys are in their new slots; the stream goes on meanwhile."
        found.append(Section(f"Real engines: Zipf {EVEN} / {skew} alternating", header, rows, remark))
    return found
