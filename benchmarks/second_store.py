"""The cost of a second state store to a streaming query: micro-batches of a running count per key, without and with one.

The store is beside the checkpoint, on the same disk. Both queries read the same parquet files, one per micro-batch; the first one,
which holds every key, is not counted. Micro-batches that write deltas are reported apart from those that write the full state.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.bringup import platform, say
from benchmarks.rules import InvalidRun
from benchmarks.state import finish, write
from benchmarks.tables import Section
from udo_interface import udo
from udo_interface.java import QUIET, spark_session
from udo_interface.store.store import FULL_EVERY, parsed

PARTITIONS = 2
FULL, QUICK = {"keys": (5_000, 200_000), "rows": 20_000, "batches": 21}, {"keys": (5_000, 50_000), "rows": 5_000, "batches": 11}


def durations(spark: SparkSession, registry: str, source: Path, stored: bool) -> tuple[list[float], dict[str, list[int]]]:
    """Run a query; return Spark's ms for each micro-batch, and the sizes in bytes of the store's files by kind."""
    with tempfile.TemporaryDirectory(prefix="udo-bench-ckpt-") as checkpoint:
        stream = spark.readStream.schema("id bigint, card bigint").option("maxFilesPerTrigger", 1).parquet(str(source))
        counted = udo("count", key="card", store=f"{checkpoint}/udo" if stored else None, registry=registry, path="python")(stream)
        query = counted.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        finish(query)
        sizes: dict[str, list[int]] = {"full": [], "delta": []}
        for path in Path(checkpoint).glob("udo/*/*/*/*"):
            if (file := parsed(str(path))) is not None:
                sizes["full" if file.full else "delta"].append(path.stat().st_size)
        return [p["durationMs"]["addBatch"] for p in query.recentProgress if p["numInputRows"]], sizes


def run(*, quick: bool, driver: str, seed: int) -> dict[str, Any]:
    """Run the suite."""
    scale: dict[str, Any] = QUICK if quick else FULL
    with ExitStack() as stack:
        p = stack.enter_context(platform(driver))
        p.push("count", "1")
        p.deploy("count", "count")
        spark = spark_session(
            "udo benchmarks", "local[2]", **QUIET, **{"spark.sql.shuffle.partitions": PARTITIONS, "spark.udo.node": p.node_socket}
        )
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="udo-bench-store-")))
        found = []
        for keys in scale["keys"]:
            (work / str(keys)).mkdir()
            write(spark, work / str(keys), keys, scale["rows"], scale["batches"], seed)
            if not found:
                say("warming up Spark")
                durations(spark, p.registry_url, work / str(keys), True)
            say(f"{keys} keys")
            without, _ = durations(spark, p.registry_url, work / str(keys), False)
            with_it, sizes = durations(spark, p.registry_url, work / str(keys), True)
            if len(without) != len(with_it):
                raise InvalidRun(f"{len(without)} micro-batches without a store, {len(with_it)} with one")
            kinds = {"delta": [e for e in range(1, len(with_it)) if e % FULL_EVERY], "full": range(FULL_EVERY, len(with_it), FULL_EVERY)}
            found.append(
                {
                    "keys": keys,
                    "without_ms": statistics.median(without[1:]),
                    **{f"{kind}_ms": statistics.median(with_it[e] for e in epochs) for kind, epochs in kinds.items()},
                    **{f"{kind}_bytes": round(statistics.mean(of_kind)) for kind, of_kind in sizes.items()},
                }
            )
    return {"scales": found, "rows": scale["rows"], "batches": scale["batches"], "partitions": PARTITIONS, "driver": driver}


def sections(record: dict[str, Any]) -> list[Section]:
    """The tables of a record."""
    header = ["keys", "no store, ms", "delta, ms", "all, ms", "a file: delta", "all"]
    rows = [
        [f"{s['keys']:,}", *(f"{s[n]:.0f}" for n in ("without_ms", "delta_ms", "full_ms"))]
        + [f"{s[n] / 1000:,.0f} KB" for n in ("delta_bytes", "full_bytes")]
        for s in record["scales"]
    ]
    remark = f"Medians of {record['batches']} micro-batches of {record['rows']:,} events, {record['partitions']} partitions."
    return [Section("A micro-batch without and with a second state store", header, rows, remark)]
