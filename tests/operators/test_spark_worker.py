"""Workers written for Spark's protocol for external UDFs run as operators; the messages are from PySpark's jars."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyspark
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context
from udo_runtime.served import start

from tests.cli.conftest import Shell
from tests.conftest import require, wait_until

pytestmark = pytest.mark.long
HERE = Path(__file__).parent / "spark_worker"
ADAPTER = Path(__file__).parents[2] / "runtimes" / "spark_worker"
ONE = pa.schema([("n", pa.int64())])
OPERATOR = """
import sys
import pyarrow as pa
from udo_spark_worker import SparkWorker

class Worker(SparkWorker):
    command = (sys.executable, "strict.py")
    payload = "udf.py"
    format = "python-source"
    batches = {batches!r}
    output = {output}
    start_s = {start_s}
"""
DOUBLE = "def run(batch):\n    yield type(batch).from_pylist([{'n': 2 * r['n']} for r in batch.to_pylist()], schema=batch.schema)\n"
Make = Callable[..., ChildProcessor]


@pytest.fixture(scope="module")
def spark_protos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Spark's own .proto files, and of the Python code generated from them."""
    folder = tmp_path_factory.mktemp("protos")
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("spark-udf-worker-proto_*.jar"))
    if not jars:
        require("Spark's protocol of external UDFs", f"PySpark {pyspark.__version__} does not bring it; 4.3 does")
    with zipfile.ZipFile(jars[0]) as jar:
        names = [name for name in jar.namelist() if name.endswith(".proto") and "/" not in name]
        jar.extractall(folder, names)
    made = ["--include_imports", f"--descriptor_set_out={folder}/all.bin", f"--python_out={folder}"]
    assert protoc.main(["protoc", f"-I{folder}", *made, *names]) == 0
    return folder


@pytest.fixture
def made(tmp_path: Path, spark_protos: Path) -> Iterator[Make]:
    """Start an operator whose worker runs this source. Its files in the folder for temporary files must be gone at the end."""
    started, temporary = list[ChildProcessor](), Path(tempfile.gettempdir())
    before = set(temporary.glob("udf-*"))

    def make(source: str, *, batches: str = "messages", output: str = "None", start_s: float = 30.0, worker: str = "") -> ChildProcessor:
        folder = tmp_path / f"op{len(started)}"
        folder.mkdir()
        for file in (*spark_protos.glob("*_pb2.py"), HERE / "strict.py"):
            shutil.copy(file, folder)
        (folder / "op.py").write_text(OPERATOR.format(batches=batches, output=output, start_s=start_s))
        (folder / "udf.py").write_text(source)
        if worker:
            (folder / "strict.py").write_text(worker)
        env = {**os.environ, "UDO_PYTHONPATH": os.pathsep.join([str(folder), str(ADAPTER), *filter(None, sys.path)])}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = (sys.executable, "-I", "-S", start.__file__, "op:Worker", "t", "1")
        started.append(ChildProcessor(Launch(command, str(folder), str(folder), env), (ONE, ONE), None, Context("t", "1")))
        return started[-1]

    yield make
    for p in started:
        p.close()
    assert set(temporary.glob("udf-*")) == before


def workers(p: ChildProcessor) -> list[psutil.Process]:
    """The worker's process, while it lives."""
    process = p._child._process
    assert process is not None
    return [c for c in psutil.Process(process.pid).children(recursive=True) if "strict.py" in c.cmdline()]


def answers(p: ChildProcessor, *values: int) -> list[int]:
    batch = pa.record_batch([pa.array(values, pa.int64())], schema=ONE)
    return list(p.once(batch).column("n").to_pylist())


@pytest.mark.parametrize(("batches", "output"), [("messages", 'pa.schema([("n", pa.int64())])'), ("stream", "None")])
def test_a_worker_runs_unchanged_however_it_takes_and_answers_batches(made: Make, batches: str, output: str) -> None:
    p = made(DOUBLE, batches=batches, output=output)
    p.open()
    for values in ((1, 2, 3), (), tuple(range(300_000))):  # the last one is larger than gRPC's own limit for a message
        assert answers(p, *values) == [2 * v for v in values]


def test_a_worker_may_answer_several_batches_or_none_and_keeps_nothing_between_frames(made: Make) -> None:
    p = made("seen = []\ndef run(batch):\n    seen.append(1)\n    yield from [batch] * (2 * len(seen) * batch.column(0)[0].as_py())\n")
    p.open()
    assert answers(p, 0, 1) == []
    assert answers(p, 1) == [1, 1]
    assert answers(p, 1) == [1, 1]


def test_a_large_payload_travels_in_chunks(made: Make) -> None:
    p = made(f"LARGE = {'x' * 5_000_000!r}\n{DOUBLE.replace('2 * r', 'len(LARGE) * r')}")
    p.open()
    assert answers(p, 3) == [15_000_000]


def test_what_user_code_raises_reaches_the_user_with_class_and_traceback_and_the_worker_goes_on(made: Make) -> None:
    p = made("def run(batch):\n    if 13 in batch.column('n').to_pylist():\n        raise LookupError('thirteen')\n    yield batch\n")
    p.open()
    there = workers(p)
    with pytest.raises(ProcessingError, match="LookupError: thirteen") as e:
        answers(p, 12, 13)
    assert 'File "udf.py", line 3, in run' in e.value.traceback
    assert answers(p, 12) == [12] and workers(p) == there


def test_a_udf_that_cannot_be_loaded_fails_its_frames_with_the_reason(made: Make) -> None:
    p = made("import a_module_that_is_not_there\n")
    p.open()
    with pytest.raises(ProcessingError, match="ModuleNotFoundError: No module named 'a_module_that_is_not_there'"):
        answers(p, 1)


def test_an_answer_that_is_no_arrow_data_is_refused(made: Make) -> None:
    p = made("def run(batch):\n    yield b'nonsense'\n")
    p.open()
    with pytest.raises(ProcessingError, match="the worker answered 8 bytes that are no Arrow data"):
        answers(p, 1)


@pytest.mark.parametrize(
    ("source", "says"), [("os._exit(3)", "ended with exit status 3"), ("os.kill(os.getpid(), 9)", r"killed by signal 9 \(SIGKILL\)")]
)
def test_a_worker_that_dies_costs_its_frame_and_both_are_started_again(made: Make, source: str, says: str) -> None:
    p = made(f"import os\ndef run(batch):\n    if batch.column('n')[0].as_py() == 13:\n        {source}\n    yield batch\n")
    p.open()
    with pytest.raises(ProcessingError, match=says):
        answers(p, 13)
    assert answers(p, 1) == [1]


def test_a_worker_that_is_killed_from_outside_is_not_noticed_by_its_events(made: Make) -> None:
    p = made(DOUBLE)
    p.open()
    (worker,) = workers(p)
    worker.kill()
    assert answers(p, 1, 2) == [2, 4]


def test_a_worker_that_does_not_start_is_named_with_what_it_did(made: Make) -> None:
    p = made(DOUBLE, worker="raise SystemExit(5)")
    with pytest.raises(ProcessingError, match="ended with exit status 5 before it answered on the socket of --connection"):
        p.open()
    p = made(DOUBLE, start_s=0.5, worker="import time; time.sleep(60)")
    with pytest.raises(ProcessingError, match=r"did not answer on the socket of --connection within 0.5 s"):
        p.open()


def test_nothing_of_a_worker_is_left_when_its_operator_ends(made: Make) -> None:
    p = made(DOUBLE)
    p.open()
    (worker,) = workers(p)
    p.close()
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, 10, "the worker's end")


@pytest.mark.short
def test_every_field_that_the_adapter_knows_is_spark_s(spark_protos: Path) -> None:
    theirs = fields(descriptor_pb2.FileDescriptorSet.FromString((spark_protos / "all.bin").read_bytes()))
    own = spark_protos / "own.bin"
    assert protoc.main(["protoc", f"-I{ADAPTER}", f"--descriptor_set_out={own}", "udo_spark_worker/udf_worker.proto"]) == 0
    ours = fields(descriptor_pb2.FileDescriptorSet.FromString(own.read_bytes()))
    assert len(ours) > 40
    assert {name: (of, theirs.get(name)) for name, of in ours.items() if theirs.get(name) != of} == {}


def fields(files: descriptor_pb2.FileDescriptorSet) -> dict[str, tuple[Any, ...]]:
    """ "Message.field" -> number, type, label and oneof; "Enum.VALUE" -> number."""
    found: dict[str, tuple[Any, ...]] = {}
    for file in files.file:
        for message in file.message_type:
            for f in message.field:
                oneof = message.oneof_decl[f.oneof_index].name if f.HasField("oneof_index") else ""
                found[f"{message.name}.{f.name}"] = (f.number, f.type, f.label, f.type_name, oneof)
        for enum in file.enum_type:
            found |= {f"{enum.name}.{value.name}": (value.number,) for value in enum.value}
    return found


def test_a_fresh_project_for_a_worker_runs_in_the_sandbox(tmp_path: Path) -> None:
    shell, folder = Shell(tmp_path / "home"), tmp_path / "score"
    shell("init", folder, "--style", "spark-worker")
    assert [a["flagged"] for a in shell("test", folder, "--json").json["answers"]] == [False, True, False]
