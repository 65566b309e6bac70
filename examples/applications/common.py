"""Code that the applications share: a platform and Spark for the length of a run, a table as a stream, a drawing as SVG."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from udo_cli.demo import platform as demo_platform
from udo_cli.demo import spark as demo_spark
from udo_cli.home import Home
from udo_cli.platform import local, remote, throwaway
from udo_protocol.errors import NotFound, SchemaError, UdoError, Unavailable
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, SparkSession

Rows = list[dict[str, Any]]
# A first start on a busy machine; on an idle one all operators of an application answer within two seconds.
ANSWERING_TIMEOUT_S = 60.0


class Running(NamedTuple):
    """A platform with an application's operators, and a Spark session that uses it. Everything ends with the run."""

    spark: SparkSession
    registry: Registry
    home: Home
    work: Path


def arguments(what: str, rows: int, **flags: str) -> argparse.Namespace:
    """Parse the command line that all applications have; `rows`: how many to generate by default; `flags`: further switches."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="PATH", help="a file with real data; generated data by default")
    parser.add_argument("--rows", type=int, help=f"the first rows of the file; without a file, how many to generate ({rows:,})")
    parser.add_argument("--seed", type=int, default=7, help="of the generator (7)")
    parser.add_argument("--output", type=Path, metavar="FILE.svg", help="draw the result")
    for name, text in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    given = parser.parse_args()
    given.rows = given.rows or (None if given.data else rows)
    return given


def run(main: Callable[[], bool]) -> int:
    """Return the exit status: 0 if the answers match the oracle's. A platform error is printed without a traceback."""
    try:
        with local.interruptible():
            return 0 if main() else 1
    except UdoError as e:
        say(f"error: {e}")
    except KeyboardInterrupt:
        say("interrupted")
    return 1


def say(text: str) -> None:
    """Print progress; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def verdict(same: bool, what: str) -> bool:
    """Print the result, and whether it matches the oracle's."""
    print(f"{what}: {'as' if same else 'NOT AS'} the oracle computes them")
    return same


@contextmanager
def platform(folder: Path) -> Iterator[Running]:
    """Start a registry, a node manager and Spark, with all operators of the application in `folder`."""
    with throwaway.workspace("udo-app-") as work, ExitStack() as parts:
        home = Home(work / "udo")
        started = parts.enter_context(throwaway.platform(home, local.UpOptions(node="local"), say))
        registry = parts.enter_context(Registry(started.registry, home.token_file.read_text("utf-8").strip(), "example"))
        say(f"deployed {', '.join(deploy(registry, folder, home.dependencies))}")
        say("starting Spark")
        spark = parts.enter_context(demo_spark.session(started.registry, started.node, work))
        yield Running(spark, registry, home, work)


def operators(folder: Path) -> list[Path]:
    """The folders of an application's operators."""
    return sorted(path.parent for path in folder.glob("*/operator.toml"))


def deploy(registry: Registry, folder: Path, cache: Path) -> list[str]:
    """Push and deploy all operators of an application, each under its own name. Returns the names once all operators answer."""
    names = []
    for path in operators(folder):
        name, _, version = demo_platform.push(registry, path, cache).partition("@")
        registry.deploy(name, name, version)
        names.append(name)
    for name in names:  # they start at the same time
        remote.await_answering(registry, name, ANSWERING_TIMEOUT_S, lambda _: None)
    return names


def read(path: Path, schema: pa.Schema, rows: int | None) -> pa.Table:
    """Read the columns of `schema`, first `rows`, from a Parquet file. Times without a zone are UTC where `schema` wants a zone."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    there = pq.read_schema(path).names
    if missing := [name for name in schema.names if name not in there]:
        raise SchemaError(f"{path}: no columns {', '.join(missing)}; there are: {', '.join(there)}")
    return pq.read_table(path, columns=schema.names).slice(0, rows).cast(schema)


def stream(spark: SparkSession, table: pa.Table, folder: Path, batch_rows: int) -> DataFrame:
    """`table` as a stream whose micro-batches have `batch_rows` rows each, in the table's order.

    Each file is a micro-batch. One task reads it (Spark splits none below 4 MB), and a repartition by key keeps the order within a key.
    """
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, table.num_rows, batch_rows)):
        path = folder / f"{number:06}.parquet"
        pq.write_table(table.slice(first, batch_rows), path)
        os.utime(path, (1_600_000_000 + number,) * 2)  # Spark reads files in the order of their modification times
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def drain(stream: DataFrame, checkpoint: Path, each: Callable[[DataFrame, int], None]) -> None:
    """Run a query over all that the stream has now; `each` gets every micro-batch."""
    query = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def collected(answers: DataFrame, checkpoint: Path, after: Callable[[int], None] = lambda epoch: None) -> Rows:
    """All answers of a query, micro-batch by micro-batch; `after` is called with the number of each answered micro-batch."""
    rows: Rows = []

    def gather(batch: DataFrame, epoch: int) -> None:
        rows.extend(batch.toArrow().to_pylist())
        after(epoch)

    drain(answers, checkpoint, gather)
    return rows


@contextmanager
def drawing(path: Path, title: str) -> Iterator[Figure]:
    """A figure to draw on, then written as SVG: the same bytes for the same figure."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise Unavailable("drawing takes matplotlib, which is not installed: pip install matplotlib, or leave out --output") from None
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "udo", "font.size": 9}):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        figure.suptitle(title)
        yield figure
        figure.savefig(path, format="svg", metadata={"Date": None})
    say(f"drawn: {path}")
