"""One operator in every language whose toolchain is installed, through UDO, against Python through UDO and inside Spark, in one session.

Every contender gets the same DataFrame and writes to Spark's noop sink, in turn. Before anything is timed, each one's answer is compared
with plain Spark SQL, in a round of full size, which is dropped. The programs are the SDKs' conformance operators. Also measured: the cost
of a single frame, and the time of an update to another version in the same language, with and without a rehearsal.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, lit, row_number, xxhash64
from pyspark.sql.functions import sum as total
from pyspark.sql.window import Window
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.sdk.api import Context

from benchmarks.contenders.languages import inside
from benchmarks.harness.bringup import Platform, platform, say, spark_of
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from benchmarks.loads import hops
from benchmarks.operators.keep.keep import THRESHOLD
from benchmarks.suites.throughput import ROWS_PER_BATCH, events
from benchmarks.suites.update import VERSIONS, one, settle
from udo_cli.conformance import suite
from udo_cli.conformance.player import starting
from udo_cli.conformance.schemas import EVENTS, N
from udo_interface import connect, udo

RUNTIMES = Path(__file__).parents[2] / "runtimes"
_BUILD_S, _REPLY_S = 600, 30.0
# The number of processes of each kind, of which the median is reported.
_STARTS, _QUICK_STARTS = 3, 1
_UPDATES, _QUICK_UPDATES = 9, 1
# The number of instances that a node keeps warm: one, and an engine for operators in a process of their own.
_WARM = 2
# The event that versions rehearse before they serve, and that is sent to them.
_SAMPLE = {"id": 1, "card": 2, "amount": 3.0, "at": 4}
Call = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Operation:
    """An operation: in words, the conformance operator's role, the Python operator, whether it is keyed; rows of a full and a quick run."""

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
    Operation("forward_per_event", "forward, event by event", "each", "forward_each", False, 1_000_000, 200_000),
    Operation("per_event", "filter, event by event", "filter_each", "keep_each", False, 1_000_000, 200_000),
    Operation("keyed_count", "count per key, event by event", "tally", "count", True, 1_000_000, 200_000),
    Operation("keyed_count_batches", "count per key, batches", "tally_batches", "count_frames", True, 1_000_000, 200_000),
)


@dataclass(frozen=True)
class Updated:
    """Median ms from the request of an update until the new version is ready, and until it has answered."""

    ready: float
    p50: float


@dataclass(frozen=True)
class FirstFrame:
    """Median ms of a process's first frame of 10,000 events, without and with a rehearsal."""

    cold: float
    rehearsed: float


@dataclass(frozen=True)
class Figures:
    """By language, ratios also by operation: to Python inside Spark, and to Python through UDO."""

    languages: dict[str, dict[str, float]]
    to_python_through_udo: dict[str, dict[str, float]]
    events_per_s: dict[str, dict[str, int]]
    hop_p50_us: dict[str, float]
    filter_cpu_us: dict[str, dict[str, float]]
    frame_p50_us: dict[str, dict[str, float]]
    update_request_to_answer_ms: dict[str, float]
    update_ready_ms: dict[str, float]
    update_without_rehearsal_ms: dict[str, float]
    first_frame_ms: dict[str, FirstFrame]
    driver: str
    rounds: int


@dataclass(frozen=True)
class Language:
    """A language: the folder of its SDK, its toolchain's command, and the commands that build and start its conformance operator."""

    folder: str
    toolchain: str
    build: tuple[str, ...]
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()

    def starting(self, target: Path) -> list[str]:
        """Return the command that starts the operator built in `target` from any folder."""
        return [str(target / word) if "/" in word else word for word in self.command]


# In `build`, {target} is the folder that is pushed.
LANGUAGES = {
    "go": Language(
        "go",
        "go",
        ("go", "build", "-trimpath", "-ldflags=-s -w", "-o", "{target}/bin/", "./internal/conformance"),
        ("bin/conformance",),
        (("CGO_ENABLED", "0"),),
    ),
    "rust": Language(
        "rust",
        "cargo",
        (
            "sh",
            "-c",
            "cargo build --release --locked --bin conformance --target-dir {target}/target"
            " && install -D {target}/target/release/conformance {target}/bin/conformance",
        ),
        ("bin/conformance",),
    ),
    "cpp": Language(
        "cpp",
        "cmake",
        (
            "sh",
            "-c",
            f"cmake -B {{target}}/build -D Python3_EXECUTABLE={sys.executable} && cmake --build {{target}}/build"
            " && cmake --install {target}/build --prefix {target}",
        ),
        ("bin/conformance",),
    ),
    # The sources are copied below `build`, which is not packed.
    "java": Language(
        "java",
        "mvn",
        (
            "sh",
            "-c",
            "cp -rL . {target}/build && cd {target}/build"
            " && (mvn -B -ntp -q -o -DskipTests package || mvn -B -ntp -q -DskipTests package)"
            " && install -D {target}/build/samples/target/samples.jar {target}/bin/samples.jar",
        ),
        ("java", "-Xmx512m", "-XX:+UseSerialGC", "-jar", "bin/samples.jar", "conformance"),
    ),
    "node": Language(
        "node",
        "npm",
        (
            "sh",
            "-c",
            "cp -r . {target}/build && cd {target}/build/samples && npm ci --prefer-offline --no-audit && cp -rL . {target}/bin",
        ),
        ("node", "--max-old-space-size=512", "bin/conformance.js"),
    ),
}
# The operations whose deployments are updated: the versions of one rehearse, those of the other do not. Both answer each event.
REHEARSED, UNREHEARSED = "forward", "forward_per_event"
# Updates of UNREHEARSED in Python, for comparison; first in a process of its own, after which the node keeps a warm engine.
_PYTHON = {"python, own process": "process", "python": "shared"}
_STATELESS = 'id = "int64"\ncard = "int64"\namount = "double"\nat = "int64"\n'
_KEYED = 'id = "int64"\ncard = "int64"\n'


def at_hand() -> dict[str, Language]:
    """Return the languages whose toolchain is installed, and print them."""
    found = {name: language for name, language in LANGUAGES.items() if shutil.which(language.toolchain)}
    say(f"languages: {', '.join(found) or 'none'}; without toolchain: {', '.join(LANGUAGES.keys() - found.keys()) or 'none'}")
    return found


def built(language: Language, target: Path) -> None:
    """Build a language's conformance operator in the folder `target`, which is made if there is none."""
    target.mkdir(parents=True, exist_ok=True)
    command = [part.format(target=target) for part in language.build]
    env = {**os.environ, **dict(language.env)}
    done = subprocess.run(command, cwd=RUNTIMES / language.folder, env=env, capture_output=True, text=True, timeout=_BUILD_S)
    if done.returncode:
        raise InvalidRun(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr[-2000:]}")


def deploy(p: Platform, name: str, language: Language, program: Path, operation: Operation) -> None:
    """Push and deploy the program in one of its roles as an operator of its own; in both VERSIONS where it is to be updated."""
    columns = _KEYED if operation.keyed else _STATELESS
    command = ", ".join(f'"{part}"' for part in (*language.command, operation.role))
    more = 'key = "card"\n' if operation.keyed else 'rehearse = "events.json"\n' if operation.name == REHEARSED else ""
    text = f'name = "{name}"\nversion = "1"\nruntime = "exec"\ncommand = [{command}]\n{more}'
    (program / "events.json").write_text(json.dumps([_SAMPLE]), "utf-8")
    answers = columns + ('n = "int64"\n' if operation.keyed else "")
    (program / "operator.toml").write_text(f"{text}\n[input]\n{columns}\n[output]\n{answers}", "utf-8")
    for version in VERSIONS if operation.name in (REHEARSED, UNREHEARSED) else VERSIONS[:1]:
        p.push(name, version, program)
    p.deploy(name, name)


def updates(p: Platform, name: str, count: int) -> Updated:
    """Update back and forth.

    The event is sent once the update is done, so that the answer cannot be the old version's.
    """
    ready, answered, served = [], [], set[int]()
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    with connect(name, node=p.node_socket) as client:
        client.add_listener(answers.put)
        for turn in range(count):
            settle(p, served, _WARM)
            made = one(p, VERSIONS[(turn + 1) % 2], name)
            client.send(_SAMPLE)
            answers.get(timeout=_REPLY_S)
            answered.append((time.perf_counter() - made.asked) * 1000)
            ready.append((made.ready - made.asked) * 1000)
    return Updated(round(statistics.median(ready), 1), round(statistics.median(answered), 1))


def called(name: str, keyed: bool, registry: str) -> Call:
    """Return a function that calls `udo(name)(df)`."""
    return lambda df: (udo(name, key="card", registry=registry) if keyed else udo(name, registry=registry))(df)


def source(spark: SparkSession, operation: Operation, rows: int, seed: int) -> DataFrame:
    """The operation's input."""
    df = events(spark, rows, seed)
    return df.select("id", "card") if operation.keyed else df


def digest(df: DataFrame, operation: Operation) -> tuple[Any, ...]:
    """Count and sum of row hashes. For keyed answers only card and count: the order of a key's events is the shuffle's."""
    columns = ("card", "n") if operation.keyed else df.columns
    row = df.select(count("*"), total(xxhash64(*columns).cast("decimal(38,0)"))).first()
    return tuple(row or ())


def oracle(df: DataFrame, operation: Operation) -> DataFrame:
    """The operation in plain Spark SQL."""
    if operation.keyed:
        return df.withColumn("n", row_number().over(Window.partitionBy("card").orderBy("id")).cast("long"))
    return df if operation.name.startswith("forward") else df.where(col("amount") > lit(THRESHOLD))


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the suite."""
    rounds = 1 if quick else 7
    with ExitStack() as stack:
        p = stack.enter_context(platform(driver))
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="udo-bench-languages-")))
        found = at_hand()
        for python in sorted({operation.python for operation in OPERATIONS}):
            p.push(python, "1")
            p.deploy(python, python)
        by_kind, processor, first, rehearsed, unrehearsed = {}, {}, {}, {}, {}
        count, starts = (_QUICK_UPDATES, _QUICK_STARTS) if quick else (_UPDATES, _STARTS)
        for name, isolation in _PYTHON.items():
            unrehearsed[name] = in_python(p, isolation, count)
        for name, language in found.items():
            say(f"{name}: building")
            built(language, work / name)
            for operation in OPERATIONS:
                deploy(p, f"{name}_{operation.name}", language, work / name, operation)
            say(f"{name}: frames, processor time, updates")
            start = language.starting(work / name)
            by_kind[name] = suite.frames(starting(start), _REPLY_S)
            processor[name] = hops.filter_cpu_us(start, seed)
            first[name] = first_frames(start, work, starts)
            rehearsed[name] = updates(p, f"{name}_{REHEARSED}", count)
            unrehearsed[name] = updates(p, f"{name}_{UNREHEARSED}", count)
        conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": ROWS_PER_BATCH, "spark.sql.shuffle.partitions": 2}
        spark = stack.enter_context(spark_of({**conf, "spark.udo.node": p.node_socket}))
        rates = {operation.name: _measured(spark, p, operation, list(found), quick, rounds, seed) for operation in OPERATIONS}
    return Figures(
        languages={name: _ratios(rates, name, "inside_spark") for name in [*found, "python"]},
        to_python_through_udo={name: _ratios(rates, name, "python") for name in found},
        events_per_s={operation: {name: round(r) for name, r in of.items()} for operation, of in rates.items()},
        hop_p50_us={name: us["one event, batches"] for name, us in by_kind.items()},
        filter_cpu_us=processor,
        frame_p50_us=by_kind,
        update_request_to_answer_ms={name: ms.p50 for name, ms in rehearsed.items()},
        update_ready_ms={name: ms.ready for name, ms in rehearsed.items()},
        update_without_rehearsal_ms={name: ms.p50 for name, ms in unrehearsed.items()},
        first_frame_ms=first,
        driver=driver,
        rounds=rounds,
    )


def in_python(p: Platform, isolation: str, count: int) -> Updated:
    """Measure the same updates of an operator in Python."""
    name = f"updated_{isolation}"
    operator = next(operation.python for operation in OPERATIONS if operation.name == UNREHEARSED)
    for version in VERSIONS:
        p.push(operator, version, name=name, isolation=isolation)
    p.deploy(name, name)
    return updates(p, name, count)


def first_frames(command: list[str], work: Path, starts: int) -> FirstFrame:
    """Measure first frames, event by event."""
    samples = work / "samples.json"
    samples.write_text('[{"do": "add", "n": 1}]', "utf-8")
    numbers = pa.array(range(ROWS_PER_BATCH), pa.int64())
    batch = pa.RecordBatch.from_arrays([pa.array(["add"] * ROWS_PER_BATCH), numbers], schema=EVENTS)
    taken: dict[str, list[float]] = {"cold": [], "rehearsed": []}
    for _ in range(starts):
        for how, of_kind in taken.items():
            rehearse = str(samples) if how == "rehearsed" else ""
            launch = Launch(tuple(command), str(work), str(work), {**os.environ, "UDO_CONFORMANCE": "events"}, rehearse=rehearse)
            operator = ChildProcessor(launch, (EVENTS, N), None, Context("first", "1"))
            operator.open()
            started = time.perf_counter()
            operator.once(batch)
            of_kind.append((time.perf_counter() - started) * 1000)
            operator.close()
    return FirstFrame(round(statistics.median(taken["cold"]), 1), round(statistics.median(taken["rehearsed"]), 1))


def _ratios(rates: dict[str, dict[str, float]], name: str, base: str) -> dict[str, float]:
    return {operation: round(of[name] / of[base], 3) for operation, of in rates.items()}


def _measured(
    spark: SparkSession, p: Platform, operation: Operation, languages: list[str], quick: bool, rounds: int, seed: int
) -> dict[str, float]:
    """Measure the median events per second of each contender, interleaved."""
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


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    rows = [[o.what, *(f"{of[o.name]:.2f}" for of in f.languages.values())] for o in OPERATIONS]
    other = [[o.what, *(f"{of[o.name]:.2f}" for of in f.to_python_through_udo.values())] for o in OPERATIONS]
    hop = [[name, f"{us:,.0f}"] for name, us in f.hop_p50_us.items()]
    ways = ("in_process", "shared", "socket")
    cpu = [[name, *(f"{us[way]:,.0f}" if way in us else "" for way in ways)] for name, us in f.filter_cpu_us.items()]
    updated = [
        [name, f"{ms:,.0f}", *(f"{of[name]:,.0f}" if name in of else "" for of in (f.update_ready_ms, f.update_request_to_answer_ms))]
        for name, ms in f.update_without_rehearsal_ms.items()
    ]
    first = [[name, f"{ms.cold:,.0f}", f"{ms.rehearsed:,.0f}"] for name, ms in f.first_frame_ms.items()]
    return [
        Section("Through UDO, × Python inside Spark", ["operation", *f.languages], rows, "Python inside Spark keeps no log and no state."),
        Section("× Python through UDO", ["operation", *f.to_python_through_udo], other),
        Section("A frame of one event, engine to operator's process and back, µs", ["language", "p50"], hop),
        Section(
            "Processor time of a filter's frame of 10,000 events, engine and operator's process, µs",
            ["language", "Python in the engine", "through shared memory", "through the socket"],
            cpu,
        ),
        Section("An update, ms from its request", ["language", "has answered", "one that rehearses: has done so", "has answered"], updated),
        Section("The first frame of a process, 10,000 events one by one, ms", ["language", "cold", "rehearsed"], first),
    ]
