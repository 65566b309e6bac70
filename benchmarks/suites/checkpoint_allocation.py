"""The placement of checkpoints, and its benefit when load has to move: the airline-delay job on 20 simulated nodes.

As in the paper's section 7.2: 16 nodes for three operators that follow the stream, 4 for one that takes samples at a fixed rate; 16, 32
and 48 key groups per operator; 48 minutes, of which 15 collect statistics. Time is simulated, nothing is moved. `paired` adapts as in
the paper (its reference 18: the i-th most loaded node gives to the i-th least loaded one), `anywhere` as this project plans
moves: to any node that has room, preferably one with a checkpoint.
"""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from benchmarks.harness.bringup import say
from benchmarks.harness.tables import Section
from benchmarks.simulated import airline
from benchmarks.simulated import migration as sim
from elasticity.allocation.baselines import allocate_even
from elasticity.allocation.greedy import allocate
from elasticity.allocation.planning import pair, relieve
from elasticity.allocation.values import checkpoint_values

OPTIONS = [click.option("--data", type=click.Path(exists=True, dir_okay=False), help="Parquet file of flights (default: generated).")]
NODES, STATISTICS_STEPS = 20, 15 * 60 // airline.STEP_S
GROUPS = (16, 32, 48)
# A node is overloaded above 80 % of its capacity; at the week's peak (the 95th percentile of the run's last third) the cluster as a whole
# runs at 80 % of that: it has the usual reserve, so that overload comes from placement. `PEAKS` shows the effect of less reserve.
LIMIT, PEAK, PEAKS = 0.8, 0.8, (0.75, 0.8, 0.85, 0.9, 0.95)
# The mean load of the sampling operator's nodes is 20 %; the stream grows by half over the run.
SAMPLING_LOAD, GROWTH = 0.2, 1.5
CHECKPOINT_STEPS = 3  # 30 s
REALLOCATE_STEPS, TOLERANCE = 6, 0.05  # once a minute, φ′
# Operator 2 keeps every delay, operator 3 a record per plane, the others next to nothing.
DELAY_BYTES, PLANES, PLANE_BYTES, LITTLE_BYTES = 40, 5_000, 64, 1_000
DRAWS = 5  # random placements per input
PLANNERS = {"paired": pair, "anywhere": relieve}
POLICIES = ("optimised", "even", "random", "lazy_move", "optimised_reallocated")
SCALE = (1_000, 100_000)
OPTIMA, FAIRNESS = 20, (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class OfPolicy:
    """One policy's figures; amounts are per run."""

    assisted_percent: float
    usable_percent: float
    usable_ceiling_percent: float
    accumulated_latency_ms: float
    accumulated_latency_cpa_ms: float
    moves: float
    overloaded_node_s: float
    waited_s: float
    checkpoints_moved: float


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """The ratios of the optimised allocation to the others; absent where nothing moved."""

    assisted_vs_even: float | None = None
    assisted_vs_random: float | None = None
    usable_vs_even: float | None = None
    usable_vs_random: float | None = None
    usable_vs_even_at_best: float


@dataclass(frozen=True, kw_only=True)
class Table(Ratios):
    """By policy."""

    optimised: OfPolicy
    even: OfPolicy
    random: OfPolicy
    lazy_move: OfPolicy
    optimised_reallocated: OfPolicy


@dataclass(frozen=True, kw_only=True)
class OfPlanner(Table):
    """All inputs together, and by key groups per operator."""

    by_groups: dict[str, Table]


@dataclass(frozen=True)
class Gaps:
    """The gaps of the refined and of the greedy placement to an exact solution, in percent of its gain over random placement."""

    gap_to_optimum_percent: float
    gap_to_optimum_greedy_percent: float
    gap_to_optimum_greedy_mean_percent: float


@dataclass(frozen=True)
class AtScale:
    """Seconds from samples to a placement, without and with a limit on fairness."""

    seconds_at_scale: float
    seconds_at_scale_fair: float
    memory_at_scale_mb: float


@dataclass(frozen=True, kw_only=True)
class Figures(OfPlanner, Gaps, AtScale):
    """The figures of the planner `paired`, and those of `anywhere` beside them; `by_peak`: ratios by peak and planner."""

    data: str
    anywhere: OfPlanner
    by_peak: dict[str, dict[str, Ratios]]
    two_operators_vs_even: float


def setup(events: npt.NDArray[np.floating], groups: int, peak: float) -> sim.Setup:
    """Set the job up with this peak load, given as a share of the limit of 20 nodes."""
    flights = airline.FLIGHT_NODES
    loads = events.copy()
    stream, sampling = loads[: 3 * groups], loads[3 * groups :]
    sampling *= SAMPLING_LOAD * airline.SAMPLING_NODES / sampling.sum(axis=0).mean()
    stream *= (peak * LIMIT * NODES - SAMPLING_LOAD * airline.SAMPLING_NODES) / np.quantile(stream.sum(axis=0)[-airline.STEPS // 3 :], 0.95)
    at = np.arange(groups)
    owner = np.concatenate([at % flights] * 3 + [flights + at % airline.SAMPLING_NODES])
    state = np.full(events.shape, float(LITTLE_BYTES))
    state[groups : 2 * groups] = DELAY_BYTES * np.cumsum(events[groups : 2 * groups], axis=1)
    state[2 * groups : 3 * groups] = PLANES * PLANE_BYTES / groups
    return sim.Setup(
        loads, owner, NODES, LIMIT, STATISTICS_STEPS, STATISTICS_STEPS, pair, state, events * CHECKPOINT_STEPS / 2, CHECKPOINT_STEPS
    )


def outcome(s: sim.Setup, policy: str, seed: int) -> sim.Outcome:
    """Run a policy once; if it draws placements at random, return the sum of `DRAWS` runs."""
    if policy == "optimised_reallocated":
        s = replace(s, reallocate_steps=REALLOCATE_STEPS, tolerance=TOLERANCE)
    if policy.startswith("optimised"):
        return sim.run(s, sim.optimised, seed)
    allocation = sim.random if policy == "random" else sim.even
    runs = [sim.run(s, allocation, seed * DRAWS + i, lazy=policy == "lazy_move") for i in range(DRAWS)]
    return sum(runs[1:], runs[0])


def figures(o: sim.Outcome, runs: int) -> OfPolicy:
    """Return the figures of one policy."""
    return OfPolicy(
        assisted_percent=100 * o.assisted / max(1, o.moves),
        usable_percent=100 * o.usable / max(1, o.considered),
        usable_ceiling_percent=100 * o.could_move / max(1, o.considered),
        accumulated_latency_ms=o.latency_cpal_ms / runs,
        accumulated_latency_cpa_ms=o.latency_ms / runs,
        moves=o.moves / runs,
        overloaded_node_s=o.overloaded * airline.STEP_S / runs,
        waited_s=o.waited_steps * airline.STEP_S / max(1, o.moves),
        checkpoints_moved=o.checkpoints_moved / runs,
    )


def two_operators() -> float:
    """Section 7.2's simple job: the number of checkpoints at the place where load can go, as a multiple of even distribution's; at best 2.

    Node 1 runs operator 1, node 2 operator 2; nodes 0 and 2 have no room. Over 100 s all load passes from operator 1 to 2, so that only
    the checkpoints of operator 2 on node 1 count. Even distribution deals out each operator's checkpoints separately and puts half there.
    """
    falling = np.repeat(np.linspace(1, 0, 100)[None], 10, axis=0)
    samples, owner = np.vstack((falling, 1 - falling)), np.repeat([1, 2], 10)
    placement = allocate(checkpoint_values(samples, owner, 3), samples.mean(axis=1))
    evenly = allocate_even(owner[10:], 3, np.random.default_rng(1))
    return float((placement[10:] == 1).sum() / (evenly == 1).sum())


def gap_to_optimum(seed: int) -> Gaps:
    """Compare with an exact solution.

    40 key groups whose loads share four rhythms, on 8 nodes; mean and worst over `OPTIMA` jobs under three limits on fairness.
    """
    from tests.support.optimum import gaps_to_optimum  # the solver is a development dependency

    gaps = 100 * np.array([gaps_to_optimum(seed + i, fairness) for i in range(OPTIMA) for fairness in FAIRNESS])
    return Gaps(float(gaps[:, 1].max()), float(gaps[:, 0].max()), float(gaps[:, 0].mean()))


def at_scale(seed: int) -> AtScale:
    """Measure the placement of 100,000 checkpoints on 1,000 nodes."""
    nodes, checkpoints = SCALE
    rng = np.random.default_rng(seed)
    samples = (rng.random((checkpoints, 8), np.float32) @ rng.random((8, STATISTICS_STEPS), np.float32)) + 0.1
    samples += rng.random(samples.shape, np.float32)
    owner = np.arange(checkpoints) % nodes
    began = time.perf_counter()
    values, load = checkpoint_values(samples, owner, nodes), samples.mean(axis=1)
    valued = time.perf_counter()
    allocate(values, load)
    allocated = time.perf_counter()
    allocate(values, load, fairness=0.5)
    fair = time.perf_counter()
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return AtScale(allocated - began, fair - allocated + valued - began, memory_mb)


def run(*, quick: bool, driver: str = "process", seed: int = 1, data: str | None = None) -> Figures:
    """Run the suite. `quick`: one input per number of groups instead of three, and no sweep of the peak. `driver` makes no difference."""
    flights = airline.read(Path(data)) if data else airline.generate(seed)
    seeds = range(seed, seed + (1 if quick else 3))
    sums: dict[tuple[str, int, float, str], sim.Outcome] = {}
    for groups in GROUPS:
        for s in seeds:
            events = airline.events(flights, airline.rates(flights, GROWTH), groups, s)
            for peak in (PEAK,) if quick else PEAKS:
                job = setup(events, groups, peak)
                for planner, plan in PLANNERS.items():
                    for policy in POLICIES if peak == PEAK else ("optimised", "even"):
                        key = planner, groups, peak, policy
                        sums[key] = sums.get(key, sim.Outcome()) + outcome(replace(job, planner=plan), policy, s)
        say(f"{groups} key groups per operator")

    def total(planner: str, policy: str, peak: float = PEAK, of: tuple[int, ...] = GROUPS) -> OfPolicy:
        runs = len(of) * len(seeds) * (1 if policy.startswith("optimised") else DRAWS)
        return figures(sum((sums[planner, g, peak, policy] for g in of), sim.Outcome()), runs)

    def table(planner: str, of: tuple[int, ...] = GROUPS) -> Table:
        optimised, even, random, lazy_move, reallocated = (total(planner, policy, of=of) for policy in POLICIES)
        return Table(
            optimised=optimised,
            even=even,
            random=random,
            lazy_move=lazy_move,
            optimised_reallocated=reallocated,
            **vars(ratios(optimised, even, random)),
        )

    def of_planner(planner: str) -> OfPlanner:
        return OfPlanner(**vars(table(planner)), by_groups={str(g): table(planner, (g,)) for g in GROUPS})

    return Figures(
        data=Path(data).name if data else "generated",
        **vars(of_planner("paired")),
        anywhere=of_planner("anywhere"),
        by_peak={
            str(peak): {n: ratios(total(n, "optimised", peak), total(n, "even", peak)) for n in PLANNERS}
            for peak in ([] if quick else PEAKS)
        },
        two_operators_vs_even=two_operators(),
        **vars(gap_to_optimum(seed)),
        **vars(at_scale(seed)),
    )


def ratios(optimised: OfPolicy, even: OfPolicy, random: OfPolicy | None = None) -> Ratios:
    """The ratios of the optimised allocation to the others."""

    def assisted(other: OfPolicy | None) -> float | None:
        return optimised.assisted_percent / other.assisted_percent if other and other.assisted_percent else None

    def usable(other: OfPolicy | None) -> float | None:
        return optimised.usable_percent / other.usable_percent if other and other.usable_percent else None

    return Ratios(
        assisted_vs_even=assisted(even),
        assisted_vs_random=assisted(random),
        usable_vs_even=usable(even),
        usable_vs_random=usable(random),
        usable_vs_even_at_best=even.usable_ceiling_percent / even.usable_percent if even.usable_percent else math.nan,
    )


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    columns = {
        "assisted_percent": "assisted moves %",
        "usable_percent": "usable checkpoints %",
        "usable_ceiling_percent": "usable at best %",
        "accumulated_latency_ms": "latency, CPAL ms",
        "accumulated_latency_cpa_ms": "latency, CPA ms",
        "moves": "moves",
        "overloaded_node_s": "overloaded node-s",
        "waited_s": "waited s a move",
    }
    made = []
    for title, of in (("the i-th most loaded to the i-th least loaded", f), ("to any node with room", f.anywhere)):
        rows = [
            [policy.replace("_", " "), groups, *(f"{getattr(getattr(table, policy), c):.1f}" for c in columns)]
            for groups, table in (*of.by_groups.items(), ("all", of))
            for policy in POLICIES
        ]
        found = {x.name: getattr(of, x.name) for x in fields(Ratios)}
        ratio = ", ".join(f"{name.replace('_', ' ')} {x:.2f}" for name, x in found.items() if x is not None)
        made.append(Section(f"Checkpoint allocation; moves {title}", ["", "groups", *columns.values()], rows, ratio))
    names = ("assisted", "usable", "usable at best")
    # Below some peak no node is overloaded, and nothing moves.
    peaks = [
        [peak, *(_times(x) for r in by.values() for x in (r.assisted_vs_even, r.usable_vs_even, r.usable_vs_even_at_best))]
        for peak, by in f.by_peak.items()
    ]
    if peaks:
        header = ["peak", *(f"{n}: {x}" for n in PLANNERS for x in names)]
        made.append(Section("Times as much as even distribution, by peak load", header, peaks))
    rest = [
        ["two operators: usable checkpoints against even", f"{f.two_operators_vs_even:.2f}"],
        ["gap to the optimum, refined: worst %", f"{f.gap_to_optimum_percent:.2f}"],
        ["gap to the optimum, greedy: worst %", f"{f.gap_to_optimum_greedy_percent:.2f}"],
        ["gap to the optimum, greedy: mean %", f"{f.gap_to_optimum_greedy_mean_percent:.2f}"],
        ["1,000 nodes, 100,000 checkpoints s", f"{f.seconds_at_scale:.1f}"],
        ["the same, fair within 0.5 s", f"{f.seconds_at_scale_fair:.1f}"],
        ["memory MB", f"{f.memory_at_scale_mb:.0f}"],
    ]
    return [*made, Section("Checkpoint allocation as such", ["", "value"], rest)]


def _times(ratio: float | None) -> str:
    return "–" if ratio is None or math.isnan(ratio) else f"{ratio:.2f}"
