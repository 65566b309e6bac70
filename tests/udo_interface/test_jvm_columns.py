"""The JVM path writes rows to columns by blocks, and reads answers from columns: every type, number of rows and place of nulls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from tests.conftest import bound, require, wait_until
from tests.support.spark_rows import KINDS, arrow_of, rows_of, schema_of
from udo_interface import udo
from udo_interface.spark import jar, jvm_path
from udo_protocol.errors import Unavailable
from udo_protocol.formats.schema import to_ipc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
ANSWERS_EACH = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        yield event
"""


@pytest.fixture(autouse=True)
def there_is_a_jar(spark: SparkSession) -> Iterator[None]:
    try:
        jar.jar(spark.version)
    except Unavailable as e:
        require("java", str(e))
    before = spark.conf.get(BATCH)
    yield
    spark.conf.set(BATCH, str(before))


def test_rows_of_all_types_come_back_whatever_their_number_and_nulls(spark: SparkSession, platform: Platform) -> None:
    """More columns than one word has null bits, and batches that end within a block of rows, at its end and after it."""
    kinds = [*KINDS] * 6
    name = platform.operator(input=arrow_of(kinds), output=arrow_of(kinds))
    for count, batch, nulls in ((1, 10, 0.5), (63, 63, 0.0), (64, 64, 1.0), (65, 1000, 0.1), (500, 129, 0.3), (700, 10_000, 0.01)):
        spark.conf.set(BATCH, str(batch))
        rows = rows_of(kinds, count, nulls, seed=count)
        df = spark.createDataFrame(rows, schema_of(kinds)).coalesce(1)
        found = [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in udo(name, path="jvm")(df).collect()]
        assert [repr(row) for row in found] == [repr(row) for row in rows], f"{count} rows"  # Spark 4.0 collects bytearrays


def test_answers_of_fixed_width_are_rows_like_any_others(spark: SparkSession, platform: Platform) -> None:
    """To the last byte, which joins and groups of Spark may compare."""
    kinds = ["int8", "int16", "int32", "int64", "bool", "float", "double", "date32", "timestamp[us]"] * 8
    name = platform.operator(input=arrow_of(kinds), output=arrow_of(kinds))

    def stored(df: DataFrame) -> bytes:
        [row] = df._jdf.queryExecution().toRdd().collect()
        return bytes(row.getBytes())

    for count, batch, nulls in ((64, 64, 0.5), (500, 129, 0.2), (10, 10, 0.0)):
        spark.conf.set(BATCH, str(batch))
        rows = rows_of(kinds, count, nulls, seed=count)
        df = spark.createDataFrame(rows, schema_of(kinds)).coalesce(1)
        found = [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in udo(name, path="jvm")(df).collect()]
        assert [repr(row) for row in found] == [repr(row) for row in rows], f"{count} rows"  # Spark 4.0 collects bytearrays
    for row in rows:
        df = spark.createDataFrame([row], schema_of(kinds)).coalesce(1)
        assert stored(udo(name, path="jvm")(df)) == stored(df)


@pytest.mark.long
@pytest.mark.parametrize("slots", [1, 3])
def test_rows_that_are_split_by_slot_come_back_with_the_columns_that_are_kept(spark: SparkSession, platform: Platform, slots: int) -> None:
    """With the kept columns the rows have more fields than one word has null bits; the rows that are sent do not."""
    kinds, extra = [*KINDS] * 4, [f"x{i}" for i in range(15)]
    name = f"columns{slots}"
    platform.push(ANSWERS_EACH, name=name, key="c1", input=arrow_of(kinds), output=arrow_of(kinds))
    platform.deploy(name, slots=slots)
    for count, batch in ((1, 10), (300, 77), (900, 10_000)):
        spark.conf.set(BATCH, str(batch))
        rows = [(*row[:1], i % 29, *row[2:]) for i, row in enumerate(rows_of(kinds, count, 0.2, seed=count))]
        kept = F.concat(F.lit("kept "), F.col("c1").cast("string"))
        df = spark.createDataFrame(rows, schema_of(kinds)).select("*", *(kept.alias(x) for x in extra))
        found = udo(name, path="jvm", keep=extra)(df, key="c1").collect()
        assert sorted(repr(tuple(row)) for row in found) == sorted(repr((*row, *[f"kept {row[1]}"] * 15)) for row in rows), f"{count} rows"


@pytest.mark.long
def test_bytes_bound_a_batch_of_text(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator(
        "import pyarrow as pa\nfrom udo_runtime import operator\n@operator\ndef run(b):\n    return pa.record_batch({'n': [b.num_rows]})\n",
        input={"s": "string", "x": "int8"},
        output={"n": "int64"},
    )
    df = spark.range(0, 1000, 1, 1).select(F.expr("repeat('z', 1000)").alias("s"), F.expr("cast(1 as tinyint)").alias("x"))
    key = "spark.sql.execution.arrow.maxBytesPerBatch"
    spark.conf.set(key, "100000")
    try:
        frames = [row.n for row in udo(name, path="jvm")(df).collect()]
    finally:
        spark.conf.unset(key)
    assert sum(frames) == 1000 and max(frames) == 128, f"100 rows have the bytes, and every 64 rows they are counted: {frames}"


@pytest.mark.long
def test_rows_in_another_form_than_sparks_own_are_written_too(spark: SparkSession) -> None:
    jvm_path.calls(spark)
    jvm: Any = spark.sparkContext._jvm
    loader, gateway = spark._jsparkSession.sharedState().jarClassLoader(), spark.sparkContext._gateway
    utils = getattr(jvm.org.apache.spark.sql.util, "ArrowUtils$").__getattr__("MODULE$")
    body = loader.loadClass("org.apache.spark.sql.udo.Body$").getField("MODULE$").get(None)
    schema = body.schema(to_ipc(pa.schema([("c0", pa.int64()), ("c1", pa.string()), ("c2", pa.bool_())])))
    own = utils.rootAllocator().newChildAllocator("test", 0, 1 << 30)
    with_root = jvm.org.apache.arrow.vector.VectorSchemaRoot.create(schema, own)
    one = gateway.new_array(jvm.java.lang.Object, 1)
    one[0] = with_root
    writer = loader.loadClass("org.apache.spark.sql.udo.ColumnWriter").getConstructors()[0].newInstance(one)
    try:
        for i in range(70):
            values = gateway.new_array(jvm.java.lang.Object, 3)
            values[0] = None if i % 3 == 0 else (1 << 40) + i
            values[1] = jvm.org.apache.spark.unsafe.types.UTF8String.fromString(f"t{i}")
            values[2] = i % 2 == 0
            writer.write(jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(values))
        writer.finish()
        found = [tuple(v.getObject(i) for v in with_root.getFieldVectors()) for i in range(with_root.getRowCount())]
        assert [(n, str(s), b) for n, s, b in found] == [(None if i % 3 == 0 else (1 << 40) + i, f"t{i}", i % 2 == 0) for i in range(70)]
    finally:
        with_root.close()


@pytest.mark.long
@pytest.mark.parametrize("kinds", [["int64", "double"], ["int64", "string"]], ids=["fixed", "text"])
def test_a_thread_that_reads_on_when_its_task_ends_frees_what_it_reads(spark: SparkSession, platform: Platform, kinds: list[str]) -> None:
    """TRANSFORM reads its input in a thread of its own, and LIMIT ends the task while that thread is still reading."""
    jvm_path.calls(spark)
    jvm: Any = spark.sparkContext._jvm
    allocator = getattr(jvm.org.apache.spark.sql.util, "ArrowUtils$").__getattr__("MODULE$").rootAllocator()
    name = platform.operator(input=arrow_of(kinds), output=arrow_of(kinds))
    before, spread = allocator.getAllocatedMemory(), "cast(id as double)" if kinds[1] == "double" else "repeat(cast(id as string), 20)"
    df = spark.range(0, 400_000, 1, 1).select(F.col("id").alias("c0"), F.expr(spread).alias("c1"))
    udo(name, path="jvm")(df).createOrReplaceTempView("answers")
    for n in range(12):
        rows = spark.sql(f"select transform(c0, c1) using 'cat' as (a, b) from answers limit {1 + 5_000 * n}").collect()
        assert [row.a for row in rows] == [str(i) for i in range(len(rows))]
    wait_until(lambda: allocator.getAllocatedMemory() == before, 30, "the buffers to be freed")


@pytest.mark.long
def test_buffers_are_freed_once_by_whoever_uses_them_last(spark: SparkSession) -> None:
    jvm_path.calls(spark)
    jvm: Any = spark.sparkContext._jvm
    loader, gateway = spark._jsparkSession.sharedState().jarClassLoader(), spark.sparkContext._gateway

    def function(of: Any, method: str, returns: Any) -> Any:
        """A Scala function without arguments that calls the object's method."""
        types = jvm.java.lang.invoke.MethodType.methodType(returns)
        handle = jvm.java.lang.invoke.MethodHandles.publicLookup().findVirtual(of.getClass(), method, types).bindTo(of)
        supplier = jvm.java.lang.Class.forName("java.util.function.Supplier")
        made = jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(supplier, handle)
        return getattr(jvm.scala.jdk, "FunctionWrappers$FromJavaSupplier")(made)

    freed, leave = (jvm.java.util.concurrent.CountDownLatch(n) for n in (2, 1))
    arguments = gateway.new_array(jvm.java.lang.Object, 1)
    arguments[0] = function(freed, "countDown", jvm.java.lang.Void.TYPE)
    in_use = loader.loadClass("org.apache.spark.sql.udo.InUse").getConstructors()[0].newInstance(arguments)
    looks, stays = function(freed, "getCount", jvm.java.lang.Long.TYPE), function(leave, "await", jvm.java.lang.Void.TYPE)
    assert in_use.apply(looks) == 2

    def in_java(what: str) -> bool:
        """Whether a thread is there."""
        stacks = jvm.java.lang.Thread.getAllStackTraces().values()
        return any(what in str(frame) for stack in stacks for frame in stack)

    user = threading.Thread(target=in_use.apply, args=(stays,))
    user.start()
    wait_until(lambda: in_java("InUse.apply"), 20, "the thread to use the buffers")
    in_use.end()
    assert freed.getCount() == 2, "they are in use"
    leave.countDown()
    user.join(bound(20))
    assert freed.getCount() == 1
    in_use.end()
    assert freed.getCount() == 1
    with pytest.raises(Py4JJavaError, match="the task has ended"):
        in_use.apply(looks)
