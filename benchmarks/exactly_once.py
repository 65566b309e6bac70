"""Seeded chaos over keyed operators: answers and final state are compared with those of one plain process.

The first part plays Spark itself, with many queries at once on a node under faults; the second runs streaming queries of one
Spark application; the third plays Spark over two nodes with a store. A run can be split: `--for-s` bounds it, and `--from` goes
on where a former one stopped.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.bringup import fresh, say
from benchmarks.chaos.inside import LACKS, OF_MOVES
from benchmarks.rules import InvalidRun
from benchmarks.tables import Section
from udo_protocol.errors import UsageError

if TYPE_CHECKING:
    from benchmarks.chaos import lanes

SEEDS, SPARK_SEEDS, TWO_NODES_SEEDS = 400, 100, 200
# No more than run at once, so that a quick run lasts as long as the slowest seed of each part.
QUICK_SEEDS, QUICK_SPARK_SEEDS, QUICK_TWO_NODES_SEEDS = 6, 1, 3
# A broken build that passes this many seeds will not be caught.
BROKEN_SEEDS = 200
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


def run(
    *,
    quick: bool,
    driver: str,
    seed: int,
    seeds: int | None = None,
    spark_seeds: int | None = None,
    two_nodes_seeds: int | None = None,
    first: int = 0,
    for_s: float | None = None,
    stops: float | None = None,
    runtime: str = PYTHON,
    slots: int = 1,
    auto: bool = False,
    broken: str | None = None,
) -> dict[str, Any]:
    """Run all parts; with `auto` or a `runtime` other than Python only the first one; with `broken` only that one, until a mismatch.

    InvalidRun with every trace if anything differs.
    """
    from benchmarks.chaos import faults, lanes, runtimes
    from benchmarks.chaos.stops import STOPPED

    started, for_s = time.monotonic(), float("inf") if for_s is None else for_s
    stopped = {STOPPED: stops if stops is not None else 0.0 if quick else STOPS}
    say(f"the same seeds once more: --from {first}")
    if broken:
        return _catch(broken, first, seeds or BROKEN_SEEDS, for_s, max(slots, 2) if broken in OF_MOVES else slots)
    wanted = range(first, first + (seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS))
    say(f"{len(wanted)} seeds without Spark")
    weights = faults.weights_of(slots, faults.WEIGHTS) | stopped
    if runtime != PYTHON:
        weights |= {faults.KILL_OPERATOR: KILL_OPERATOR}
        spark_seeds = two_nodes_seeds = 0
    if auto:
        if slots < 2:
            raise UsageError("--auto: expected --slots 2 or more, since what is refused with several slots would be tried")
        spark_seeds = two_nodes_seeds = 0
    with tempfile.TemporaryDirectory(prefix="udo-chaos-") as work:
        kinds = runtimes.kinds(runtime, Path(work))
        outcome = lanes.run(wanted, kinds=kinds, weights=weights, deadline_s=for_s, done=_progress(wanted), slots=slots, auto=auto)
    on_spark = range(first, first + (spark_seeds if spark_seeds is not None else QUICK_SPARK_SEEDS if quick else SPARK_SEEDS))
    spark = lanes.Outcome()
    if on_spark and time.monotonic() - started < for_s:
        from benchmarks.chaos import on_spark as part

        say(f"{len(on_spark)} seeds on Spark")
        left_s = for_s - (time.monotonic() - started)
        spark = part.run(on_spark, weights=part.WEIGHTS | stopped, deadline_s=left_s, done=_progress(on_spark), slots=slots)
    over_two = range(
        first, first + (two_nodes_seeds if two_nodes_seeds is not None else QUICK_TWO_NODES_SEEDS if quick else TWO_NODES_SEEDS)
    )
    two_nodes = lanes.Outcome()
    if over_two and time.monotonic() - started < for_s:
        from benchmarks.chaos import two_nodes as over

        say(f"{len(over_two)} seeds over two nodes")
        two_nodes = over.run(over_two, deadline_s=for_s - (time.monotonic() - started), done=_progress(over_two))
    for report in (*outcome.reports.values(), *spark.reports.values(), *two_nodes.reports.values()):
        say(f"\n{report}\n")
    all_seeds = outcome.seeds + spark.seeds + two_nodes.seeds
    if mismatches := [*outcome.reports, *(f"spark {s}" for s in spark.reports), *(f"two nodes {s}" for s in two_nodes.reports)]:
        raise InvalidRun(f"{len(mismatches)} of {all_seeds} seeds differ from the oracle: {mismatches}")
    for name, part_of, of in (
        ("--seeds", outcome, wanted),
        ("--spark-seeds", spark, on_spark),
        ("--two-nodes-seeds", two_nodes, over_two),
    ):
        if part_of.seeds < len(of):
            say(f"{name}: {part_of.seeds} of {len(of)} seeds; go on with --from {of[0] + part_of.seeds}")
    return {
        "seeds": all_seeds,
        "runs": outcome.runs + spark.runs + two_nodes.runs,
        "faults": dict(sorted((outcome.faults + spark.faults + two_nodes.faults).items())),
        "mismatches": 0,
        "without_spark": _part(outcome),
        "on_spark": _part(spark),
        "two_nodes": _part(two_nodes),
        "slowest_s": round(max(outcome.slowest_s, spark.slowest_s, two_nodes.slowest_s), 1),
        "slowest_back_s": round(max(outcome.slowest_back_s, spark.slowest_back_s), 1),
    }


def _catch(broken: str, first: int, seeds: int, for_s: float, slots: int) -> dict[str, Any]:
    from benchmarks.chaos import lanes

    outcome = lanes.run(range(first, first + seeds), broken=broken, until_mismatch=True, deadline_s=for_s, slots=slots)
    if not outcome.reports:
        raise InvalidRun(f"a build without the rule {broken!r} came through {outcome.seeds} seeds: the chaos proves nothing about it")
    for report in list(outcome.reports.values())[:1]:
        say(f"\n{report}\n")
    return {
        "seeds": outcome.seeds,
        "runs": outcome.runs,
        "faults": dict(sorted(outcome.faults.items())),
        "mismatches": len(outcome.reports),
        "broken": broken,
        "caught_by": sorted(outcome.reports, key=str),
    }


def _part(outcome: lanes.Outcome) -> dict[str, Any]:
    return {"seeds": outcome.seeds, "runs": outcome.runs, "faults": dict(sorted(outcome.faults.items()))}


def _progress(seeds: range) -> Any:
    done: set[int] = set()

    def one(seed: int) -> None:
        done.add(seed)
        if len(done) % 20 == 0:
            say(f"{len(done)} of {len(seeds)} seeds")

    return one


_NOTHING: dict[str, Any] = {"seeds": 0, "runs": 0, "faults": {}}
# The parts of a record, and their names in tables.
PARTS = {"without_spark": "without Spark", "on_spark": "on Spark", "two_nodes": "over two nodes"}


def together(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Join the runs of the newest one's commit into one record, since a run may be split; no seed counts twice."""
    parts = {name: {"seeds": 0, "runs": 0, "faults": Counter[str]()} for name in PARTS}
    counted: dict[str, set[int]] = {name: set() for name in parts}
    newest, slowest, back = None, 0.0, 0.0
    for made in reversed(records):
        given = made["arguments"]
        if given.get("quick") or made.get("broken") or given.get("runtime", PYTHON) != PYTHON or given.get("slots", 1) > 1:
            continue
        newest = newest or made
        if made["commit"] != newest["commit"]:
            break
        for name, part in parts.items():
            first, slice_of = made["arguments"].get("first", 0), made.get(name, _NOTHING)
            seeds = set(range(first, first + slice_of["seeds"]))
            if not seeds or seeds & counted[name]:
                continue
            counted[name] |= seeds
            part["seeds"] += slice_of["seeds"]
            part["runs"] += slice_of["runs"]
            part["faults"].update(slice_of["faults"])
            slowest, back = max(slowest, made["slowest_s"]), max(back, made.get("slowest_back_s", 0.0))
    if newest is None:
        return None
    faults = sum((part["faults"] for part in parts.values()), Counter[str]())
    return {**newest, **parts, "faults": dict(sorted(faults.items())), "slowest_s": slowest, "slowest_back_s": back}


def sections(made: dict[str, Any]) -> list[Section]:
    """The tables of seeds and of faults."""
    head = ("", "seeds", "driver starts", "mismatches")
    if made.get("broken"):
        row = (f"without {made['broken']}", str(made["seeds"]), str(made["runs"]), str(made["mismatches"]))
        return [Section("A broken build is caught", head, [row])]
    parts = {told: part for name, told in PARTS.items() if (part := made.get(name, _NOTHING))["seeds"]}
    rows = [(told, str(part["seeds"]), str(part["runs"]), "0") for told, part in parts.items()]
    faults = [(kind, *(str(part["faults"].get(kind, 0) or "") for part in parts.values())) for kind in made["faults"]]
    text = f"The slowest seed took {made['slowest_s']} s."
    if back_s := made.get("slowest_back_s"):
        text += f" After a stop all was well again within {back_s} s."
    return [
        Section("Queries under fire, against one plain process", head, rows, text),
        Section("Faults", ("kind", *parts), faults),
    ]
