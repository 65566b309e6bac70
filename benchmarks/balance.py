"""Balancing keys between engines (paper 2): each policy against static key grouping and against the bound for whole keys.

Runs on real engines (benchmarks/engines.py), or with --simulated on a model of them (benchmarks/simulated/engines.py): the model covers the
paper's 40 minutes, the policies that split keys, which no deployment does, and the first stories that each policy detects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from benchmarks import engines, record
from benchmarks.bringup import platform, say
from benchmarks.rules import InvalidRun
from benchmarks.simulated import stories
from benchmarks.simulated.engines import Outcome, Phase, Setup, zipf_phases
from benchmarks.simulated.engines import run as simulate
from benchmarks.tables import Section, count
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


def run(quick: bool, driver: str, seed: int, simulated: bool, tweets: str | None, own: Sequence[str]) -> dict[str, Any]:
    """Return the record's figures: `policies` at ε = 1.5, `policies_1.2`; simulated, also `policies_own_order` on the tweets' keys."""
    contenders = CONTENDERS | {name: Contender(name) for name in own}
    if not simulated:
        chosen = {name: contenders[name] for name in (*(QUICK_LIVE if quick else LIVE), *own)}
        return _live(chosen, driver, seed, quick)
    setup = Setup(events_divisor=QUICK_DIVISOR if quick else FULL_DIVISOR)
    texts = (
        stories.from_parquet(tweets, QUICK_TWEETS if quick else None)
        if tweets
        else stories.generated(QUICK_TWEETS if quick else FULL_TWEETS, seed)
    )
    vectors = [stories.vector(t) for t in texts]
    keys = stories.lsh_keys(vectors)
    detected = _detected(contenders, vectors, keys.tolist(), seed)
    figures: dict[str, Any] = {"simulated": True, "tweets": {"rows": len(texts), "source": "file" if tweets else "generated"}}
    streams = {f"_{skew}": zipf_phases(setup, skew, EVEN, ENGINES + 1, MINUTES, seed) for skew in SKEWS}
    streams["_own_order"] = [Phase(keys, sum(MINUTES) * 60, True)]
    for name, phases in streams.items():
        made = _stream(setup, phases, contenders, seed)
        figures["policies" if name == f"_{SKEWS[0]}" else f"policies{name}"] = {p: made[p] | detected[p] for p in contenders}
    by_policy = {name: _decision_ms(name, seed) for name in ("DLB-H", "DLB-L")}
    return {**figures, "decision_ms_at_scale": max(by_policy.values()), "decision_ms_by_policy": by_policy}


def _live(contenders: dict[str, Contender], driver: str, seed: int, quick: bool) -> dict[str, Any]:
    """Run the contenders in turn, round by round, on the same stream; each figure is the median of its rounds."""
    figures: dict[str, Any] = {"simulated": False}
    with platform(driver) as p:
        p.push(engines.OPERATOR, "1")
        for skew in SKEWS:
            rounds, timelines = [], {}
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
                timelines = timelines or {name: o.timeline for name, o in played.items()}
                rounds.append({name: _live_figures(o, played["KG"], contenders[name].engines) for name, o in played.items()})
            median = {name: {k: float(np.median([r[name][k] for r in rounds])) for k in rounds[0][name]} for name in contenders}
            figures["policies" if skew == SKEWS[0] else f"policies_{skew}"] = median
            figures.setdefault("timeline", timelines)
    return figures


def _live_figures(o: engines.Outcome, kg: engines.Outcome, count_of: int) -> dict[str, float]:
    ratio = o.rate(True) / kg.rate(True)
    bound = _bound(kg.engine_load, kg.key_load, count_of)
    return {
        "events_per_s_skewed": round(o.rate(True)),
        "throughput_vs_kg": round(
            sum(o.events.values()) / sum(o.seconds.values()) / (sum(kg.events.values()) / sum(kg.seconds.values())), 3
        ),
        "throughput_vs_kg_skewed": round(ratio, 3),
        "throughput_vs_bound": round(ratio / bound, 3),
        "bound": round(bound, 3),
        "rebalances": len(o.moved),
        "events_moved": o.events_moved,
        "imbalance_mean": round(float(np.mean(o.imbalance[True] + o.imbalance[False])), 1),
        "imbalance_mean_skewed": round(float(np.mean(o.imbalance[True])), 1),
        "keys_moved_percent": round(100 * float(np.mean(o.moved)) / engines.KEYS, 2) if o.moved else 0.0,
        "keys_moved_percent_max": round(100 * max(o.moved) / engines.KEYS, 2) if o.moved else 0.0,
        "rebalance_ms": round(1000 * float(np.median(o.moves_s)), 1) if o.moves_s else 0.0,
    }


def _limits(c: Contender, keys: int) -> BalanceLimits:
    return BalanceLimits(slack=None, max_moves=keys) if c.literal else BalanceLimits(max_moves=int(MOST_MOVED * keys))


def _bound(engine_load: np.ndarray, key_load: np.ndarray, count_of: int) -> float:
    """The greatest throughput (× KG) of any policy that keeps keys whole, on the stream as it was sent: limited by the hottest key, or by
    an equal share."""
    total = key_load.sum()
    return float(engine_load.max() / total / max(key_load.max() / total, 1 / count_of))


def _stream(setup: Setup, phases: Sequence[Phase], contenders: dict[str, Contender], seed: int) -> dict[str, dict[str, Any]]:
    outcomes = {}
    for name, c in contenders.items():
        found = policies.find(c.kind, c.policy)
        assign, route = (found, None) if c.kind == "balance" else (None, found(c.engines, seed).route)
        limits = _limits(c, setup.keys)
        outcomes[name] = simulate(replace(setup, retrieve_s=0) if c.live else setup, phases, c.engines, assign, route, limits)
    kg = outcomes["KG"]
    possible = {n: _bound(kg.skewed_per_engine, kg.skewed_per_key, n) for n in (ENGINES, ENGINES + 1)}
    return {name: _figures(o, kg, possible[contenders[name].engines], setup.keys) for name, o in outcomes.items()}


def _figures(o: Outcome, kg: Outcome, possible: float, keys: int) -> dict[str, Any]:
    ratio = o.skewed_events / kg.skewed_events
    return {
        "events": o.events,
        "throughput_vs_kg": round(o.events / kg.events, 3),
        "throughput_vs_kg_skewed": round(ratio, 3),
        "throughput_vs_bound": round(ratio / possible, 3),
        "bound": round(possible, 3),
        "rebalances": len(o.moved),
        "events_moved": o.events_moved,
        "imbalance_mean": round(float(np.mean(o.imbalance)), 1),
        "imbalance_mean_skewed": round(float(np.mean(o.imbalance_skewed)), 1),
        "keys_moved_percent": round(100 * float(np.mean(o.moved)) / keys, 2) if o.moved else 0.0,
        "keys_moved_percent_max": round(100 * max(o.moved) / keys, 2) if o.moved else 0.0,
    }


def _detected(contenders: dict[str, Contender], tweets: list[stories.Vector], keys: list[int], seed: int) -> dict[str, dict[str, int]]:
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
        figures[name] = {
            "events_detected": len(got),
            "events_expected": len(expected),
            "events_false": len(got - expected),
            "events_missed": len(expected - got),
        }
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


def together(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the newest run on real engines, with the newest simulated one as its `model`. Full runs come before quick ones."""
    return record.beside_its_model(records)


def sections(made: dict[str, Any]) -> list[Section]:
    """One table per stream; for a simulated run also one for the stories."""
    if not made["simulated"]:
        return _live_sections(made) + (sections(made["model"]) if "model" in made else [])
    titles = {
        "policies": "Zipf 0.2 / 1.5 alternating",
        "policies_1.2": "Zipf 0.2 / 1.2 alternating",
        "policies_own_order": f"Tweets in their own order ({made['tweets']['source']})",
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
    for key, title in titles.items():
        rows = [
            (
                name,
                f"{p['throughput_vs_kg_skewed']:.3f}",
                f"{p['throughput_vs_bound']:.3f}",
                f"{p['throughput_vs_kg']:.3f}",
                f"{p['imbalance_mean']:.1f}",
                f"{p['imbalance_mean_skewed']:.1f}",
                str(p["rebalances"]),
                f"{p['keys_moved_percent']:.1f} ({p['keys_moved_percent_max']:.1f})",
                count(p["events_moved"]),
            )
            for name, p in made[key].items()
        ]
        found.append(Section(f"Simulated: {title}", header, rows))
    rows = [(n, str(p["events_detected"]), str(p["events_false"]), str(p["events_missed"])) for n, p in made["policies"].items()]
    remark = f"One process detects {next(iter(made['policies'].values()))['events_expected']} in {made['tweets']['rows']} tweets. "
    remark += f"A decision over 1 M keys and 1,000 engines takes {made['decision_ms_at_scale']:g} ms of processor time."
    return [*found, Section("First stories detected", ("policy", "reported", "false", "missed"), rows, remark)]


def _live_sections(made: dict[str, Any]) -> list[Section]:
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
    for skew in SKEWS:
        rows = [
            (
                name,
                count(p["events_per_s_skewed"]),
                f"{p['throughput_vs_kg_skewed']:.3f}",
                f"{p['throughput_vs_bound']:.3f}",
                f"{p['throughput_vs_kg']:.3f}",
                f"{p['imbalance_mean']:.1f}",
                f"{p['imbalance_mean_skewed']:.1f}",
                f"{p['rebalances']:g}",
                f"{p['keys_moved_percent']:.1f} ({p['keys_moved_percent_max']:.1f})",
                f"{p['rebalance_ms']:,.0f}",
            )
            for name, p in made["policies" if skew == SKEWS[0] else f"policies_{skew}"].items()
        ]
        remark = "ms: from the decision of a rebalance until its keys are in their new slots; the stream goes on meanwhile."
        found.append(Section(f"Real engines: Zipf {EVEN} / {skew} alternating", header, rows, remark))
    return found
