"""Keyed, stateful processing per event: a running count per key in a streaming query, in seven ways, and the speed of restoring state.

Every contender reads the same parquet files, one per micro-batch, and writes to Spark's noop sink. The first micro-batch of a
query is not counted (it holds every key, so that state has its full size), nor is the first round at all, in which the JVM and the
operators warm up. Rates are of micro-batches as Spark reports them:
reading, shuffle, operator, state and its checkpoint. Before anything is timed each contender's counts are compared.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit, pmod, xxhash64
from udo_runtime.durable.sessions import load_session

from benchmarks.contenders import stateful
from benchmarks.contenders.stateful import Call
from benchmarks.harness.bringup import Platform, platform, say, spark_of
from benchmarks.harness.idle import run_ns
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from benchmarks.harness.tables import count as readable
from benchmarks.loads.floor import Floor, floor
from node_manager.servers import access
from udo_protocol.queue.keys import SlotKeys

PARTITIONS = 2
CHECKED_ROWS, CHECKED_KEYS = 3_000, 50
_QUERY_TIMEOUT_S = 5400  # Spark's own operators with a million keys
_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Contender:
    """One way to count."""

    name: str
    what: str


CONTENDERS = (
    Contender("stateless", "UDO, stateless per event, same repartition"),
    Contender("udo", "UDO, keyed"),
    Contender("udo_columns", "UDO, keyed, whole frames, state in columns"),
    Contender("udo_jvm", "UDO, keyed, JVM path"),
    Contender("udo_columns_jvm", "UDO, keyed, whole frames, state in columns, JVM path"),
    Contender("transform_with_state", "transformWithState (Python rows)"),
    Contender("apply_in_pandas_with_state", "applyInPandasWithState"),
)
# The contenders that the others are compared with.
_OURS = ("udo", "udo_columns")
_UDO, _SPARK = CONTENDERS[:5], CONTENDERS[5:]


@dataclass(frozen=True)
class Scale:
    """A scale: number of keys, rows per micro-batch, counted micro-batches and rounds, rounds before them, contenders, and those of
    them in the first round only."""

    keys: int
    rows: int
    batches: int
    rounds: int
    warm_up: int
    contenders: tuple[Contender, ...] = CONTENDERS
    once: tuple[Contender, ...] = ()


# All are warmed up once the first scale is done. A query of Spark's own operators with a million keys takes minutes.
FULL = (Scale(5_000, 300_000, 2, 4, 1), Scale(1_000_000, 300_000, 2, 4, 0, once=_SPARK))
QUICK = (Scale(5_000, 100_000, 2, 1, 1), Scale(1_000_000, 300_000, 2, 1, 0, _UDO))


@dataclass(frozen=True)
class Restored:
    """A session as a replacement instance reads it. Rates count durable bytes: bases and changes since."""

    keys: int
    bytes: int
    durable_bytes: int
    seconds: float
    mb_per_s: float
    read_mb_per_s: float


@dataclass(frozen=True, kw_only=True)
class OfScale:
    """One scale. `rates`: of each counted micro-batch; a ratio is absent if one of its two was not measured. `instance_us`: processor time
    that the operator's instance takes per event, whichever path its events take."""

    events_per_s: dict[str, int]
    udo_vs_stateless: float
    udo_vs_udo_columns: float
    udo_vs_udo_jvm: float
    udo_vs_udo_columns_jvm: float
    udo_vs_transform_with_state: float | None = None
    udo_vs_apply_in_pandas_with_state: float | None = None
    udo_columns_vs_stateless: float
    udo_columns_vs_udo: float
    udo_columns_vs_udo_jvm: float
    udo_columns_vs_udo_columns_jvm: float
    udo_columns_vs_transform_with_state: float | None = None
    udo_columns_vs_apply_in_pandas_with_state: float | None = None
    restore: Restored
    floor: Floor | None = None
    instance_us: dict[str, float] | None = None
    rows: int
    rates: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True)
class Figures(OfScale):
    """The figures of the first scale, and those of a million keys beside them."""

    keys: int
    keys_1000000: OfScale
    driver: str
    partitions: int


def write(spark: SparkSession, directory: Path, keys: int, rows: int, batches: int, seed: int) -> None:
    """Write the files of one stream, in the order of their names and times: every key once, then `batches` files of random keys."""
    for b in range(batches + 1):
        count = keys if b == 0 else rows
        df = spark.range(b * 10_000_000, b * 10_000_000 + count, 1, 1)
        card = pmod(col("id"), lit(keys)) if b == 0 else pmod(xxhash64(col("id"), lit(seed)), lit(keys))
        part = directory / f"part{b}"
        df.select("id", card.alias("card")).write.parquet(str(part))
        [file] = part.glob("*.parquet")
        file.rename(directory / f"{b:03d}.parquet")
        shutil.rmtree(part)


@contextmanager
def _streaming(spark: SparkSession, call: Call, source: Path) -> Iterator[tuple[DataFrame, str]]:
    """Yield a contender's DataFrame over a stream of files, and a new checkpoint directory."""
    checkpoint = tempfile.mkdtemp(prefix="udo-bench-ckpt-")
    try:
        schema = "id bigint, card bigint"
        yield call(spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))), checkpoint
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def counted(spark: SparkSession, call: Call, source: Path) -> list[tuple[int, int]]:
    """Run a query; return (card, n) of every answer, sorted: within a micro-batch the order of a key's events is the shuffle's."""
    with _streaming(spark, call, source) as (df, checkpoint):
        rows: list[tuple[int, int]] = []

        def gather(batch: DataFrame, _: int) -> None:
            found = batch.select("card", "n").toArrow()
            rows.extend(zip(found["card"].to_pylist(), found["n"].to_pylist(), strict=True))

        query = df.writeStream.foreachBatch(gather).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        finish(query)
        return sorted(rows)


def rates(spark: SparkSession, call: Call, source: Path) -> tuple[list[float], str]:
    """Run a query; return the events per second of each micro-batch after the first, and the query's id."""
    with _streaming(spark, call, source) as (df, checkpoint):
        query = df.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        finish(query)
        done = [p for p in query.recentProgress if p["numInputRows"]]
        return [p["numInputRows"] / (p["durationMs"]["addBatch"] / 1000) for p in done[1:]], str(query.id)


def finish(query: Any) -> None:
    """Wait until all files are read; InvalidRun if the query failed or takes too long."""
    if not query.awaitTermination(_QUERY_TIMEOUT_S):
        query.stop()
        raise InvalidRun(f"a query did not end within {_QUERY_TIMEOUT_S} s")
    if (error := query.exception()) is not None:
        raise InvalidRun(f"a query failed: {error}")


def check(spark: SparkSession, ways: dict[str, Call], directory: Path, seed: int) -> None:
    """Check that all stateful contenders count the same."""
    write(spark, directory, CHECKED_KEYS, CHECKED_ROWS, 2, seed)
    found = {name: counted(spark, call, directory) for name, call in ways.items() if name != "stateless"}
    for name, rows in found.items():
        if rows != found["udo"]:
            wrong = (
                next((a, b) for a, b in zip(rows, found["udo"], strict=False) if a != b) if len(rows) == len(found["udo"]) else len(rows)
            )
            raise InvalidRun(f"{name} counts otherwise than udo: {wrong}")
    cards = [card for card, _ in found["udo"]]
    if found["udo"] != sorted((c, i + 1) for c in set(cards) for i in range(cards.count(c))):
        raise InvalidRun("the counts of udo are not 1, 2, 3 ... for every key")


def restore(p: Platform, session: str) -> Restored:
    """Read a session as a replacement instance does, and decode every group."""
    took, read, size, durable, keys = [], [], 0, 0, 0
    for _ in range(6):
        with contextlib.closing(access.connect(p.home.node, "state")) as conn:
            started = time.perf_counter()
            found = load_session(conn, SlotKeys("count", 0), session)
            read.append(time.perf_counter() - started)
            for group in found.groups.values():
                len(group.values)
            took.append(time.perf_counter() - started)
            size, keys, durable = found.size, found.keys, sum(g.place.bytes for g in found.groups.values())
    seconds, read_s = statistics.median(took[1:]), statistics.median(read[1:])
    return Restored(keys, size, durable, round(seconds, 4), round(durable / seconds / 1e6, 4), round(durable / read_s / 1e6, 4))


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the suite."""
    scales = QUICK if quick else FULL
    with ExitStack() as stack:
        p = stack.enter_context(platform(driver))
        for name in ("count", "count_columns", "each"):
            p.push(name, "1")
            p.deploy(name, name)
        conf = {
            "spark.sql.shuffle.partitions": PARTITIONS,
            "spark.sql.streaming.stateStore.providerClass": _STORE,
            "spark.sql.execution.arrow.maxRecordsPerBatch": 10_000,
            "spark.udo.node": p.node_socket,
        }
        spark = stack.enter_context(spark_of(conf))
        ways: dict[str, Call] = {
            "stateless": lambda df: stateful.stateless(df, p.registry_url),
            "udo": lambda df: stateful.keyed(df, p.registry_url),
            "udo_columns": lambda df: stateful.keyed(df, p.registry_url, "count_columns"),
            "udo_jvm": lambda df: stateful.keyed(df, p.registry_url, path="jvm"),
            "udo_columns_jvm": lambda df: stateful.keyed(df, p.registry_url, "count_columns", path="jvm"),
            "transform_with_state": stateful.transform_with_state,
            "apply_in_pandas_with_state": stateful.apply_in_pandas_with_state,
        }
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="udo-bench-state-")))
        say("comparing counts")
        (work / "check").mkdir()
        check(spark, ways, work / "check", seed)
        found = {s.keys: measure(spark, p, ways, s, work / str(s.keys), seed) for s in scales}
    small, large = (found[s.keys] for s in scales)
    return Figures(**vars(small), keys=scales[0].keys, keys_1000000=large, driver=driver, partitions=PARTITIONS)


def instances_ns(p: Platform) -> int:
    """The processor time that all instances have taken so far."""
    return sum(run_ns(process.pid) for process in p.processes()["instance"])


def measure(spark: SparkSession, p: Platform, ways: dict[str, Call], scale: Scale, work: Path, seed: int) -> OfScale:
    """Measure one scale: all its contenders in turn, for its rounds."""
    work.mkdir(parents=True)
    write(spark, work, scale.keys, scale.rows, scale.batches, seed)
    taken: dict[str, list[float]] = {c.name: [] for c in scale.contenders}
    ran: dict[str, list[float]] = {}
    events, session = scale.keys + scale.batches * scale.rows, ""
    for turn in range(-scale.warm_up, scale.rounds):
        for c in scale.contenders:
            if turn > 0 and c in scale.once:
                continue
            say(f"{scale.keys} keys, {f'round {turn + 1} of {scale.rounds}' if turn >= 0 else 'warming up'}: {c.name}")
            before = instances_ns(p)
            found, query = rates(spark, ways[c.name], work)
            if turn >= 0:
                taken[c.name] += found
                ran.setdefault(c.name, []).append((instances_ns(p) - before) / 1000 / events)
            session = query if c.name == "udo" else session
    say(f"{scale.keys} keys: the bare loop")
    medians = {name: statistics.median(r) for name, r in taken.items()}
    ratios = {f"{ours}_vs_{name}": round(medians[ours] / r, 3) for ours in _OURS for name, r in medians.items() if name != ours}
    return OfScale(
        events_per_s={n: round(r) for n, r in medians.items()},
        **ratios,
        restore=restore(p, session),
        floor=floor(scale.keys, seed),
        instance_us={c.name: round(statistics.median(ran[c.name]), 2) for c in _UDO},
        rows=scale.rows,
        rates={n: [round(x) for x in r] for n, r in taken.items()},
    )


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    million = f.keys_1000000

    def cells(part: OfScale, name: str) -> list[str]:
        rate, ours = part.events_per_s.get(name), [part.events_per_s.get(n) for n in _OURS]
        return ["–"] * 3 if rate is None else [readable(rate), *(f"{r / rate:.2f}" if r else "–" for r in ours)]

    rows = [[c.what, *cells(f, c.name), *cells(million, c.name)] for c in CONTENDERS]
    ours = ["UDO keyed ×", "in columns ×"]
    header = ["counted by", f"{f.keys:,} keys, events/s", *ours, "1,000,000 keys, events/s", *ours]
    restored = [
        [f"{r.keys:,.0f} keys", f"{r.bytes / 1e6:.1f} MB", f"{r.durable_bytes / 1e6:.1f} MB", f"{r.read_mb_per_s:.0f} MB/s"]
        + [f"{r.mb_per_s:.0f} MB/s"]
        for r in (f.restore, million.restore)
    ]
    bare = [
        [
            f"{keys:,} keys",
            f"{part.floor.loop_us:.2f}",
            f"{part.floor.lookup_us:.2f}",
            f"{2e6 / part.events_per_s['stateless']:.2f}",
        ]
        for keys, part in ((f.keys, f), (1_000_000, million))
        if part.floor is not None
    ]
    taken = [part.instance_us for part in (f, million) if part.instance_us]
    busy = [[c.what, *(f"{of.get(c.name, 0):.2f}" for of in taken)] for c in _UDO]
    of_instance = Section(
        "Processor time of the instance", ["called by", f"{f.keys:,} keys, µs an event", "1,000,000 keys, µs an event"], busy
    )
    return [
        Section(
            "Running count per key in a streaming query",
            header,
            rows,
            f"local[2], medians of micro-batches behind the first; {f.rows:,} and {million.rows:,} events each.",
        ),
        *([of_instance] if len(taken) > 1 else []),
        Section("Restoring a session", ["", "keys and values", "durable", "read at", "read and decoded at"], restored),
        Section(
            "µs an event",
            ["", "bare loop, processor time", "its lookup alone", "UDO, stateless: twice the time that passes"],
            bare,
            "Twice, since it has two cores: more than the processor time that it takes, if they are idle in between.",
        ),
    ]
