"""An operator's manifest: read from `operator.toml`, stored with the version, binding for everyone who runs or calls the operator."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from udo_protocol.errors import ManifestError, SchemaError
from udo_protocol.formats.inputs import united
from udo_protocol.formats.schema import GROUP_COLUMN, is_key_type, parse_schema, parse_type, schema_text, update_misfits
from udo_protocol.formats.state_types import StateTypes

FILE_NAME = "operator.toml"
# Stands for the version that was pushed last; no version has this name.
LATEST = "latest"
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$")]
# An endpoint of the network: a host's name or IPv4 address, and a port.
Endpoint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?:[1-9][0-9]{0,4}$")]
VersionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class OperatorLimits(BaseModel):
    """The resources that one instance may use. Memory is resident memory: Arrow alone maps 1 GB of address space."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_mb: int = Field(default=1024, ge=16)
    answer_timeout_s: float = Field(default=60.0, gt=0)
    open_timeout_s: float = Field(default=60.0, gt=0)
    open_files: int = Field(default=1024, ge=32)
    # Processor time in cores, and the number of processes and threads: enforced if the node's driver can (docker). Libraries start a
    # thread per core, hence `pids` leaves room for a large machine; a fork bomb soon hits the bound.
    cpus: float = Field(default=2.0, ge=0.01)
    pids: int = Field(default=256, ge=16)
    # Keyed state of one session; above this, further events are refused with an error that names the largest keys.
    state_mb: int = Field(default=256, ge=1)


class EventTime(BaseModel):
    """The input column that holds event time, and how late events may come: watermark and timers depend on both."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str
    delay_s: float = Field(default=0.0, ge=0)


class Manifest(BaseModel):
    """Runtime, entry point, input and output Arrow schema, key, state version and limits of one operator version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    version: VersionName
    description: str = ""
    runtime: Literal["python", "exec"] = "python"
    # For the runtime `exec`: a program in any language that speaks the operator protocol (docs/operator-protocol.md), and its arguments.
    # A program with a slash in its path lies in the operator's folder, which is its working directory.
    command: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=64)] = ()
    # module:attribute; empty only for a container image that starts its own program.
    entry: Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*)?$")] = ""
    # `process`: the operator runs in a process of its own, as every command does, with nothing but a socket to its engine.
    isolation: Literal["shared", "process"] = "shared"
    # For an operator in a process of its own: a JSON file at the top of its folder with sample events, which it answers before it is used,
    # so that its first answers are quick. The results are discarded.
    rehearse: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,100}\.jsonl?)?$")] = ""
    # With several inputs, written as tables [input.NAME]: the columns of all inputs, after one that names the input (formats/inputs.py).
    input: dict[str, str] = Field(min_length=1)
    inputs: dict[str, dict[str, str]] = {}
    output: dict[str, str] = Field(min_length=1)
    # Columns by whose values the state is kept; empty for a stateless operator.
    key: tuple[str, ...] = ()
    event_time: EventTime | None = None
    # The version of the layout of a key's state, and the older versions that the operator's migrate() takes.
    state_version: int = Field(default=0, ge=0, le=127)
    migrates_from: tuple[Annotated[int, Field(ge=0, le=127)], ...] = ()
    # Types of entries of a key's state, checked whenever the operator has changed it; entries not named are free.
    state: dict[str, str] = {}
    # When state becomes durable: with each epoch, or with each frame before it is answered. The latter is for operators that are not
    # deterministic (random numbers, the clock): no event is processed again after a crash.
    commit: Literal["epoch", "frame"] = "epoch"
    requirements: list[str] = []
    # The only endpoints that the operator may reach, if the node allows it.
    network: Annotated[tuple[Endpoint, ...], Field(max_length=64)] = ()
    # Filled in by `udo push`: the target that the dependencies were resolved for, e.g. "cp311" and "linux_x86_64".
    python_tag: str = ""
    platform: str = ""
    limits: OperatorLimits = OperatorLimits()

    @model_validator(mode="before")
    @classmethod
    def _several_inputs(cls, data: Any) -> Any:
        columns = data.get("input") if isinstance(data, dict) else None
        if isinstance(columns, dict) and any(isinstance(of, dict) for of in columns.values()):
            return {**data, "input": united(columns), "inputs": columns}
        if isinstance(data, dict) and data.get("inputs") and columns != united(data["inputs"]):
            raise ValueError("inputs: several inputs are written as tables [input.NAME], one for each")
        return data

    @field_validator("input", "output", "state")
    @classmethod
    def _types_are_known(cls, columns: dict[str, str]) -> dict[str, str]:
        for name, text in columns.items():
            try:
                parse_type(text)
            except SchemaError as e:
                raise ValueError(f"column {name!r}: {e}") from e
        return schema_text(parse_schema(columns))

    @field_validator("key", mode="before")
    @classmethod
    def _one_key_or_several(cls, key: object) -> object:
        return (key,) if isinstance(key, str) else key

    @model_validator(mode="after")
    def _runs_code_or_a_command(self) -> Manifest:
        if (self.runtime == "exec") != bool(self.command):
            raise ValueError('runtime = "exec" and command = ["bin/operator"] belong together: expected both or neither')
        if self.command and self.entry:
            raise ValueError("entry: an operator has a command or an entry, not both")
        if self.command and self.requirements:
            raise ValueError("requirements: they are Python's; what a command needs lies in the operator's folder")
        if self.own_process and self.network:
            raise ValueError('network: an operator in a process of its own (a command, or isolation = "process") reaches none')
        if self.rehearse and not self.own_process:
            raise ValueError('rehearse: only for an operator in a process of its own (a command, or isolation = "process")')
        return self

    @model_validator(mode="after")
    def _keys_and_times_are_columns(self) -> Manifest:
        there = ", ".join(self.input)
        for name in self.key:
            if name not in self.input:
                raise ValueError(f"key: {name!r} is no input column; there are: {there}")
            if not is_key_type(parse_type(self.input[name])):
                raise ValueError(
                    f"key: column {name!r} is {self.input[name]}; expected numbers, text, bytes, booleans, dates or timestamps, which can "
                    "be compared and found again. Of a struct name the fields as columns of their own: key = [...]"
                )
        if self.key and (taken := [name for name in self.input if name.casefold() == GROUP_COLUMN]):
            raise ValueError(f"input: {taken[0]!r} is the column in which the key groups of keyed events travel; expected another name")
        of_all = [*self.key, *([self.event_time.column] if self.event_time else [])]
        for one, columns in self.inputs.items():
            if lacking := [name for name in of_all if name not in columns]:
                raise ValueError(f"input.{one}: each input has the columns of key and event_time; this one lacks {', '.join(lacking)}")
        if self.migrates_from and not self.key:
            raise ValueError("migrates_from: only a keyed operator has state; add key =")
        if self.state and not self.key:
            raise ValueError("state: only a keyed operator has state; add key =")
        try:
            StateTypes(self.state)
        except SchemaError as e:
            raise ValueError(f"state: {e}") from e
        if self.commit == "frame" and not self.key:
            raise ValueError("commit: only a keyed operator has state to commit; add key =")
        if self.state_version in self.migrates_from:
            raise ValueError(f"migrates_from: {self.state_version} is the state_version itself")
        if self.event_time is not None:
            if not self.key:
                raise ValueError("event_time: only a keyed operator has timers; add key =")
            if self.event_time.column not in self.input:
                raise ValueError(f"event_time.column: {self.event_time.column!r} is no input column; there are: {there}")
            if not pa.types.is_timestamp(parse_type(self.input[self.event_time.column])):
                raise ValueError(f"event_time.column: {self.event_time.column!r} is no timestamp")
        return self

    @property
    def own_process(self) -> bool:
        """Whether the engine starts the operator as a process of its own, by the operator protocol."""
        return bool(self.command) or self.isolation == "process"

    @property
    def keyed(self) -> dict[str, Any] | None:
        """How an instance keys its state (udo_runtime.execution.keyed_processor.KeyedConfig); None for a stateless operator."""
        if not self.key:
            return None
        time = self.event_time
        return {
            "columns": list(self.key),
            "time_column": time.column if time else None,
            "delay_us": round(time.delay_s * 1e6) if time else 0,
            "state_bytes": self.limits.state_mb << 20,
            "state_version": self.state_version,
            "migrates_from": list(self.migrates_from),
            "commit": self.commit,
            **({"inputs": list(self.inputs)} if self.inputs else {}),
        }

    @property
    def input_schema(self) -> pa.Schema:
        """Arrow schema of the events the operator takes."""
        return parse_schema(self.input)

    @property
    def input_schemas(self) -> dict[str, pa.Schema]:
        """The Arrow schema of each input by name, for an operator with several; empty for a single input."""
        return {name: parse_schema(columns) for name, columns in self.inputs.items()}

    @property
    def output_schema(self) -> pa.Schema:
        """Arrow schema of the events the operator answers."""
        return parse_schema(self.output)

    @property
    def reference(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"


def call_misfits(old: Manifest, new: Manifest) -> list[str]:
    """Why calls that were built for `old` do not fit `new`; empty if they do."""
    reasons = update_misfits(old.input_schema, old.output_schema, new.input_schema, new.output_schema)
    if old.inputs.keys() != new.inputs.keys():
        before, after = (", ".join(m.inputs) or "a single one" for m in (old, new))
        reasons.append(f"input: events come from the inputs {before}, the new version takes {after}")
    if old.key != new.key:
        reasons.append(
            f"key: the state is kept by {', '.join(old.key) or 'nothing'}, the new version keeps it by {', '.join(new.key) or 'nothing'}"
        )
    reasons += [
        f"key: column {name!r} is {old.input[name]}, in the new version {new.input[name]}, whose values may lie in other key groups: leave "
        "it as it is, and convert it inside of the operator"
        for name in old.key
        if name in new.key and parse_type(old.input[name]) != parse_type(new.input[name])
    ]
    return reasons


def update_refusals(old: Manifest, new: Manifest) -> list[str]:
    """Why queries that run with `old`, and their state, could not continue with `new`; empty if they can."""
    reasons = call_misfits(old, new)
    if old.key and old.state_version != new.state_version and old.state_version not in new.migrates_from:
        reads = f"reads {new.state_version}" + (f" and migrates from {', '.join(map(str, new.migrates_from))}" if new.migrates_from else "")
        reasons.append(f"state_version: the state is of version {old.state_version}, the new version {reads} (migrates_from)")
    if old.state_version == new.state_version:
        reasons += [
            f"state: entry {name!r} is {old.state[name]}, in the new version {new.state[name]}: give it another state_version, and migrate"
            for name in sorted(old.state.keys() & new.state.keys())
            if old.state[name] != new.state[name]
        ]
    return reasons


def parse(data: dict[str, Any], where: str) -> Manifest:
    """The manifest of this table; ManifestError lists every wrong field and names the source `where`."""
    try:
        return Manifest.model_validate(data)
    except ValidationError as e:
        lines = [f"  {_place(err['loc'])}: {err['msg']} (got {err['input']!r:.80}){_meant(err['type'], err['loc'])}" for err in e.errors()]
        raise ManifestError(
            f"{where} is not a valid operator manifest:\n" + "\n".join(lines) + "\nSee docs/operators.md for the fields."
        ) from e


def _place(where: tuple[int | str, ...]) -> str:
    return ".".join(map(str, where)) or "manifest"


def _meant(kind: str, where: tuple[int | str, ...]) -> str:
    """A hint for an unknown field: the table's fields with similar names, else all of them."""
    if kind != "extra_forbidden":
        return ""
    tables = {"limits": OperatorLimits.model_fields, "event_time": EventTime.model_fields}
    fields = tables.get(str(where[0]), Manifest.model_fields) if len(where) > 1 else Manifest.model_fields
    near = difflib.get_close_matches(str(where[-1]), fields, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are: {', '.join(fields)}"


def load(directory: Path) -> Manifest:
    """Read `operator.toml` in `directory`."""
    path = directory / FILE_NAME
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"no {FILE_NAME} in {directory}; create one with: udo init {directory}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ManifestError(f"{path} is not valid TOML: {e}") from e
    return parse(data, str(path))
