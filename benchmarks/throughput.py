"""Events per second of one function called from Spark in six ways, interleaved in one session.

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

from benchmarks.bringup import platform, say, server
from benchmarks.contenders import flight, http_batch, native, platform_calls
from benchmarks.operators.keep.keep import THRESHOLD
from benchmarks.rules import InvalidRun, require_equal
from benchmarks.tables import Section
from benchmarks.tables import count as readable
from udo_interface.java import QUIET, spark_session

ROWS_PER_BATCH = 10_000
ROW_BYTES = 32
# Small batches, so that every contender's order over several of them is seen, the last one not full.
CHECKED_ROWS, CHECKED_ROWS_PER_BATCH = 6_007, 1_000
OPERATORS = ("filter", "forward")
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True)
class Contender:
    """One way to call; `rows` for a full and a quick run are what it does in about a second."""

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
    Contender("flight", "Arrow Flight DoExchange", "order per stream; own process; a crash fails the task", 10_000_000, 4_000_000),
    Contender("http", "HTTP per batch", "order per connection; own process; a crash fails the task", 6_000_000, 2_000_000),
    Contender("udf_rows", "row-wise @udf", "none: runs inside Spark's worker", 1_000_000, 250_000),
    Contender("udo_unbatched", "UDO, one event per frame", "as UDO", 40_000, 10_000),
)
Call = Callable[[DataFrame, str], DataFrame]


def events(spark: SparkSession, rows: int, seed: int) -> DataFrame:
    """`rows` events of 32 bytes in two partitions: id, card, amount in 0 .. 1000, at."""
    h = xxhash64(col("id"), lit(seed))
    return spark.range(0, rows, 1, 2).select(
        col("id"),
        pmod(h, lit(5000)).alias("card"),
        (pmod(h, lit(100_000)) / lit(100.0)).alias("amount"),
        (col("id") * lit(1000) + lit(1_700_000_000_000_000)).alias("at"),
    )


def oracle(df: DataFrame, operator: str) -> DataFrame:
    """What every contender has to answer."""
    return df.where(col("amount") > lit(THRESHOLD)) if operator == "filter" else df


def digest(df: DataFrame) -> tuple[Any, ...]:
    """Count and sum of row hashes, independent of order."""
    row = df.select(count("*"), total(xxhash64(*df.columns).cast("decimal(38,0)"))).first()
    return tuple(row or ())


@contextmanager
def calls(driver: str) -> Iterator[tuple[SparkSession, dict[str, Call]]]:
    """A Spark session and all contenders, ready to be called; everything is stopped in the end."""
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
        spark = spark_session("udo benchmarks", "local[2]", **QUIET, **{_BATCH: ROWS_PER_BATCH, "spark.udo.node": p.node_socket})
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        yield (
            spark,
            {
                "native": native.map_in_arrow,
                "udo": lambda df, operator: platform_calls.through_udo(df, operator, p.registry_url),
                "flight": lambda df, operator: flight.through_flight(df, operator, str(flight_socket)),
                "http": lambda df, operator: http_batch.through_http(df, operator, str(http_socket)),
                "udf_rows": native.udf_rows,
                "udo_unbatched": lambda df, operator: platform_calls.unbatched(df, operator, p.registry_url, p.node_socket),
            },
        )


def check_rows(spark: SparkSession, ways: dict[str, Call], seed: int) -> None:
    """Row by row, in order, on small batches."""
    spark.conf.set(_BATCH, CHECKED_ROWS_PER_BATCH)
    df = events(spark, CHECKED_ROWS, seed)
    for operator in OPERATORS:
        require_equal({name: call(df, operator).toArrow() for name, call in ways.items()}, oracle(df, operator).toArrow())
    spark.conf.set(_BATCH, ROWS_PER_BATCH)


def check_digests(spark: SparkSession, ways: dict[str, Call], rows: dict[str, int], seed: int) -> None:
    """The dropped round: as many rows as will be timed."""
    for operator in OPERATORS:
        wanted = {n: digest(oracle(events(spark, n, seed), operator)) for n in set(rows.values())}
        for name, call in ways.items():
            found = digest(call(events(spark, rows[name], seed), operator))
            if found != wanted[rows[name]]:
                raise InvalidRun(f"{name} ({operator}) answers with count and hash {found}, expected {wanted[rows[name]]}")


def measure(spark: SparkSession, ways: dict[str, Call], rows: dict[str, int], rounds: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Events per second of every round, by operator and contender: A B C A B C ..."""
    rates: dict[str, dict[str, list[float]]] = {operator: {name: [] for name in ways} for operator in OPERATORS}
    for turn in range(rounds):
        say(f"round {turn + 1} of {rounds}")
        for operator in OPERATORS:
            for name, call in ways.items():
                df = call(events(spark, rows[name], seed), operator)
                started = time.perf_counter()
                df.write.format("noop").mode("overwrite").save()
                rates[operator][name].append(rows[name] / (time.perf_counter() - started))
    return rates


def figures(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Medians and ratios of one operator. Ratios are medians of the rounds' own ratios: neighbours share the machine's mood."""

    def ratio(other: str) -> float:
        return round(statistics.median(u / o for u, o in zip(rates["udo"], rates[other], strict=True)), 3)

    return {
        "events_per_s": {name: round(statistics.median(r)) for name, r in rates.items()},
        "udo_vs_native": ratio("native"),
        "udo_vs_flight": ratio("flight"),
        "udo_vs_http": ratio("http"),
        "udo_vs_udf_rows": ratio("udf_rows"),
        "udo_vs_unbatched": ratio("udo_unbatched"),
    }


def run(*, quick: bool, driver: str, seed: int) -> dict[str, Any]:
    """The whole suite; its top-level figures are those of the filter, those of `forward` stand beside them."""
    rows = {c.name: c.quick_rows if quick else c.full_rows for c in CONTENDERS}
    rounds = 3 if quick else 7
    with calls(driver) as (spark, ways):
        say("comparing outputs")
        check_rows(spark, ways, seed)
        check_digests(spark, ways, rows, seed)
        rates = measure(spark, ways, rows, rounds, seed)
    per_operator = {operator: figures(rates[operator]) for operator in OPERATORS}
    return {
        **per_operator["filter"],
        "operator": "filter",
        "forward": per_operator["forward"],
        "driver": driver,
        "rows_per_batch": ROWS_PER_BATCH,
        "row_bytes": ROW_BYTES,
        "rows": rows,
        "rounds": rounds,
        "rates": {o: {n: [round(x) for x in r] for n, r in by.items()} for o, by in rates.items()},
        "guarantees": {c.name: c.guarantees for c in CONTENDERS},
    }


def sections(record: dict[str, Any]) -> list[Section]:
    """For people."""
    forward = record["forward"]
    native_rates = {"filter": record["events_per_s"]["native"], "forward": forward["events_per_s"]["native"]}

    def cells(name: str) -> list[str]:
        mine = {"filter": record["events_per_s"][name], "forward": forward["events_per_s"][name]}
        return [f for o in OPERATORS for f in (readable(mine[o]), f"{mine[o] / native_rates[o]:.3f}")]

    rows = [[c.what, *cells(c.name)] for c in CONTENDERS]
    header = ["called by", "filter/s", "× native", "forward/s", "× native"]
    ratios = [
        [f"UDO against {what}", f"{record[key]:.2f}", f"{forward[key]:.2f}"]
        for what, key in (
            ("mapInArrow", "udo_vs_native"),
            ("Arrow Flight", "udo_vs_flight"),
            ("HTTP per batch", "udo_vs_http"),
            ("row-wise @udf", "udo_vs_udf_rows"),
            ("UDO, one event per frame", "udo_vs_unbatched"),
        )
    ]
    remark = f"{record['rounds']} rounds, {record['rows_per_batch']:,} rows of {record['row_bytes']} bytes a batch, local[2], noop sink."
    return [
        Section("Throughput: medians", header, rows, remark),
        Section("Throughput: median of the rounds' ratios", ["", "filter", "forward"], ratios),
        Section("What each guarantees", ["called by", "guarantees"], [[c.what, c.guarantees] for c in CONTENDERS]),
    ]
