"""The document that tells an instance what to run: read and written only here; docs/protocol.md describes it field by field."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import pyarrow as pa

from udo_protocol.formats.schema import from_ipc, to_ipc
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state.dead_letters import FAIL


class StateSource(StrEnum):
    """The state that a keyed operator's standby loads before its promotion: the owner's, by its changelog, or one kept before an update."""

    OWNER = "owner"
    KEPT = "kept"


@dataclass(frozen=True)
class OwnerRole:
    """Answers from its promotion on; a keyed operator reads the stored state then."""


@dataclass(frozen=True)
class StandbyRole:
    """Answers from its promotion on, with the state that it has by then."""

    source: StateSource


@dataclass(frozen=True)
class MirrorRole:
    """Compares its answers with those served, and gives none. `examples`: how many differences it reports in full; `nice`: its niceness;
    `groups`: the key groups that it tries; None: all."""

    examples: int
    nice: int
    groups: tuple[int, ...] | None = None


InstanceRole: TypeAlias = OwnerRole | StandbyRole | MirrorRole


@dataclass(frozen=True)
class InstancePlace:
    """The slot and servers of an instance, its name and token; the paths are as the instance sees them."""

    instance: str
    token: int
    keys: SlotKeys
    queue_socket: str
    state_socket: str


@dataclass(frozen=True)
class Program:
    """An operator's code and its surroundings. `entry`, `path`: of a Python operator; `command`: what starts an operator in a process of
    its own (node_manager.instances.commands.launch); `keyed`: a manifest's `keyed`, None for a stateless operator."""

    entry: str = ""
    path: tuple[str, ...] = ()
    command: Mapping[str, Any] | None = field(default=None, repr=False)
    keyed: Mapping[str, Any] | None = None
    state_types: Mapping[str, str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Program:
        """From the fields of an assignment, or of a request that has the same ones."""
        optional = {name: found.get(name) or None for name in ("command", "keyed", "state_types")}
        return cls(found["entry"], tuple(found["path"]), **optional, env=found.get("env", {}), secrets=found.get("secrets", {}))


@dataclass(frozen=True)
class Assignment:
    """The operator that an instance is to run, where, and in which role. `input`, `output`: the operator's schemas. `limits`: the bounds
    that the deployment overrides. `open_files`: how many it may open; 0: no bound. Holds secrets."""

    place: InstancePlace
    operator: str
    version: str
    digest: str
    program: Program
    input: pa.Schema
    output: pa.Schema
    role: InstanceRole = OwnerRole()
    policy: str = FAIL
    limits: Mapping[str, int] = field(default_factory=dict)
    open_files: int = 0

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Assignment:
        """Inverse of `document`; unknown fields are ignored."""
        keys = SlotKeys.parse(found["prefix"])
        place = InstancePlace(found["instance"], found["token"], keys, found["queue_socket"], found["state_socket"])
        return cls(
            place,
            found["operator"],
            found["version"],
            found["digest"],
            Program.parse(found),
            from_ipc(base64.b64decode(found["input"])),
            from_ipc(base64.b64decode(found["output"])),
            _role(found),
            found.get("policy", FAIL),
            found.get("limits", {}),
            found.get("open_files", 0),
        )

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document."""
        place, program, role = self.place, self.program, self.role
        return {
            "instance": place.instance,
            "token": place.token,
            "prefix": place.keys.prefix,
            "queue_socket": place.queue_socket,
            "state_socket": place.state_socket,
            "operator": self.operator,
            "version": self.version,
            "digest": self.digest,
            "entry": program.entry,
            "path": list(program.path),
            **({"command": dict(program.command)} if program.command else {}),
            "input": base64.b64encode(to_ipc(self.input)).decode(),
            "output": base64.b64encode(to_ipc(self.output)).decode(),
            "env": dict(program.env),
            "secrets": dict(program.secrets),
            "keyed": program.keyed,
            **({"state_types": dict(program.state_types)} if program.state_types else {}),
            "follow": role.source if isinstance(role, StandbyRole) else StateSource.OWNER if self.follows else "",
            "policy": self.policy,
            "limits": dict(self.limits),
            "open_files": self.open_files,
            **({"comparing": asdict(role)} if isinstance(role, MirrorRole) else {}),
        }

    @property
    def follows(self) -> bool:
        """Whether it has a state to load after it has reported that its operator is loaded; then it reports once more."""
        return isinstance(self.role, StandbyRole) or (isinstance(self.role, MirrorRole) and self.program.keyed is not None)


def _role(found: Mapping[str, Any]) -> InstanceRole:
    if comparing := found.get("comparing"):
        groups = comparing.get("groups")
        return MirrorRole(comparing["examples"], comparing["nice"], None if groups is None else tuple(groups))
    return StandbyRole(StateSource(found["follow"])) if found.get("follow") else OwnerRole()
