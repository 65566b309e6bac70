"""Rehearsal: an operator in a process of its own answers its package's sample events before it is used; nothing of it remains."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from udo_runtime.child import rehearsal
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context
from udo_runtime.state.session import Session

from tests.cli.conftest import Shell
from tests.conftest import wait_until
from tests.operators import child
from udo_protocol.errors import OperatorError
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header

IN, OUT = pa.schema([("a", pa.int64())]), pa.schema([("b", pa.int64())])
MANIFEST = """
name = "rehearsing"
version = "1"
entry = "op:run"
{more}
[input]
a = "int64"
[output]
b = "int64"
"""
CODE = """
from udo_runtime import operator
@operator
def run(batch):
    print("called with", batch.column("a").to_pylist()[:3])
    return {"b": batch.column("a")}
"""
Make = Callable[..., ChildProcessor]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """made(1, 2) -> a processor, not yet open, with tests/operators/child.py as its process, which rehearses with these events."""
    there: list[ChildProcessor] = []

    def make(*values: object, keyed: dict[str, Any] | None = None, open_timeout_s: float = 60.0, **env: str) -> ChildProcessor:
        file = tmp_path / "events.json"
        file.write_text(json.dumps([{"a": v} for v in values]))
        environment = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PATH": os.environ["PATH"], **env}
        launch = Launch(
            (sys.executable, child.__file__),
            str(tmp_path),
            str(tmp_path),
            environment,
            open_timeout_s=open_timeout_s,
            rehearse=str(file),
        )
        there.append(ChildProcessor(launch, (IN, OUT), keyed, Context("t", "1")))
        return there[-1]

    yield make
    for processor in there:
        processor.close()


def written(processor: ChildProcessor) -> str:
    process = processor._child._process
    assert process is not None
    return process.last_lines


def test_samples_are_rehearsed_as_they_are_and_then_in_larger_frames(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_MOST_S", 60.0)  # a slow machine's rehearsal would end before its larger frames
    p = made(1, 2)
    p.open()
    wait_until(lambda: "rehearse 1024 [1, 2, 1]" in written(p), 20, "the last rehearsals to be read")
    assert "started\nrehearse 2 [1, 2]\nrehearse 4 [1, 2, 1]" in written(p) and "data" not in written(p)
    assert p.named(pa.record_batch({"a": [7]}, schema=IN)).column("b").to_pylist() == [8]


def test_what_was_rehearsed_has_left_no_state(made: Make) -> None:
    p = made(7, 8, 7, keyed={"columns": ["a"]})
    p.open()
    keyed, session = p.keyed(KeyedConfig(("a",))), Session("s")
    header = Header(label=Label(run=1, epoch=0, attempt=1), groups=[0])
    done = keyed.events(session, header, pa.record_batch({"a": [7, 7]}, schema=IN), pa.array([0, 0], pa.int32()))
    assert done is not None and done.answer.column("b").to_pylist() == [1, 2]


def test_what_an_operator_keeps_in_variables_of_its_own_stays_after_the_rehearsal(tmp_path: Path) -> None:
    shell, made = Shell(tmp_path / "home"), tmp_path / "rehearsing"
    made.mkdir()
    kept = CODE.replace("@operator", "seen = []\n@operator").replace('"b": batch.column("a")', '"b": [len(seen)] * len(batch)')
    (made / "op.py").write_text(kept.replace("    print", "    seen.extend(batch.column('a').to_pylist())\n    print"))
    (made / "operator.toml").write_text(MANIFEST.format(more='rehearse = "samples.json"\nisolation = "process"'))
    (made / "samples.json").write_text('[{"a": 3}]')
    (made / "events.json").write_text('[{"a": 1}]')
    [answer] = shell("test", made, "--json").json["answers"]
    assert answer["b"] > 2, "it has seen the sample and its frames of samples, and then the event"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (child.RAISES, r'it fails on its sample events \(\{"a": 101\}\): TestError: 101 is not liked'),
        (child.EXITS, "ended with exit status 3"),
        (child.HANGS, r"hung: it did not answer in time, 4 s of 5 s \(limits.open_timeout_s"),
        (child.LIES_BYTES, "broke the operator protocol: its table ROWS"),
        (child.LIES_ID, "broke the operator protocol: expected a reply to request"),
        ("text", "its sample events to rehearse: events.json"),
    ],
)
def test_an_operator_that_fails_in_its_rehearsal_does_not_become_ready(made: Make, value: object, says: str) -> None:
    with pytest.raises(ProcessingError, match=says):
        made(1, value, open_timeout_s=5.0 if value == child.HANGS else 60.0).open()


def test_a_keyed_rehearsal_is_validated_as_any_answer(made: Make) -> None:
    with pytest.raises(ProcessingError, match="a key that is none of the 1"):
        made(child.LIES_KEY, keyed={"columns": ["a"]}).open()


def test_an_operator_that_cannot_rehearse_is_refused(made: Make) -> None:
    with pytest.raises(OperatorError, match="asks for rehearse, which its code lacks"):
        made(1, CAPABILITIES="keyed").open()


def test_a_check_before_a_push_rehearses_nothing(made: Make) -> None:
    made(child.RAISES).check()


@pytest.mark.parametrize("what", ["nothing", "a link", "a pipe", "too much", "no events", "no JSON"])
def test_samples_are_read_from_a_file_of_the_package_alone(made: Make, tmp_path: Path, what: str) -> None:
    p, file = made(1), tmp_path / "events.json"
    file.rename(tmp_path / "elsewhere")
    match what:
        case "a link":
            file.symlink_to(tmp_path / "elsewhere")
        case "a pipe":
            os.mkfifo(file)
        case "too much":
            file.write_text("[" + '{"a": 1},' * 200_000 + '{"a": 1}]')
        case "no events":
            file.write_text("[]")
        case "no JSON":
            file.write_text("[" * 100_000)
    with pytest.raises(ProcessingError, match="its sample events to rehearse: "):
        p.open()


@pytest.mark.long
def test_a_push_checks_the_samples_and_udo_test_rehearses(tmp_path: Path) -> None:
    shell, made = Shell(tmp_path / "home"), tmp_path / "rehearsing"
    made.mkdir()
    (made / "op.py").write_text(CODE)
    (made / "operator.toml").write_text(MANIFEST.format(more='rehearse = "samples.json"'))
    assert "rehearse: only for an operator in a process of its own" in shell("push", made, "--dry-run", code=2).err
    (made / "operator.toml").write_text(MANIFEST.format(more='rehearse = "samples.json"\nisolation = "process"'))
    assert "names samples.json, which is no file that is packed" in shell("push", made, "--dry-run", code=2).err
    (made / "samples.json").write_text('[{"b": 3}]')
    assert "samples.json: " in shell("push", made, "--dry-run", code=4).err
    (made / "samples.json").write_text('{"a": 3}\n{"a": 4}')
    shell("push", made, "--dry-run")
    (made / "events.json").write_text('[{"a": 1}]')
    done = shell("test", made, "--json")
    assert done.json["answers"] == [{"b": 1}]
    assert done.err.index("called with [3, 4]") < done.err.index("called with [1]")
