"""Seeded chaos over keyed operators: answers and final state are compared with those of one plain process.

The first part plays Spark itself, with many queries at once on a node under faults; the second runs streaming queries of one
Spark application; the third plays Spark over two nodes with a store. A run can be split: `--for-s` bounds it, and `--from`
continues where an earlier one stopped.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.chaos.inside import LACKS, OF_MOVES
from benchmarks.harness import record
from benchmarks.harness.bringup import fresh, say
from benchmarks.harness.record import Record
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from udo_protocol.errors import UsageError

if TYPE_CHECKING:
    from benchmarks.chaos.outcome import Outcome

SEEDS, SPARK_SEEDS, TWO_NODES_SEEDS = 400, 100, 200
# No more seeds than run at once, so that a quick run lasts as long as the slowest seed of each part.
QUICK_SEEDS, QUICK_SPARK_SEEDS, QUICK_TWO_NODES_SEEDS = 6, 1, 3
# A broken build that passes this many seeds will not be caught.
BROKEN_SEEDS = 200
# The parts of a record, and their names in tables; the options that say how many seeds they have.
PARTS = {"without_spark": "without Spark", "on_spark": "on Spark", "two_nodes": "over two nodes"}
_OPTION = {"without_spark": "--seeds", "on_spark": "--spark-seeds", "two_nodes": "--two-nodes-seeds"}
# The runtimes of versions (benchmarks/chaos/runtimes.py): all in their engines' processes, or some in their own, or in another language.
PYTHON, PROCESS, *_ = RUNTIMES = ("python", "process", "rust", "java")
# The weight of killing an operator's own process among the faults: the same as of killing an instance at a point.
KILL_OPERATOR = 8.0
# The weight of stops of up to 90 s among the faults: some dozens in a long run. Quick runs have no time for them.
STOPS = 0.3

OPTIONS = [
    click.option(
        "--seeds", type=click.IntRange(0), help=f"Seeds of the part without Spark (default: {SEEDS}, with --quick {QUICK_SEEDS})."
    ),
    click.option(
        "--spark-seeds", type=click.IntRange(0), help=f"Seeds on Spark (default: {SPARK_SEEDS}, with --quick {QUICK_SPARK_SEEDS})."
    ),
    click.option(
        "--two-nodes-seeds",
        type=click.IntRange(0),
        help=f"Seeds over two nodes, which takes root (default: {TWO_NODES_SEEDS}, with --quick {QUICK_TWO_NODES_SEEDS}).",
    ),
    click.option("--from", "first", type=click.IntRange(0), default=fresh, show_default="fresh", help="First seed of each part."),
    click.option("--for-s", type=float, default=None, help="Start no seed after this many seconds; says where to go on."),
    click.option(
        "--stops", type=click.FloatRange(0), help=f"Weight of stops (SIGSTOP for 5 to 90 s) among the faults (default: {STOPS}, quick: 0)."
    ),
    click.option(
        "--runtime",
        type=click.Choice(RUNTIMES),
        default=PYTHON,
        show_default=True,
        help="What some versions run in, so that updates lead from one to another: their own process, Rust, or Java. Without Spark only.",
    ),
    click.option(
        "--slots",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Slots of each deployment, but over two nodes. With several, key groups move and the number of slots changes.",
    ),
    click.option(
        "--auto",
        is_flag=True,
        help="Also let the controllers move key groups and change the number of slots, at thresholds so low that they act all the time; "
        "takes --slots 2 or more, without Spark only.",
    ),
    click.option("--broken", type=click.Choice(sorted(LACKS)), help="Lack this rule: the run must catch it (status 0 says that it did)."),
]


@dataclass(frozen=True)
class Wish:
    """OPTIONS as given."""

    seeds: int | None = None
    spark_seeds: int | None = None
    two_nodes_seeds: int | None = None
    first: int = 0
    for_s: float | None = None
    stops: float | None = None
    runtime: str = PYTHON
    slots: int = 1
    auto: bool = False
    broken: str | None = None

    def wanted(self, quick: bool) -> dict[str, range]:
        """Return the seeds of each part; with `auto` or a `runtime` other than Python only the first one has any."""
        alone = self.auto or self.runtime != PYTHON
        given = (self.seeds, 0 if alone else self.spark_seeds, 0 if alone else self.two_nodes_seeds)
        usual = (QUICK_SEEDS, QUICK_SPARK_SEEDS, QUICK_TWO_NODES_SEEDS) if quick else (SEEDS, SPARK_SEEDS, TWO_NODES_SEEDS)
        counts = (most if count is None else count for count, most in zip(given, usual, strict=True))
        return {part: range(self.first, self.first + count) for part, count in zip(PARTS, counts, strict=True)}


@dataclass(frozen=True)
class Part:
    """Seeds that ended, starts of their drivers, and how often each fault took place."""

    seeds: int
    runs: int
    faults: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Compared(Part):
    """All parts together, and each one. `slowest_s`: of a seed; `slowest_back_s`: from the end of a stop until all was well."""

    mismatches: int
    without_spark: Part
    on_spark: Part
    two_nodes: Part | None = None
    slowest_s: float
    slowest_back_s: float | None = None


@dataclass(frozen=True)
class Caught(Part):
    """A build without the rule `broken`, and the seeds that caught it."""

    mismatches: int
    broken: str
    caught_by: list[int | str]


Figures = Compared | Caught


def run(*, quick: bool, driver: str, seed: int, **own: Any) -> Figures:
    """Run all parts, as `Wish(**own)` says; with `broken` only the first one, until a mismatch.

    InvalidRun with every trace if anything differs.
    """
    from benchmarks.chaos.outcome import Outcome
    from benchmarks.chaos.stops import STOPPED

    wish, started = Wish(**own), time.monotonic()
    say(f"the same seeds once more: --from {wish.first}")
    if wish.broken:
        return _catch(wish, wish.broken)
    if wish.auto and wish.slots < 2:
        raise UsageError("--auto: expected --slots 2 or more, since what is refused with several slots would be tried")
    stopped = {STOPPED: wish.stops if wish.stops is not None else 0.0 if quick else STOPS}
    wanted, found = wish.wanted(quick), dict[str, Outcome]()
    for (name, seeds), play in zip(wanted.items(), (_without_spark, _on_spark, _over_two_nodes), strict=True):
        left_s = _for_s(wish) - (time.monotonic() - started)
        found[name] = Outcome()
        if seeds and left_s > 0:
            say(f"{len(seeds)} seeds {PARTS[name]}")
            found[name] = play(seeds, wish, stopped, left_s)
    for report in (report for outcome in found.values() for report in outcome.reports.values()):
        say(f"\n{report}\n")
    all_seeds = sum(outcome.seeds for outcome in found.values())
    short = {"on_spark": "spark", "two_nodes": "two nodes"}
    if mismatches := [f"{short[name]} {s}" if name in short else s for name, outcome in found.items() for s in outcome.reports]:
        raise InvalidRun(f"{len(mismatches)} of {all_seeds} seeds differ from the oracle: {mismatches}")
    for name, seeds in wanted.items():
        if found[name].seeds < len(seeds):
            say(f"{_OPTION[name]}: {found[name].seeds} of {len(seeds)} seeds; go on with --from {seeds[0] + found[name].seeds}")
    return Compared(
        seeds=all_seeds,
        runs=sum(outcome.runs for outcome in found.values()),
        faults=_summed(outcome.faults for outcome in found.values()),
        mismatches=0,
        **{name: Part(outcome.seeds, outcome.runs, _summed([outcome.faults])) for name, outcome in found.items()},
        slowest_s=round(max(outcome.slowest_s for outcome in found.values()), 1),
        slowest_back_s=round(max(outcome.slowest_back_s for outcome in found.values()), 1),
    )


def _without_spark(seeds: range, wish: Wish, stopped: dict[str, float], left_s: float) -> Outcome:
    from benchmarks.chaos import faults, lanes, runtimes
    from benchmarks.chaos.node import NodeSetup

    weights = faults.weights_of(wish.slots, faults.WEIGHTS) | stopped
    if wish.runtime != PYTHON:
        weights |= {faults.KILL_OPERATOR: KILL_OPERATOR}
    with tempfile.TemporaryDirectory(prefix="udo-chaos-") as work:
        setup = NodeSetup(runtimes.kinds(wish.runtime, Path(work)), wish.slots, wish.auto)
        return lanes.run(seeds, setup, lanes.Until(left_s), weights=weights, done=_progress(seeds))


def _on_spark(seeds: range, wish: Wish, stopped: dict[str, float], left_s: float) -> Outcome:
    from benchmarks.chaos import on_spark

    return on_spark.run(seeds, weights=on_spark.WEIGHTS | stopped, deadline_s=left_s, done=_progress(seeds), slots=wish.slots)


def _over_two_nodes(seeds: range, wish: Wish, stopped: dict[str, float], left_s: float) -> Outcome:
    from benchmarks.chaos import two_nodes

    return two_nodes.run(seeds, deadline_s=left_s, done=_progress(seeds))


def _catch(wish: Wish, broken: str) -> Caught:
    from benchmarks.chaos import lanes
    from benchmarks.chaos.node import NodeSetup

    setup = NodeSetup(lanes.KINDS, max(wish.slots, 2) if broken in OF_MOVES else wish.slots, broken=broken)
    seeds = range(wish.first, wish.first + (wish.seeds or BROKEN_SEEDS))
    outcome = lanes.run(seeds, setup, lanes.Until(_for_s(wish), mismatch=True))
    for seed in sorted(outcome.reports, key=lambda seed: seed not in outcome.mismatched)[:1]:
        say(f"\n{outcome.reports[seed]}\n")
    if not outcome.mismatched:  # another error is no proof: a correct build may meet it as well
        raise InvalidRun(
            f"a build without the rule {broken!r} differed in none of {outcome.seeds} seeds ({len(outcome.reports)} ended with another "
            "error): the chaos proves nothing about it"
        )
    caught_by: list[int | str] = [*sorted(outcome.mismatched)]
    return Caught(outcome.seeds, outcome.runs, _summed([outcome.faults]), len(caught_by), broken, caught_by)


def _for_s(wish: Wish) -> float:
    return float("inf") if wish.for_s is None else wish.for_s


def _summed(faults: Iterable[dict[str, int]]) -> dict[str, int]:
    return dict(sorted(sum(map(Counter, faults), Counter[str]()).items()))


def _progress(seeds: range) -> Callable[[int], None]:
    done: set[int] = set()

    def one(seed: int) -> None:
        done.add(seed)
        if len(done) % 20 == 0:
            say(f"{len(done)} of {len(seeds)} seeds")

    return one


def together(records: list[Record]) -> Record | None:
    """Join the runs of the newest one's commit into one record, since a run may be split; no seed counts twice."""
    slices: dict[str, list[Part]] = {name: [] for name in PARTS}
    counted: dict[str, set[int]] = {name: set() for name in PARTS}
    newest, slowest, back = None, 0.0, 0.0
    for made in reversed(records):
        given = made["arguments"]
        if given.get("quick") or made.get("broken") or given.get("runtime", PYTHON) != PYTHON or given.get("slots", 1) > 1:
            continue
        newest = newest or made
        if made["commit"] != newest["commit"]:
            break
        found = record.decode(Compared, made)
        for name, part in _parts(found).items():
            seeds = set(range(given.get("first", 0), given.get("first", 0) + part.seeds))
            if not seeds or seeds & counted[name]:
                continue
            counted[name] |= seeds
            slices[name].append(part)
            slowest, back = max(slowest, found.slowest_s), max(back, found.slowest_back_s or 0.0)
    if newest is None:
        return None
    parts = {n: Part(sum(p.seeds for p in of), sum(p.runs for p in of), _summed(p.faults for p in of)) for n, of in slices.items()}
    faults = _summed(part.faults for part in parts.values())
    joined = {name: record.encode(part) for name, part in parts.items()}
    return {**newest, **joined, "faults": faults, "slowest_s": slowest, "slowest_back_s": back}


def _parts(figures: Compared) -> dict[str, Part]:
    found = {"without_spark": figures.without_spark, "on_spark": figures.on_spark, "two_nodes": figures.two_nodes}
    return {name: part for name, part in found.items() if part is not None}


def sections(figures: Figures) -> list[Section]:
    """The tables of seeds and of faults."""
    head = ("", "seeds", "driver starts", "mismatches")
    if isinstance(figures, Caught):
        row = (f"without {figures.broken}", str(figures.seeds), str(figures.runs), str(figures.mismatches))
        return [Section("A broken build is caught", head, [row])]
    parts = {PARTS[name]: part for name, part in _parts(figures).items() if part.seeds}
    rows = [(told, str(part.seeds), str(part.runs), "0") for told, part in parts.items()]
    faults = [(kind, *(str(part.faults.get(kind, 0) or "") for part in parts.values())) for kind in figures.faults]
    text = f"The slowest seed took {figures.slowest_s} s."
    if figures.slowest_back_s:
        text += f" After a stop all was well again within {figures.slowest_back_s} s."
    return [
        Section("Queries under fire, against one plain process", head, rows, text),
        Section("Faults", ("kind", *parts), faults),
    ]
