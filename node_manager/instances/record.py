"""The record on disk of an instance that has an operator: by it a later manager adopts the instance, or removes its remains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from node_manager.drivers.base import Allowance
from udo_protocol.assignment import Assignment, MirrorRole, StandbyRole, StateSource


@dataclass(frozen=True)
class SlotId:
    """A slot of this node."""

    deployment: str
    number: int


@dataclass
class InstanceRecord:
    """`follow`: the state that it has in memory before its promotion; None: it reads the stored one. `comparing`: it is a mirror.
    `load_ms`, `abilities`: from its first report, None before."""

    deployment: str
    slot: int
    operator: str
    version: str
    digest: str
    token: int
    comparing: bool
    allowance: Allowance
    follow: StateSource | None = None
    load_ms: Mapping[str, float] | None = None
    abilities: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """`name@version` of its operator."""
        return f"{self.operator}@{self.version}"

    @classmethod
    def of(cls, told: Assignment, at: SlotId, allowance: Allowance) -> InstanceRecord:
        """The record of an instance that is given this assignment."""
        mirror = isinstance(told.role, MirrorRole)
        follow = told.role.source if isinstance(told.role, StandbyRole) else StateSource.OWNER if told.follows else None
        return cls(at.deployment, at.number, told.operator, told.version, told.digest, told.place.token, mirror, allowance, follow)

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> InstanceRecord:
        """Inverse of `document`, from a file that has more."""
        about = (found["deployment"], found["slot"], found["operator"], found["version"], found["digest"], found["token"])
        allowance = Allowance(**{**found["allowance"], "network": tuple(found["allowance"].get("network", ()))})
        follow = StateSource(found["follow"]) if found.get("follow") else None
        told = (found.get("load_ms"), tuple(found.get("abilities", ())))
        return cls(*about, bool(found.get("comparing")), allowance, follow, *told)

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document."""
        told = {} if self.load_ms is None else {"load_ms": dict(self.load_ms), "abilities": list(self.abilities)}
        about = {name: value for name, value in asdict(self).items() if name not in ("load_ms", "abilities")}
        return {**about, "follow": self.follow or "", **told}
