"""Events per second of one function called from Spark in ten ways, interleaved in one session.

Every contender gets the same DataFrame (32-byte rows made by the JVM from a seed, 10,000 rows a batch) and writes to Spark's
noop sink. Before anything is timed, each one's output is compared with an oracle in plain Spark SQL: row by row in order on
small batches, then by count and sum of hashes at full size, which is also the first round and dropped.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, lit, pmod, xxhash64
from pyspark.sql.functions import sum as total

from benchmarks.contenders import bare_batches, flight, http_batch, native, platform_calls
from benchmarks.harness.bringup import platform, say, server, spark_of
from benchmarks.harness.rules import InvalidRun, require_equal
from benchmarks.harness.tables import Section
from benchmarks.harness.tables import count as readable
from benchmarks.operators.keep.keep import THRESHOLD

ROWS_PER_BATCH = 10_000
ROW_BYTES = 32
# Small batches, so that the check of the order covers several of them, the last one not full.
CHECKED_ROWS, CHECKED_ROWS_PER_BATCH = 6_007, 1_000
OPERATORS = ("filter", "forward")
_BATCH, _BATCH_BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
# The operator reads NARROW, the columns of `events`, out of WIDE columns: a call by name sends no others.
NARROW = ("id", "card", "amount", "at")
WIDE, WIDE_ROWS = 64, {"full": 1_000_000, "quick": 100_000}
WIDE_CONTENDERS = ("native", "udo", "udo_jvm")  # the first ones of CONTENDERS
# The same ones on batches so small that the cost of a frame shows.
SMALL_ROWS_PER_BATCH, SMALL_ROWS = 1_000, {"full": 3_000_000, "quick": 300_000}


@dataclass(frozen=True)
class Contender:
    """One way to call, and the number of rows that it gets in a full and in a quick run, enough for some seconds."""

    name: str
    what: str
    guarantees: str
    full_rows: int
    quick_rows: int


CONTENDERS = (
    Contender("native", "mapInArrow", "none: runs inside Spark's worker, stopped and replaced only with the query", 10_000_000, 4_000_000),
    Contender(
        "udo",
        "UDO",
        "log, exactly one answer per frame in order, replay after a crash, live update, own process and dependencies",
        10_000_000,
        4_000_000,
    ),
    Contender("udo_jvm", "UDO, JVM path", "as UDO", 10_000_000, 4_000_000),
    Contender(
        "native_unchecked",
        "mapInArrow, without Spark's bound of a batch's bytes",
        "as mapInArrow; a batch of large rows may take any memory",
        10_000_000,
        4_000_000,
    ),
    Contender("flight", "Arrow Flight DoExchange", "order per stream; own process; a crash fails the task", 10_000_000, 4_000_000),
    Contender("http", "HTTP per batch", "order per connection; own process; a crash fails the task", 6_000_000, 2_000_000),
    Contender("lists", "two bare lists", "none", 6_000_000, 2_000_000),
    Contender("lists_redis_py", "two bare lists, redis-py with hiredis", "none", 6_000_000, 2_000_000),
    Contender("udf_rows", "row-wise @udf", "none: runs inside Spark's worker", 1_000_000, 250_000),
    Contender("udo_unbatched", "UDO, one event per frame", "as UDO", 40_000, 10_000),
)
Call = Callable[[DataFrame, str], DataFrame]


@dataclass(frozen=True, kw_only=True)
class OfOperator:
    """One operator's medians, and the medians of the rounds' own ratios, since other load affects a round's runs alike."""

    events_per_s: dict[str, int]
    udo_vs_native: float
    udo_jvm_vs_native: float | None = None
    udo_jvm_vs_native_unchecked: float | None = None
    udo_jvm_vs_flight: float | None = None
    udo_jvm_vs_udo: float | None = None
    udo_vs_flight: float
    udo_vs_http: float
    udo_vs_lists: float
    udo_vs_lists_redis_py: float
    udo_vs_udf_rows: float
    udo_vs_unbatched: float


@dataclass(frozen=True)
class Wide:
    """`forward` on events of many columns."""

    columns: int
    columns_read: int
    rows: int
    events_per_s: dict[str, int]
    udo_vs_native: float
    udo_jvm_vs_native: float


@dataclass(frozen=True)
class Small:
    """An operator on small batches."""

    events_per_s: dict[str, int]
    udo_vs_native: float
    udo_jvm_vs_native: float


@dataclass(frozen=True)
class SmallBatches:
    """Both operators on small batches."""

    rows_per_batch: int
    rows: int
    filter: Small
    forward: Small


@dataclass(frozen=True, kw_only=True)
class Figures(OfOperator):
    """The figures of `operator`, the filter, and those of `forward` beside them."""

    operator: str
    forward: OfOperator
    wide: Wide | None = None
    small: SmallBatches | None = None
    driver: str
    rows_per_batch: int
    row_bytes: int
    rows: dict[str, int]
    rounds: int
    rates: dict[str, dict[str, list[int]]]
    guarantees: dict[str, str]


def events(spark: SparkSession, rows: int, seed: int) -> DataFrame:
    """Make `rows` events of 32 bytes in two partitions: id, card, amount in 0 .. 1000, at."""
    h = xxhash64(col("id"), lit(seed))
    return spark.range(0, rows, 1, 2).select(
        col("id"),
        pmod(h, lit(5000)).alias("card"),
        (pmod(h, lit(100_000)) / lit(100.0)).alias("amount"),
        (col("id") * lit(1000) + lit(1_700_000_000_000_000)).alias("at"),
    )


def wide(df: DataFrame) -> DataFrame:
    """Add columns that no operator reads, every other one text, up to WIDE columns."""
    more = [
        (col("id") + lit(i)).cast("string").alias(f"c{i}") if i % 2 else (col("amount") * lit(i)).alias(f"c{i}")
        for i in range(WIDE - len(df.columns))
    ]
    return df.select(*df.columns, *more)


@contextmanager
def settings_of(spark: SparkSession, name: str) -> Iterator[None]:
    """Set the session's configuration for this contender inside the block."""
    if name != "native_unchecked":
        yield
        return
    spark.conf.set(_BATCH_BYTES, str((1 << 31) - 1))
    try:
        yield
    finally:
        spark.conf.unset(_BATCH_BYTES)


def oracle(df: DataFrame, operator: str) -> DataFrame:
    """The expected answers."""
    return df.where(col("amount") > lit(THRESHOLD)) if operator == "filter" else df


def digest(df: DataFrame) -> tuple[Any, ...]:
    """The count and the sum of row hashes, independent of order."""
    row = df.select(count("*"), total(xxhash64(*df.columns).cast("decimal(38,0)"))).first()
    return tuple(row or ())


@contextmanager
def calls(driver: str) -> Iterator[tuple[SparkSession, dict[str, Call]]]:
    """Start a Spark session and all contenders, ready to be called; stop everything at the end."""
    with ExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="udo-bench-")))
        p = stack.enter_context(platform(driver))
        for operator in platform_calls.DEPLOYMENTS.values():
            p.push(operator, "1")
            p.deploy(operator, operator)
        flight_socket, http_socket = sockets / "flight.sock", sockets / "http.sock"
        stack.enter_context(server([sys.executable, "-m", "benchmarks.contenders.flight", str(flight_socket)], flight_socket))
        gunicorn = [sys.executable, "-m", "gunicorn", "--bind", f"unix:{http_socket}", "--worker-class", "gthread", "--threads", "4"]
        stack.enter_context(
            server([*gunicorn, "--keep-alive", "30", "--log-level", "error", "benchmarks.contenders.http_batch:wsgi"], http_socket)
        )
        lists = stack.enter_context(bare_batches.lists_server(sockets))
        spark = stack.enter_context(spark_of({_BATCH: ROWS_PER_BATCH, "spark.udo.node": p.node_socket}))
        yield (
            spark,
            {
                "native": native.map_in_arrow,
                "udo": lambda df, operator: platform_calls.through_udo(df, operator, p.registry_url),
                "udo_jvm": lambda df, operator: platform_calls.through_jvm(df, operator, p.registry_url),
                "native_unchecked": native.map_in_arrow,
                "flight": lambda df, operator: flight.through_flight(df, operator, str(flight_socket)),
                "http": lambda df, operator: http_batch.through_http(df, operator, str(http_socket)),
                "lists": lambda df, operator: bare_batches.through_lists(df, operator, lists, "own"),
                "lists_redis_py": lambda df, operator: bare_batches.through_lists(df, operator, lists, "redis-py"),
                "udf_rows": native.udf_rows,
                "udo_unbatched": lambda df, operator: platform_calls.unbatched(df, operator, p.registry_url, p.node_socket),
            },
        )


def check_rows(spark: SparkSession, ways: dict[str, Call], seed: int) -> None:
    """Compare all contenders with the oracle row by row, in order, on small batches."""
    spark.conf.set(_BATCH, CHECKED_ROWS_PER_BATCH)
    df = events(spark, CHECKED_ROWS, seed)
    for operator in OPERATORS:
        found = {}
        for name, call in ways.items():
            with settings_of(spark, name):
                found[name] = call(df, operator).toArrow()
        require_equal(found, oracle(df, operator).toArrow())
    spark.conf.set(_BATCH, ROWS_PER_BATCH)


def check_digests(spark: SparkSession, ways: dict[str, Call], rows: dict[str, int], seed: int) -> None:
    """Compare digests at full size; this round is not timed."""
    for operator in OPERATORS:
        wanted = {n: digest(oracle(events(spark, n, seed), operator)) for n in set(rows.values())}
        for name, call in ways.items():
            with settings_of(spark, name):
                found = digest(call(events(spark, rows[name], seed), operator))
            if found != wanted[rows[name]]:
                raise InvalidRun(f"{name} ({operator}) answers with count and hash {found}, expected {wanted[rows[name]]}")


def measure(spark: SparkSession, ways: dict[str, Call], rows: dict[str, int], rounds: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Measure the events per second of every round, by operator and contender, interleaved: A B C A B C ..."""
    rates: dict[str, dict[str, list[float]]] = {operator: {name: [] for name in ways} for operator in OPERATORS}
    for turn in range(rounds):
        say(f"round {turn + 1} of {rounds}")
        for operator in OPERATORS:
            for name, call in ways.items():
                df = call(events(spark, rows[name], seed), operator)
                with settings_of(spark, name):
                    rates[operator][name].append(rows[name] / written_s(df))
    return rates


def written_s(df: DataFrame) -> float:
    """Measure the seconds that Spark takes to write a DataFrame to its noop sink."""
    started = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def measure_wide(spark: SparkSession, ways: dict[str, Call], rows: int, rounds: int, seed: int) -> dict[str, list[float]]:
    """Measure the events per second of `forward` on events of WIDE columns, after one more round, which is dropped; first, compare the
    contenders' outputs row by row."""
    few = events(spark, CHECKED_ROWS, seed)
    require_equal({name: _few_of(wide(few), ways, name).toArrow() for name in WIDE_CONTENDERS}, few.toArrow())
    rates: dict[str, list[float]] = {name: [] for name in WIDE_CONTENDERS}
    for _ in range(rounds + 1):
        for name in WIDE_CONTENDERS:
            rates[name].append(rows / written_s(_few_of(wide(events(spark, rows, seed)), ways, name)))
    return {name: r[1:] for name, r in rates.items()}


def _few_of(df: DataFrame, ways: dict[str, Call], name: str) -> DataFrame:
    """Let a contender forward the columns NARROW."""
    return native.first_columns(df, NARROW) if name == "native" else ways[name](df, "forward")


def measure_small(spark: SparkSession, ways: dict[str, Call], rows: int, rounds: int, seed: int) -> SmallBatches:
    """Measure both operators on batches of SMALL_ROWS_PER_BATCH rows, after one more round, which is dropped."""
    spark.conf.set(_BATCH, SMALL_ROWS_PER_BATCH)
    few = {name: ways[name] for name in WIDE_CONTENDERS}
    rates = measure(spark, few, dict.fromkeys(few, rows), rounds + 1, seed)
    spark.conf.set(_BATCH, ROWS_PER_BATCH)
    timed = {operator: {name: r[1:] for name, r in by.items()} for operator, by in rates.items()}
    of = {o: Small(medians(r), *(ratio(r, name, "native") for name in WIDE_CONTENDERS[1:])) for o, r in timed.items()}
    return SmallBatches(SMALL_ROWS_PER_BATCH, rows, of["filter"], of["forward"])


def ratio(rates: dict[str, list[float]], of: str, other: str) -> float:
    """Return the median of the rounds' ratios."""
    return round(statistics.median(u / o for u, o in zip(rates[of], rates[other], strict=True)), 3)


def medians(rates: dict[str, list[float]]) -> dict[str, int]:
    """Return each contender's median."""
    return {name: round(statistics.median(r)) for name, r in rates.items()}


def of_operator(rates: dict[str, list[float]]) -> OfOperator:
    """Return the figures of one operator."""
    return OfOperator(
        events_per_s=medians(rates),
        udo_vs_native=ratio(rates, "udo", "native"),
        udo_jvm_vs_native=ratio(rates, "udo_jvm", "native"),
        udo_jvm_vs_native_unchecked=ratio(rates, "udo_jvm", "native_unchecked"),
        udo_jvm_vs_flight=ratio(rates, "udo_jvm", "flight"),
        udo_jvm_vs_udo=ratio(rates, "udo_jvm", "udo"),
        udo_vs_flight=ratio(rates, "udo", "flight"),
        udo_vs_http=ratio(rates, "udo", "http"),
        udo_vs_lists=ratio(rates, "udo", "lists"),
        udo_vs_lists_redis_py=ratio(rates, "udo", "lists_redis_py"),
        udo_vs_udf_rows=ratio(rates, "udo", "udf_rows"),
        udo_vs_unbatched=ratio(rates, "udo", "udo_unbatched"),
    )


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the whole suite."""
    rows = {c.name: c.quick_rows if quick else c.full_rows for c in CONTENDERS}
    rounds = 3 if quick else 7
    with calls(driver) as (spark, ways):
        say("comparing outputs")
        check_rows(spark, ways, seed)
        check_digests(spark, ways, rows, seed)
        rates = measure(spark, ways, rows, rounds, seed)
        say(f"{WIDE} columns")
        wide_rows = WIDE_ROWS["quick" if quick else "full"]
        of_wide = measure_wide(spark, ways, wide_rows, rounds, seed)
        say(f"{SMALL_ROWS_PER_BATCH:,} rows a batch")
        small = measure_small(spark, ways, SMALL_ROWS["quick" if quick else "full"], rounds, seed)
    wide_ratios = (ratio(of_wide, name, "native") for name in WIDE_CONTENDERS[1:])
    return Figures(
        **vars(of_operator(rates["filter"])),
        operator="filter",
        forward=of_operator(rates["forward"]),
        wide=Wide(WIDE, len(NARROW), wide_rows, medians(of_wide), *wide_ratios),
        small=small,
        driver=driver,
        rows_per_batch=ROWS_PER_BATCH,
        row_bytes=ROW_BYTES,
        rows=rows,
        rounds=rounds,
        rates={o: {n: [round(x) for x in r] for n, r in by.items()} for o, by in rates.items()},
        guarantees={c.name: c.guarantees for c in CONTENDERS},
    )


def _of_small(small: SmallBatches) -> Section:
    """The table of small batches."""

    def cells(name: str, vs_native: Callable[[Small], float]) -> list[str]:
        return [text for of in (small.filter, small.forward) for text in (readable(of.events_per_s[name]), f"{vs_native(of):.2f}")]

    times: tuple[Callable[[Small], float], ...] = (lambda _: 1.0, lambda of: of.udo_vs_native, lambda of: of.udo_jvm_vs_native)
    rows = [[c.what, *cells(c.name, of)] for c, of in zip(CONTENDERS[: len(times)], times, strict=True)]
    header = ["called by", "filter/s", "× native", "forward/s", "× native"]
    return Section(f"Throughput: {small.rows_per_batch:,} rows a batch", header, rows, "Medians of the rounds' ratios.")


def _ratios(of: OfOperator) -> dict[str, float | None]:
    return {
        "UDO against mapInArrow": of.udo_vs_native,
        "UDO against Arrow Flight": of.udo_vs_flight,
        "UDO against HTTP per batch": of.udo_vs_http,
        "UDO against two bare lists": of.udo_vs_lists,
        "UDO against two bare lists, redis-py with hiredis": of.udo_vs_lists_redis_py,
        "UDO against row-wise @udf": of.udo_vs_udf_rows,
        "UDO against UDO, one event per frame": of.udo_vs_unbatched,
        "UDO on the JVM path against mapInArrow": of.udo_jvm_vs_native,
        "UDO on the JVM path against mapInArrow without the bound of bytes": of.udo_jvm_vs_native_unchecked,
        "UDO on the JVM path against Arrow Flight": of.udo_jvm_vs_flight,
        "UDO on the JVM path against UDO": of.udo_jvm_vs_udo,
    }


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""

    def cells(name: str) -> list[str]:
        return [text for of in (f, f.forward) for n in [of.events_per_s] for text in (readable(n[name]), f"{n[name] / n['native']:.3f}")]

    rows = [[c.what, *cells(c.name)] for c in CONTENDERS if c.name in f.events_per_s]
    header = ["called by", "filter/s", "× native", "forward/s", "× native"]
    ratios = [
        [text, f"{of_filter:.2f}", f"{of_forward:.2f}"]
        for (text, of_filter), of_forward in zip(_ratios(f).items(), _ratios(f.forward).values(), strict=True)
        if of_filter is not None and of_forward is not None
    ]
    remark = f"{f.rounds} rounds, {f.rows_per_batch:,} rows of {f.row_bytes} bytes a batch, local[2], noop sink."
    few = f.wide
    of_wide = (
        [
            Section(
                f"Throughput: {few.columns} columns, of which `forward` reads {few.columns_read}",
                ["called by", "events/s", "× native"],
                [
                    [c.what, readable(few.events_per_s[c.name]), f"{times:.2f}"]
                    for c, times in zip(CONTENDERS[:3], (1.0, few.udo_vs_native, few.udo_jvm_vs_native), strict=True)
                ],
                "mapInArrow is sent all columns, a call by name those that the operator names.",
            )
        ]
        if few
        else []
    )
    return [
        Section("Throughput: medians", header, rows, remark),
        Section("Throughput: median of the rounds' ratios", ["", "filter", "forward"], ratios),
        *of_wide,
        *([_of_small(f.small)] if f.small else []),
        Section("What each guarantees", ["called by", "guarantees"], [[c.what, c.guarantees] for c in CONTENDERS]),
    ]
