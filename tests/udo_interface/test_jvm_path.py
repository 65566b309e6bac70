"""Calls that the executor's JVM makes itself: the plan shows the path, and calls that it cannot make are refused or made in Python."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tests.conftest import bound, require
from tests.support.lanes import opened
from udo_interface import udo
from udo_interface.spark import jar, jvm_path, settings
from udo_protocol import errors
from udo_protocol.errors import Unavailable, UsageError
from udo_protocol.node.api import connect_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.udo_interface.conftest import Platform

pytestmark = pytest.mark.long

TYPES = {
    "i": "int64",
    "d": "double",
    "s": "string",
    "b": "bool",
    "t": "timestamp[us]",
    "z": "timestamp[us, tz=UTC]",
    "n": "decimal128(12, 3)",
    "y": "binary",
    "l": "list<int64>",
    "r": "struct<a: int64, b: string>",
    "m": "map<string, double>",
    "e": "date32",
}
ROW = {
    "i": "id",
    "d": "cast(id as double) / 3",
    "s": "if(id % 5 = 0, null, concat('ü', id))",
    "b": "id % 2 = 0",
    "t": "timestamp_micros(1700000000000000 + id)",
    "z": "timestamp_micros(id)",
    "n": "cast(id / 8 as decimal(12, 3))",
    "y": "cast(cast(id as string) as binary)",
    "l": "sequence(id, id + 2)",
    "r": "if(id % 7 = 0, null, named_struct('a', id, 'b', cast(id as string)))",
    "m": "map('x', cast(id as double))",
    "e": "date_add(date'2024-01-01', cast(id % 99 as int))",
}


@pytest.fixture(autouse=True)
def there_is_a_jar(spark: SparkSession) -> None:
    try:
        jar.jar(spark.version)
    except Unavailable as e:
        require("java", str(e))


def plan(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().toString())


@pytest.mark.short
def test_explain_shows_which_path_a_call_takes(spark: SparkSession, platform: Platform) -> None:
    name, df = platform.operator(), spark.range(0, 5)
    assert f"Udo {name} in the JVM [id#" in plan(udo(name, path="jvm")(df)).partition("Physical Plan")[2]
    assert f"Udo {name} in the JVM" in plan(udo(name)(df))
    assert f"Udo {name} in the JVM" in plan(udo(name)(df, path="auto"))
    odd = platform.operator(input={"id": "int64"}, output={"id": "uint32"})
    for called, python in ((name, udo(name, path="python")(df)), (odd, udo(odd)(df)), (odd, udo(odd, path="auto")(df))):
        assert f"MapInArrow {called}(" in plan(python) and "JVM" not in plan(python)


def test_the_setting_chooses_where_the_call_does_not(spark: SparkSession, platform: Platform) -> None:
    name, df = platform.operator(), spark.range(0, 5)
    spark.conf.set(settings.PATH, "jvm")
    try:
        assert "in the JVM" in plan(udo(name)(df))
        assert "MapInArrow" in plan(udo(name, path="python")(df))
        spark.conf.set(settings.PATH, "fast")
        with pytest.raises(UsageError, match=r"spark.udo.path: expected auto, python, jvm, got 'fast'"):
            udo(name)(df)
    finally:
        spark.conf.unset(settings.PATH)
    with pytest.raises(UsageError, match="path= expects auto, python, jvm or None, got 'scala'"):
        udo(name, path="scala")  # type: ignore[arg-type]


def test_what_the_jvm_path_cannot_do_is_refused_with_the_reason(spark: SparkSession, platform: Platform, tmp_path: Path) -> None:
    times = {"at": "timestamp[ns, tz=UTC]"}
    odd = platform.operator("def run(b): return b\n", entry="op:run", input={"id": "int64", **times}, output={"id": "int64"})
    answers = platform.operator(input={"id": "int64"}, output={"id": "uint32"})
    keyed = platform.operator(key="id")
    df = spark.range(0, 5).withColumn("at", F.current_timestamp())
    for refused, why in (
        (lambda: udo(keyed, path="jvm")(df, key="id", store=str(tmp_path)), "with store= Python workers bring the state"),
        (lambda: udo(odd, path="jvm")(df), r"column 'at' would have to become timestamp\[ns, tz=UTC\]"),
        (lambda: udo(answers, path="jvm")(df), "answers with uint32 in column 'id'"),
    ):
        with pytest.raises(UsageError, match=f"cannot be called on the JVM path: .*{why}"):
            refused()


@pytest.mark.short
@pytest.mark.parametrize("told_by", ["spark.udo.node", "spark.executorEnv.UDO_NODE", "UDO_NODE"])
def test_a_node_manager_on_another_host_is_reached_from_python(
    spark: SparkSession, platform: Platform, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    name, df, elsewhere = platform.operator(), spark.range(0, 5), "https://elsewhere:7070"
    spark.conf.unset("spark.udo.node")
    try:
        if told_by == "UDO_NODE":
            monkeypatch.setenv(told_by, elsewhere)
        else:
            spark.conf.set(told_by, elsewhere)
        assert "MapInArrow" in plan(udo(name)(df))
        with pytest.raises(UsageError, match=f"another host \\({elsewhere}\\)"):
            udo(name, path="jvm")(df)
    finally:
        spark.conf.unset("spark.executorEnv.UDO_NODE")
        spark.conf.set("spark.udo.node", platform.node)


def no_jar(_: str) -> Path:
    raise Unavailable("the JVM path does not compile against this Spark: not found: value Oops")


@pytest.mark.short
@pytest.mark.parametrize(("part", "bad"), [("jar", no_jar), ("_CALLS", "org.apache.spark.sql.udo.Oops")], ids=["no jar", "no class"])
def test_without_a_jar_calls_take_the_python_path_and_say_so_once(
    spark: SparkSession,
    platform: Platform,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
    bad: Any,
) -> None:
    name, df = platform.operator(), spark.range(0, 5)
    monkeypatch.setattr(jvm_path, part, bad)
    monkeypatch.setattr(jvm_path, "_attached", {})
    for _ in range(2):
        assert sorted(r.id for r in udo(name)(df).collect()) == list(range(5))
        assert "MapInArrow" in plan(udo(name)(df))
    [warned] = [r.getMessage() for r in caplog.records if r.name == jvm_path.__name__ and r.levelname == "WARNING"]
    assert "Oops" in warned and "spark.udo.path=python" in warned
    with pytest.raises(UsageError, match="cannot be called on the JVM path: .*Oops"):
        udo(name, path="jvm")(df)


def test_an_executor_looks_for_its_node_manager_in_the_home_that_python_takes(platform: Platform, tmp_path: Path) -> None:
    """The user's HOME is not the one that the system knows."""
    name = platform.operator()
    program = f"""
        from udo_interface import udo
        from udo_interface.java import QUIET, spark_session
        spark = spark_session("home", master="local[1]", **QUIET, **{{"spark.udo.registry": {platform.url!r}}})
        spark.sparkContext.setLogLevel("OFF")
        for path in ("jvm", "python"):
            try:
                udo({name!r}, path=path)(spark.range(1)).collect()
            except Exception as e:
                print(path, [part for part in str(e).split() if part.endswith("/.udo/node/node.sock")])
        """
    env = {n: v for n, v in os.environ.items() if not n.startswith("UDO_")} | {"HOME": str(tmp_path)}
    run = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=bound(120), check=False)
    there = str([f"{tmp_path}/.udo/node/node.sock"])
    assert done.stdout.splitlines() == [f"jvm {there}", f"python {there}"], done.stdout + done.stderr[-3000:]


@pytest.mark.long
def test_a_node_manager_that_only_executors_know_to_be_elsewhere_is_an_error_with_the_remedy(platform: Platform) -> None:
    name = platform.operator()
    program = f"""
        import os
        from udo_interface import udo
        from udo_interface.java import QUIET, spark_session
        spark = spark_session("away", master="local[1]", **QUIET, **{{"spark.udo.registry": {platform.url!r}}})
        spark.sparkContext.setLogLevel("OFF")
        del os.environ["UDO_NODE"]  # the JVM has it, and this process, the driver, knows nothing of it
        try:
            udo({name!r})(spark.range(1)).collect()
        except Exception as e:
            print(e)
        """
    env = {n: v for n, v in os.environ.items() if not n.startswith("UDO_")} | {"UDO_NODE": "https://elsewhere:7070"}
    run = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=bound(120), check=False)
    assert "of its own host only, got https://elsewhere:7070" in done.stdout and "set spark.udo.path=python" in done.stdout, done.stderr[
        -3000:
    ]


@pytest.mark.parametrize("rows", [pytest.param(7, id="few"), pytest.param(3_001, id="many")])
def test_values_of_all_types_come_back_as_on_the_python_path(spark: SparkSession, platform: Platform, rows: int) -> None:
    name = platform.operator(input=TYPES, output=TYPES)
    df = spark.range(0, rows, 1, 2).selectExpr(*(f"{expression} as {name}" for name, expression in ROW.items()))
    on_jvm, on_python = (udo(name)(df, path=path) for path in (settings.JVM, settings.PYTHON))
    assert on_jvm.schema == on_python.schema
    found = [r.asDict(recursive=True) for r in on_jvm.orderBy("i").collect()]
    assert found == [r.asDict(recursive=True) for r in on_python.orderBy("i").collect()]
    assert len(found) == rows


def test_an_answer_of_narrower_columns_in_another_order_is_widened_as_on_the_python_path(spark: SparkSession, platform: Platform) -> None:
    """The new version was deployed after the query had been planned."""
    wide = {"id": "int64", "part": "double", "what": "string"}
    answer = """
        import pyarrow as pa
        from udo_runtime import operator
        @operator
        def run(batch):
            n = batch.num_rows
            return {{"what": ["a"] * n, "part": pa.array([{part}] * n, pa.{part_type}()), "id": batch.column("id").cast("{id_type}")}}
        """
    name = platform.operator(answer.format(part="0.5", part_type="float64", id_type="int64"), output=wide)
    narrow = {"what": "string", "part": "float", "id": "int32"}
    platform.push(answer.format(part="0.25", part_type="float32", id_type="int32"), name=name, version="2", output=narrow)
    calls = {path: udo(name)(spark.range(0, 30, 1, 1), path=path) for path in (settings.JVM, settings.PYTHON)}
    assert platform.update(name, "2") == "done"
    found = {path: [tuple(r) for r in df.collect()] for path, df in calls.items()}
    assert found[settings.JVM] == found[settings.PYTHON] == [(i, 0.25, "a") for i in range(30)]


def test_an_answer_of_types_that_spark_does_not_read_is_widened_as_on_the_python_path(spark: SparkSession, platform: Platform) -> None:
    """The new version was deployed after the query had been planned."""
    answer = """
        import pyarrow as pa
        from udo_runtime import operator
        @operator
        def run(batch):
            def all_but_first(values, of):
                return pa.array([None, *values[1:]], of)
            ids = batch.column("id").to_pylist()
            instant = pa.timestamp("{unit}", "UTC")
            moments = [i * {per_second} for i in ids]
            return {{
                "id": batch.column("id"),
                "at": all_but_first(moments, instant),
                "wall": all_but_first(moments, pa.timestamp("{unit}")),
                "u8": all_but_first([i % 256 for i in ids], pa.{u8}()),
                "u16": all_but_first([65_535 - i for i in ids], pa.{u16}()),
                "u32": all_but_first([2**31 + i for i in ids], pa.{u32}()),
                "half": pa.array([i / 4 for i in ids], pa.float32()).cast(pa.{half}()),
                "l": all_but_first([[m, None] * (i % 3) for i, m in zip(ids, moments)], pa.list_(instant)),
                "s": all_but_first([dict(a=m, b=i % 256) for i, m in zip(ids, moments)], pa.struct([{fields}])),
                "m": all_but_first([[("k", i % 256)] * (i % 2) for i in ids], pa.map_(pa.string(), pa.{u8}())),
            }}
        """
    planned = {"unit": "us", "per_second": 10**6, "u8": "int16", "u16": "int64", "u32": "int64", "half": "float64"}
    planned["fields"] = '("a", instant), ("b", pa.int64())'
    narrow = {"unit": "ms", "per_second": 10**3, "u8": "uint8", "u16": "uint16", "u32": "uint32", "half": "float16"}
    narrow["fields"] = '("b", pa.uint8()), ("a", instant)'

    def columns(unit: str, u8: str, u16: str, u32: str, half: str, struct: str) -> dict[str, str]:
        moments = {"at": f"timestamp[{unit}, tz=UTC]", "wall": f"timestamp[{unit}]", "l": f"list<timestamp[{unit}, tz=UTC]>"}
        return {"id": "int64", "u8": u8, "u16": u16, "u32": u32, "half": half, "s": struct, "m": f"map<string, {u8}>", **moments}

    wide = columns("us", "int16", "int64", "int64", "double", "struct<a: timestamp[us, tz=UTC], b: int64>")
    name = platform.operator(answer.format(**planned), output=wide)
    other = columns("ms", "uint8", "uint16", "uint32", "halffloat", "struct<b: uint8, a: timestamp[ms, tz=UTC]>")
    platform.push(answer.format(**narrow), name=name, version="2", output=other)
    calls = {path: udo(name)(spark.range(0, 300, 1, 1), path=path) for path in (settings.JVM, settings.PYTHON)}
    before = calls[settings.PYTHON].collect()
    assert platform.update(name, "2") == "done"
    assert calls[settings.PYTHON].collect() == before
    assert calls[settings.JVM].collect() == before


def test_a_batch_above_the_bound_of_a_frame_travels_in_parts_and_one_event_above_it_is_refused(
    spark: SparkSession, platform: Platform
) -> None:
    name = "small_frames"
    platform.push(
        "from udo_runtime import operator\n@operator\ndef run(b): return b\n", name=name, input={"s": "string"}, output={"s": "string"}
    )
    platform.deploy(name, limits={"frame_bytes": 20_000})
    texts = spark.range(0, 3_000, 1, 1).selectExpr("concat(id, repeat('x', 90)) as s")
    assert udo(name, path="jvm")(texts).collect() == texts.collect()
    with pytest.raises(PySparkException, match=r"one event takes \d+ bytes; the bound is 20000"):
        udo(name, path="jvm")(spark.range(1).selectExpr("repeat('x', 30000) as s")).collect()


def test_a_call_is_part_of_larger_queries_as_any_dataframe_is(spark: SparkSession, platform: Platform) -> None:
    """It is joined with itself, united, cached, counted without its columns, and followed by another call."""
    name = platform.operator()
    df = udo(name, path="jvm")(spark.range(0, 1000, 1, 3))
    assert df.alias("a").join(df.alias("b"), F.col("a.id") == F.col("b.id") + 1).count() == 999
    assert df.union(df).groupBy("id").count().where("count = 2").count() == 1000
    assert df.count() == 1000
    twice = udo(name, path="jvm")(df.where("id % 2 = 0").withColumn("unused", F.lit(1))).cache()
    try:
        assert (twice.count(), twice.agg(F.sum("id")).collect()[0][0]) == (500, sum(range(0, 1000, 2)))
    finally:
        twice.unpersist()


def executed(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Yield, for each call on the JVM path in the last query, the values of its metrics by name, as Spark's UI shows them."""
    store = spark._jsparkSession.sharedState().statusStore()
    last = max(range(store.executionsCount()), key=lambda i: store.executionsList().apply(i).executionId())
    execution = store.executionsList().apply(last).executionId()
    values, nodes = store.executionMetrics(execution), store.planGraph(execution).allNodes()
    for n in (nodes.apply(i) for i in range(nodes.size())):
        if "in the JVM" in n.name():
            metrics = [n.metrics().apply(i) for i in range(n.metrics().size())]
            yield {m.name(): values.apply(m.accumulatorId()) for m in metrics}


def test_the_metrics_of_a_call_count_rows_and_frames(spark: SparkSession, platform: Platform) -> None:
    even = "import pyarrow.compute as pc\nfrom udo_runtime import operator\n@operator\n"
    name = platform.operator(even + "def run(b): return b.filter(pc.equal(pc.bit_wise_and(b.column('id'), 1), 0))\n")
    udo(name, path="jvm")(spark.range(0, 25_000, 1, 1)).collect()
    [shown] = executed(spark)
    told = {what: shown[what].replace(",", "") for what in ("number of rows sent", "number of output rows", "number of frames sent")}
    assert told == {"number of rows sent": "25000", "number of output rows": "12500", "number of frames sent": "3"}
    assert "time waiting for answers" in shown and "data sent to the operator" in shown


def test_the_plan_and_what_spark_logs_of_it_hold_no_password(
    spark: SparkSession, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = platform.operator()
    df = udo(name, path="jvm")(spark.range(0, 10, 1, 1))
    df.collect()
    queue = opened(connect_node(platform.node), name, "looking").slots[0]
    assert len(queue.password) >= 16
    told = [plan(df), df._jdf.queryExecution().executedPlan().toJSON(), df._jdf.queryExecution().logical().treeString()]
    store = spark._jsparkSession.sharedState().statusStore().executionsList()
    told += [store.apply(i).physicalPlanDescription() for i in range(store.size())]
    assert name in told[0]
    for text in told:
        assert queue.password not in text and "password" not in re.sub(r"looking.*", "", text).lower()


def test_a_lane_on_the_jvm_path_ends_with_its_task_and_leaves_no_buffer(spark: SparkSession, platform: Platform) -> None:
    name = platform.operator()
    jvm: Any = spark.sparkContext._jvm
    root = getattr(jvm.org.apache.spark.sql.util, "ArrowUtils$")
    allocator = getattr(root, "MODULE$").rootAllocator()
    before = allocator.getAllocatedMemory()
    for df in (spark.range(0, 60_000, 1, 2), spark.range(0, 900_000, 1, 2)):
        udo(name, path="jvm")(df).limit(3).collect()
        udo(name, path="jvm")(df).count()
    assert allocator.getAllocatedMemory() == before


@pytest.mark.short
def test_a_server_that_accepts_no_connection_is_waited_for_until_the_deadline(spark: SparkSession, tmp_path: Path) -> None:
    jvm_path.calls(spark)
    jvm: Any = spark.sparkContext._jvm
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    streams = loader.loadClass("org.apache.spark.sql.udo.SocketStream$").getField("MODULE$").get(None)
    with socket.socket(socket.AF_UNIX) as server, ExitStack() as queue:
        server.bind(path := str(tmp_path / "s"))
        server.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                client = queue.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(path)
        with pytest.raises(Py4JJavaError, match="SocketTimeoutException"):
            streams.unix(path, jvm.java.lang.System.nanoTime() + 10**8)
        server.accept()[0].close()
        streams.unix(path, jvm.java.lang.System.nanoTime() + 10**11).close()


@pytest.mark.short
def test_types_are_compared_without_zones_and_offsets_widths() -> None:
    import pyarrow as pa

    for same, as_that in (
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.large_string(), pa.string()),
        (pa.list_(pa.timestamp("us")), pa.list_(pa.field("element", pa.timestamp("us", "UTC")))),
        (pa.struct([("a", pa.large_binary())]), pa.struct([("a", pa.binary())])),
        (pa.map_(pa.string(), pa.timestamp("us")), pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
    ):
        assert jvm_path.layout(same) == jvm_path.layout(as_that)
    for one, other in ((pa.timestamp("ms"), pa.timestamp("us")), (pa.int32(), pa.int64()), (pa.uint32(), pa.int32())):
        assert jvm_path.layout(one) != jvm_path.layout(other)


@pytest.mark.short
def test_every_error_of_the_jvm_path_has_a_class_in_python() -> None:
    sources = "".join(source.read_text() for source in jar.SOURCES.glob("*.scala"))
    kinds = dict(re.findall(r'"(\w+)" -> "(\w+)"', (jar.SOURCES / "UdoException.scala").read_text()))
    assert set(re.findall(r'byCode\(\s*"(\w+)"', sources)) <= {*kinds, errors.UdoError.code}
    assert [kind for kind in kinds.values() if not hasattr(errors, kind)] == []


@pytest.mark.short
def test_a_jar_is_named_after_its_sources_and_the_minor_version_of_spark(tmp_path: Path) -> None:
    (tmp_path / "A.scala").write_text("object A")
    first = jar.name("4.3.0", tmp_path)
    assert first == jar.name("4.3.7", tmp_path) != jar.name("4.2.0", tmp_path)
    assert first.startswith("udo-spark-4.3-") and first.endswith(".jar")
    (tmp_path / "A.scala").write_text("object B")
    assert jar.name("4.3.0", tmp_path) != first


def test_sources_that_do_not_compile_are_told_with_what_the_compiler_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "A.scala").write_text('object A { val x: Int = "no" }')
    monkeypatch.setattr(jar, "SOURCES", tmp_path)
    with pytest.raises(Unavailable, match=r"does not compile against this Spark.*type mismatch"):
        jar.build(tmp_path / "a.jar")
    assert [p.name for p in tmp_path.iterdir()] == ["A.scala"], "no draft is left"


@pytest.mark.short
def test_processes_with_one_number_in_containers_that_share_a_cache_compile_each_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts: list[Path] = []

    def compiled(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        drafts.append(Path(command[command.index("-d") + 1]))
        drafts[-1].write_text("jar")
        if len(drafts) == 1:
            jar.build(target)  # the other process builds it meanwhile
        return subprocess.CompletedProcess(command, 0, "", "")

    target = tmp_path / "a.jar"
    monkeypatch.setattr(jar, "java_home", lambda _: Path("/java"))
    monkeypatch.setattr(subprocess, "run", compiled)
    jar.build(target)
    assert len(set(drafts)) == 2 and [p.name for p in tmp_path.iterdir()] == ["a.jar"]


@pytest.mark.short
def test_another_version_of_spark_gets_a_jar_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    monkeypatch.setattr(jar, "build", lambda target, env=None: (built.append(target), target.parent.mkdir(parents=True), target.touch()))
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    found = jar.jar("9.9.1", env)
    assert found.parent == tmp_path / "udo-spark" / "jvm" and found.name == jar.name("9.9.0")
    assert jar.jar("9.9.2", env) == found and built == [found], "compiled once"


@pytest.mark.short
def test_a_cache_that_cannot_be_written_is_told_with_the_remedy() -> None:
    with pytest.raises(Unavailable, match=r"for Spark 9.9.1 cannot be kept: .*/dev/null.*set XDG_CACHE_HOME"):
        jar.jar("9.9.1", {"XDG_CACHE_HOME": "/dev/null"})
