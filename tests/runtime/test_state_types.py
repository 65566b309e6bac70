"""Declared types of a keyed state: another type fails its event, in the engine's process and behind the operator protocol."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from udo_runtime.child.process import Launch
from udo_runtime.child.processor import ChildProcessor
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import pack, unpack
from udo_runtime.state.groups import Group
from udo_runtime.state.groups import Label as At
from udo_runtime.state.session import Session
from udo_runtime.state.versions import Versions

from tests.support.wrongly_typed import Wrong, WrongFrames
from udo_protocol.errors import ManifestError
from udo_protocol.formats import manifest
from udo_protocol.formats.manifest import update_refusals
from udo_protocol.formats.schema import parse_type, type_text
from udo_protocol.formats.state_types import StateTypes
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import Header
from udo_protocol.state.pieces import StoredGroup

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "runtimes" / "conformance" / "state_types.json").read_text("utf-8"))
EVENTS = pa.schema([("k", pa.int64()), ("do", pa.string())])
ANSWERS = pa.schema([("n", pa.int64())])
TYPES = {"n": "int64"}
KEYED = {"columns": ["k"]}


@pytest.fixture(params=["events", "frames", "process"])
def processor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processor]:
    """A processor that works event by event, frame by frame, or in a process of its own."""
    types, ctx = StateTypes(TYPES), Context("t", "1")
    if request.param != "process":
        yield Processor({"events": Wrong, "frames": WrongFrames}[request.param](), ANSWERS, ctx, types)
        return
    program = "from tests.support.wrongly_typed import Wrong; from udo_runtime.served.serve import serve; serve(Wrong())"
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), "PATH": os.environ["PATH"]}
    made = ChildProcessor(Launch((sys.executable, "-c", program), str(tmp_path), str(tmp_path), env), (EVENTS, ANSWERS), KEYED, ctx, types)
    made.open()
    yield made
    made.close()


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: f"{g['type']}: {g['python']}")
def test_each_type_fits_its_values_and_no_others(golden: dict[str, Any]) -> None:
    state = unpack(bytes.fromhex(golden["packed"]))
    assert repr(state["v"]) == golden["python"]
    shown = type_text(parse_type(golden["type"]))
    problem = StateTypes({"v": golden["type"], "other": "int64"}).problem(state)
    assert (problem == "") == golden["fits"]
    assert problem == "" or problem.startswith(f"state entry 'v': expected {shown}, the operator left ")


@pytest.mark.parametrize("do", ["float", "late"])
def test_a_state_of_another_type_is_a_bad_event_and_does_not_stay(processor: Processor, do: str) -> None:
    run, session = processor.keyed(KeyedConfig(("k",))), Session("s")
    run.policy = Policy(dead_letter=True)
    header = Header(label=Label(run=1, epoch=0, attempt=1), groups=[0])
    rows = pa.record_batch([[1, 1, 2, 1], ["count", do, "count", "count"]], schema=EVENTS)
    done = run.events(session, header, rows, pa.array([0] * 4, pa.int32()))
    assert done is not None and done.answer.column("n").to_pylist() == [1, 1, 2]
    assert [(b.row, "state entry 'n': expected int64, the operator left" in str(b.error)) for b in done.bad] == [(1, True)]
    run.end(session, header)
    run.complete(session, header)
    assert {key: unpack(value) for key, value in session.groups[0].values.items()} == {1: {"n": 2}, 2: {"n": 1}}


def test_under_the_policy_fail_the_frame_fails(processor: Processor) -> None:
    run, header = processor.keyed(KeyedConfig(("k",))), Header(label=Label(run=1, epoch=0, attempt=1), groups=[0])
    rows = pa.record_batch([[1, 1], ["count", "float"]], schema=EVENTS)
    with pytest.raises(ProcessingError, match=r"state entry 'n': expected int64, the operator left 2.0 \(float\)"):
        run.events(Session("s"), header, rows, pa.array([0, 0], pa.int32()))


def test_a_migrated_state_has_the_types_too(processor: Processor) -> None:
    with pytest.raises(ProcessingError, match=r"the operator left '1' \(str\)"):
        processor.per_event.migrate({"n": 1}, 1)


def test_a_manifest_says_them_and_an_update_does_not_change_them_without_another_state_version() -> None:
    data = {"name": "t", "version": "1", "entry": "op:T", "input": {"k": "int64"}, "output": {"n": "int64"}}
    for wrong, says in (
        ({"state": {"n": "int64"}}, "state: only a keyed operator has state"),
        ({"key": "k", "state": {"n": "int65"}}, "unknown column type 'int65'"),
        ({"key": "k", "state": {"n": "time32[ms]"}}, r"state: a state holds no time32\[ms\]"),
    ):
        with pytest.raises(ManifestError, match=says):
            manifest.parse({**data, **wrong}, "operator.toml")
    old = manifest.parse({**data, "key": "k", "state": {"n": "int64", "x": "double"}}, "operator.toml")
    new = {**data, "key": "k", "state": {"n": "double", "y": "string"}}
    assert update_refusals(old, manifest.parse(new, "operator.toml")) == [
        "state: entry 'n' is int64, in the new version double: give it another state_version, and migrate"
    ]
    assert update_refusals(old, manifest.parse({**new, "state_version": 1, "migrates_from": [0]}, "operator.toml")) == []


def test_who_follows_an_owner_looks_at_what_is_there_and_at_what_follows_until_it_is_the_owner() -> None:
    versions = Versions(types=StateTypes(TYPES))
    stored = Group()
    stored.label, stored.ended = At(1, 0, 1), True
    stored.fill({pack("a"): pack({"n": 1}), pack("b"): pack({"other": 1.5})})
    good = StoredGroup(stored.meta(), stored.snapshot(), [])
    stored.saved()
    stored.fill({pack("a"): pack({"n": 1.5})})
    bad = StoredGroup(stored.meta(), stored.snapshot(), [])
    problem = "cannot go on from the state of key 'a': state entry 'n': expected int64, there is 1.5"
    versions.require_types(True)
    group = Group.restore(good, versions)
    group.follow()
    with pytest.raises(ProcessingError, match=problem):
        group.adopt(stored.meta(), stored.delta(), group.place)
    with pytest.raises(ProcessingError, match=problem):
        Group.restore(bad, versions).follow()
    versions.require_types(False)
    owned = Group.restore(bad, versions)
    assert owned.open("a") == {"n": 1.5}, "an owner's events tell"
