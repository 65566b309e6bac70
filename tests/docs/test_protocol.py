"""The tables of docs/protocol.md list all that the code has, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import udo_runtime.main as instance
from udo_runtime.counters import Counters

from node_manager.drivers.base import Inside
from node_manager.instances import commands
from udo_protocol import errors, limits
from udo_protocol.assignment import Assignment, InstancePlace, MirrorRole, Program
from udo_protocol.formats.manifest import Manifest
from udo_protocol.limits import DEFAULT
from udo_protocol.proto import frame_pb2
from udo_protocol.queue.frame import Failure
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import COUNTERS, TIMES
from udo_protocol.state.session_record import SessionRecord

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
KEYED = Manifest(
    name="t",
    version="1",
    runtime="exec",
    command=["bin/t"],
    input={"k": "int64"},
    output={"k": "int64"},
    key=["k"],  # type: ignore[arg-type]
    state={"n": "int64"},
)
COMMAND = commands.launch(KEYED, "/code", "/own", [], Inside("/own", "", "/tmp"))
TOLD = Assignment(
    InstancePlace("i", 1, SlotKeys("t", 0), "/q", "/s"),
    KEYED.name,
    KEYED.version,
    "sha256:0",
    Program(command=COMMAND, keyed=KEYED.keyed, state_types=KEYED.state),
    KEYED.input_schema,
    KEYED.output_schema,
    MirrorRole(1, 10),
).document()


def table(head: str) -> dict[str, list[str]]:
    """The table whose first column has this heading: for each name in the first column, the other cells of its row."""
    _, found, rest = TEXT.partition(f"| {head} |")
    assert found, f"no table {head}"
    rows: dict[str, list[str]] = {}
    for line in rest.splitlines()[2:]:
        if not line.startswith("| "):
            break
        first, *others = (cell.strip() for cell in line.strip("| ").split(" | "))
        rows |= {name: others for name in re.findall(r"`([^`]+)`", first)}
    return rows


def subclasses(error: type[errors.UdoError]) -> list[type[errors.UdoError]]:
    """The class and all its subclasses."""
    return [error, *(below for each in error.__subclasses__() for below in subclasses(each))]


def test_every_field_of_an_assignment_is_described_and_no_other() -> None:
    assert list(table("field of the assignment | content")) == list(TOLD)
    parts: dict[str, Any] = {"`command`": COMMAND, "`keyed`": KEYED.keyed, "`comparing`": TOLD["comparing"]}
    for name, part in parts.items():
        assert list(table(f"{name} | content")) == list(part), name


def test_every_bound_is_described_with_its_default() -> None:
    described = table("limit | default")
    defaults = {name: getattr(DEFAULT, name) for name in DEFAULT.__dataclass_fields__}
    assert list(described) == list(defaults)
    for name, (default, *_) in described.items():
        assert str(defaults[name]) in default.split(", "), name


def test_every_code_and_field_of_a_failure_is_described_with_its_bound() -> None:
    fields = table("field | content | most characters")
    assert list(fields) == [field.name for field in Failure.DESCRIPTOR.fields]
    bounds = {"message": limits.MESSAGE_CHARS, "traceback": limits.TRACEBACK_CHARS, "event": limits.EVENT_CHARS}
    assert {name: fields[name][-1] for name in bounds} == {name: f"{chars:,}" for name, chars in bounds.items()}
    others = TEXT.partition("any other code of `udo_protocol/errors.py`")[2].partition(". A receiver")[0]
    own = {e.code for e in subclasses(errors.UdoError) if e.__module__ == errors.__name__}
    assert {*table("code | the frame failed because"), *re.findall(r"`(\w+)`", others)} == own


def test_every_kind_of_frame_is_described() -> None:
    rows = TEXT.partition("| kind | from | meaning |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| (\w+) \|", rows, re.MULTILINE)) == {*frame_pb2.Kind.keys()} - {"KIND_UNSPECIFIED"}


def test_every_counter_is_described() -> None:
    assert list(table("counter | counts")) == [*COUNTERS, TIMES[0], TIMES[-1]]
    assert list(Counters().values()) == [*COUNTERS, *TIMES]


def test_all_of_a_sessions_record_is_described() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| record of a session |"))
    assert set(re.findall(r"`(\w+)`", row)) == {*SessionRecord.__dataclass_fields__}


def test_every_exit_status_is_described() -> None:
    statuses = {value for name, value in vars(instance).items() if name.startswith("EXIT_")}
    described = TEXT.partition("### Exit status\n")[2].partition("\n")[0]
    assert {int(n) for n in re.findall(r"(\d): ", described)} == statuses
