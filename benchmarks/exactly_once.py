"""Seeded chaos over keyed operators: answers and final state against one plain process.

The first part plays Spark itself, with many queries at once on a node under fire; the second runs streaming queries of one
Spark application. A run can be cut into pieces: `--from` goes on where a former one stopped, `--for-s` bounds it.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click

from benchmarks.bringup import say
from benchmarks.chaos.inside import LACKS
from benchmarks.rules import InvalidRun
from benchmarks.tables import Section

SEEDS, SPARK_SEEDS = 400, 100
# As many as run at once: a quick run lasts as long as the slowest seed of each part.
QUICK_SEEDS, QUICK_SPARK_SEEDS = 6, 1
# A broken build that has come through so many seeds is not going to be caught.
BROKEN_SEEDS = 200

OPTIONS = [
    click.option(
        "--seeds", type=click.IntRange(0), help=f"Seeds of the part without Spark (default: {SEEDS}, with --quick {QUICK_SEEDS})."
    ),
    click.option(
        "--spark-seeds", type=click.IntRange(0), help=f"Seeds on Spark (default: {SPARK_SEEDS}, with --quick {QUICK_SPARK_SEEDS})."
    ),
    click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="First seed of both parts."),
    click.option("--for-s", type=float, default=None, help="Start no seed after this many seconds; says where to go on."),
    click.option("--broken", type=click.Choice(sorted(LACKS)), help="Lack this rule: the run must catch it (status 0 says that it did)."),
]


def run(
    *,
    quick: bool,
    driver: str,
    seed: int,
    seeds: int | None = None,
    spark_seeds: int | None = None,
    first: int = 0,
    for_s: float | None = None,
    broken: str | None = None,
) -> dict[str, Any]:
    """Both parts; with `broken` only the first one, until it is caught. InvalidRun with every trace if anything differs."""
    from benchmarks.chaos import lanes

    started, for_s = time.monotonic(), float("inf") if for_s is None else for_s
    if broken:
        return _catch(broken, first, seeds or BROKEN_SEEDS, for_s)
    wanted = range(first, first + (seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS))
    say(f"{len(wanted)} seeds without Spark")
    outcome = lanes.run(wanted, deadline_s=for_s, done=_progress(wanted))
    on_spark = range(first, first + (spark_seeds if spark_seeds is not None else QUICK_SPARK_SEEDS if quick else SPARK_SEEDS))
    spark = lanes.Outcome()
    if on_spark and time.monotonic() - started < for_s:
        from benchmarks.chaos import on_spark as part

        say(f"{len(on_spark)} seeds on Spark")
        spark = part.run(on_spark, deadline_s=for_s - (time.monotonic() - started), done=_progress(on_spark))
    for report in (*outcome.reports.values(), *spark.reports.values()):
        say(f"\n{report}\n")
    if mismatches := [*outcome.reports, *(f"spark {s}" for s in spark.reports)]:
        raise InvalidRun(f"{len(mismatches)} of {outcome.seeds + spark.seeds} seeds differ from the oracle: {mismatches}")
    for name, part_of, of in (("--seeds", outcome, wanted), ("--spark-seeds", spark, on_spark)):
        if part_of.seeds < len(of):
            say(f"{name}: {part_of.seeds} of {len(of)} seeds; go on with --from {of[0] + part_of.seeds}")
    return {
        "seeds": outcome.seeds + spark.seeds,
        "runs": outcome.runs + spark.runs,
        "faults": dict(sorted((outcome.faults + spark.faults).items())),
        "mismatches": 0,
        "without_spark": {"seeds": outcome.seeds, "runs": outcome.runs, "faults": dict(sorted(outcome.faults.items()))},
        "on_spark": {"seeds": spark.seeds, "runs": spark.runs, "faults": dict(sorted(spark.faults.items()))},
        "slowest_s": round(max(outcome.slowest_s, spark.slowest_s), 1),
    }


def _catch(broken: str, first: int, seeds: int, for_s: float) -> dict[str, Any]:
    from benchmarks.chaos import lanes

    outcome = lanes.run(range(first, first + seeds), broken=broken, until_mismatch=True, deadline_s=for_s)
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


def _progress(seeds: range) -> Any:
    done: set[int] = set()

    def one(seed: int) -> None:
        done.add(seed)
        if len(done) % 20 == 0:
            say(f"{len(done)} of {len(seeds)} seeds")

    return one


def together(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest run, also one that was cut into pieces, of one commit, as one record; no seed counts twice."""
    parts = {name: {"seeds": 0, "runs": 0, "faults": Counter[str]()} for name in ("without_spark", "on_spark")}
    counted: dict[str, set[int]] = {name: set() for name in parts}
    newest, slowest = None, 0.0
    for made in reversed(records):
        if made["arguments"].get("quick") or made.get("broken"):
            continue
        newest = newest or made
        if made["commit"] != newest["commit"]:
            break
        for name, part in parts.items():
            first, slice_of = made["arguments"].get("first", 0), made[name]
            seeds = set(range(first, first + slice_of["seeds"]))
            if not seeds or seeds & counted[name]:
                continue
            counted[name] |= seeds
            part["seeds"] += slice_of["seeds"]
            part["runs"] += slice_of["runs"]
            part["faults"].update(slice_of["faults"])
            slowest = max(slowest, made["slowest_s"])
    if newest is None:
        return None
    faults = sum((part["faults"] for part in parts.values()), Counter[str]())
    return {**newest, **parts, "faults": dict(sorted(faults.items())), "slowest_s": slowest}


def sections(made: dict[str, Any]) -> list[Section]:
    """Seeds and faults."""
    head = ("", "seeds", "driver starts", "mismatches")
    if made.get("broken"):
        row = (f"without {made['broken']}", str(made["seeds"]), str(made["runs"]), str(made["mismatches"]))
        return [Section("A broken build is caught", head, [row])]
    rows = [
        (name, str(part["seeds"]), str(part["runs"]), "0")
        for name, part in (("without Spark", made["without_spark"]), ("on Spark", made["on_spark"]))
    ]
    parts = (made["without_spark"]["faults"], made["on_spark"]["faults"])
    faults = [(kind, *(str(part.get(kind, 0) or "") for part in parts)) for kind in made["faults"]]
    return [
        Section("Queries under fire, against one plain process", head, rows, f"The slowest seed took {made['slowest_s']} s."),
        Section("Faults", ("kind", "without Spark", "on Spark"), faults),
    ]
