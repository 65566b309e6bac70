"""One operator in every language whose toolchain is here: through UDO, against Python through UDO and Python inside Spark, in one session.

Every contender gets the same DataFrame and writes to Spark's noop sink, in turn; before anything is timed each one's answer is compared
with plain Spark SQL, in a round of full size, which is dropped. The programs are the SDKs' conformance operators.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, lit, row_number, xxhash64
from pyspark.sql.functions import sum as total
from pyspark.sql.window import Window

from benchmarks.bringup import Platform, platform, say
from benchmarks.contenders.languages import inside
from benchmarks.operators.keep.keep import THRESHOLD
from benchmarks.rules import InvalidRun
from benchmarks.tables import Section
from benchmarks.throughput import ROWS_PER_BATCH, events
from udo_cli.conformance import suite
from udo_interface import udo
from udo_interface.java import QUIET, spark_session

RUNTIMES = Path(__file__).parent.parent / "runtimes"
_BUILD_S, _REPLY_S = 600, 30.0
Call = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Operation:
    """What is done: the role of the conformance operator, the same in Python, whether it is keyed; rows for a full and a quick run."""

    name: str
    what: str
    role: str
    python: str
    keyed: bool
    full_rows: int
    quick_rows: int


OPERATIONS = (
    Operation("forward", "forward, batches", "forward", "forward", False, 10_000_000, 2_000_000),
    Operation("filter", "filter, batches", "filter", "keep", False, 10_000_000, 2_000_000),
    Operation("per_event", "filter, event by event", "filter_each", "keep_each", False, 1_000_000, 200_000),
    Operation("keyed_count", "count per key, event by event", "tally", "count", True, 1_000_000, 200_000),
    Operation("keyed_count_batches", "count per key, batches", "tally_batches", "count", True, 1_000_000, 200_000),
)


@dataclass(frozen=True)
class Language:
    """Where its SDK lies, what its toolchain is called, how its conformance operator is built into a folder, and then started there."""

    folder: str
    toolchain: str
    build: tuple[str, ...]
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


# In `build`, {target} is the folder that is pushed.
LANGUAGES = {
    "go": Language(
        "go",
        "go",
        ("go", "build", "-trimpath", "-ldflags=-s -w", "-o", "{target}/bin/", "./internal/conformance"),
        ("bin/conformance",),
        (("CGO_ENABLED", "0"),),
    ),
}
_STATELESS = 'id = "int64"\ncard = "int64"\namount = "double"\nat = "int64"\n'
_KEYED = 'id = "int64"\ncard = "int64"\n'


def built(language: Language, target: Path) -> None:
    """Its conformance operator in `target`."""
    command = [part.format(target=target) for part in language.build]
    env = {**os.environ, **dict(language.env)}
    done = subprocess.run(command, cwd=RUNTIMES / language.folder, env=env, capture_output=True, text=True, timeout=_BUILD_S)
    if done.returncode:
        raise InvalidRun(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr[-2000:]}")


def deploy(p: Platform, name: str, language: Language, program: Path, operation: Operation) -> None:
    """The program in one of its roles, as an operator of its own."""
    columns = _KEYED if operation.keyed else _STATELESS
    command = ", ".join(f'"{part}"' for part in (*language.command, operation.role))
    text = f'name = "{name}"\nversion = "1"\nruntime = "exec"\ncommand = [{command}]\n' + ('key = "card"\n' if operation.keyed else "")
    answers = columns + ('n = "int64"\n' if operation.keyed else "")
    (program / "operator.toml").write_text(f"{text}\n[input]\n{columns}\n[output]\n{answers}", "utf-8")
    p.push(name, "1", program)
    p.deploy(name, name)


def called(name: str, keyed: bool, registry: str) -> Call:
    """`udo(name)(df)`."""
    return lambda df: (udo(name, key="card", registry=registry) if keyed else udo(name, registry=registry))(df)


def source(spark: SparkSession, operation: Operation, rows: int, seed: int) -> DataFrame:
    """What the operation gets."""
    df = events(spark, rows, seed)
    return df.select("id", "card") if operation.keyed else df


def digest(df: DataFrame, operation: Operation) -> tuple[Any, ...]:
    """Count and sum of row hashes; a count per key does not say which of the key's events it belongs to: their order is the shuffle's."""
    columns = ("card", "n") if operation.keyed else df.columns
    row = df.select(count("*"), total(xxhash64(*columns).cast("decimal(38,0)"))).first()
    return tuple(row or ())


def oracle(df: DataFrame, operation: Operation) -> DataFrame:
    """The same in plain Spark SQL."""
    if operation.keyed:
        return df.withColumn("n", row_number().over(Window.partitionBy("card").orderBy("id")).cast("long"))
    return df if operation.name == "forward" else df.where(col("amount") > lit(THRESHOLD))


def run(*, quick: bool, driver: str, seed: int) -> dict[str, Any]:
    """The suite. Ratios are to Python inside Spark, and to Python through UDO."""
    rounds = 2 if quick else 7
    with ExitStack() as stack:
        p = stack.enter_context(platform(driver))
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="udo-bench-languages-")))
        found = {name: language for name, language in LANGUAGES.items() if shutil.which(language.toolchain)}
        say(f"languages: {', '.join(found) or 'none'}; without toolchain: {', '.join(LANGUAGES.keys() - found.keys()) or 'none'}")
        for python in sorted({operation.python for operation in OPERATIONS}):
            p.push(python, "1")
            p.deploy(python, python)
        hops = {}
        for name, language in found.items():
            built(language, work / name)
            for operation in OPERATIONS:
                deploy(p, f"{name}_{operation.name}", language, work / name, operation)
            first, *rest = language.command
            start = [str(work / name / first) if "/" in first else first, *rest]
            hops[name] = suite.frames(start, _REPLY_S)["one event, batches"]
        spark = spark_session(
            "udo benchmarks",
            "local[2]",
            **QUIET,
            **{
                "spark.sql.execution.arrow.maxRecordsPerBatch": ROWS_PER_BATCH,
                "spark.sql.shuffle.partitions": 2,
                "spark.udo.node": p.node_socket,
            },
        )
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        rates = {operation.name: _measured(spark, p, operation, list(found), quick, rounds, seed) for operation in OPERATIONS}
    return {
        "languages": {name: _ratios(rates, name, "inside_spark") for name in [*found, "python"]},
        "to_python_through_udo": {name: _ratios(rates, name, "python") for name in found},
        "events_per_s": {operation: {name: round(r) for name, r in of.items()} for operation, of in rates.items()},
        "hop_p50_us": hops,
        "driver": driver,
        "rounds": rounds,
    }


def _ratios(rates: dict[str, dict[str, float]], name: str, base: str) -> dict[str, float]:
    return {operation: round(of[name] / of[base], 3) for operation, of in rates.items()}


def _measured(
    spark: SparkSession, p: Platform, operation: Operation, languages: list[str], quick: bool, rounds: int, seed: int
) -> dict[str, float]:
    """Median events per second of each contender, interleaved."""
    rows = operation.quick_rows if quick else operation.full_rows
    ways: dict[str, Call] = {"inside_spark": lambda df: inside(df, operation.name)}
    ways["python"] = called(operation.python, operation.keyed, p.registry_url)
    ways |= {name: called(f"{name}_{operation.name}", operation.keyed, p.registry_url) for name in languages}
    say(f"{operation.what}: comparing answers")
    wanted = digest(oracle(source(spark, operation, rows, seed), operation), operation)
    for name, call in ways.items():
        if (got := digest(call(source(spark, operation, rows, seed)), operation)) != wanted:
            raise InvalidRun(f"{name} ({operation.what}) answers with count and hash {got}, expected {wanted}")
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        say(f"{operation.what}: round {turn + 1} of {rounds}")
        for name, call in ways.items():
            df = call(source(spark, operation, rows, seed))
            started = time.perf_counter()
            df.write.format("noop").mode("overwrite").save()
            taken[name].append(rows / (time.perf_counter() - started))
    return {name: statistics.median(r) for name, r in taken.items()}


def sections(record: dict[str, Any]) -> list[Section]:
    """For people."""
    names = list(record["languages"])
    rows = [[o.what, *(f"{record['languages'][n][o.name]:.2f}" for n in names)] for o in OPERATIONS]
    through = list(record["to_python_through_udo"])
    other = [[o.what, *(f"{record['to_python_through_udo'][n][o.name]:.2f}" for n in through)] for o in OPERATIONS]
    hops = [[name, f"{us:,.0f}"] for name, us in record["hop_p50_us"].items()]
    return [
        Section("Through UDO, × Python inside Spark", ["operation", *names], rows, "Python inside Spark keeps no log and no state."),
        Section("× Python through UDO", ["operation", *through], other),
        Section("A frame of one event, engine to operator's process and back, µs", ["language", "p50"], hops),
    ]
