"""The state that a registry wants of its nodes, and their reports, as types: the documents of GET .../wanted and POST .../report.

A node carries out the wanted state by one rule: it serves each deployment as given. Within an update, by phase: `canary`, it starts the new
version in a slot of its own (keyed: beside the owners), reports "ready", directs `percent` of the new lanes there (keyed: lets it try
`percent` of the key groups, canary.share_of_groups) and reports "observed" with its counts about once a second; `prepare`, it starts a
standby of the new version and reports "ready"; `promote` (the deployment's version is then already the new one), it changes the owner and
reports "answering". A standby whose update is gone without promotion is discarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from udo_protocol.errors import ProtocolError
from udo_protocol.formats.manifest import Name
from udo_protocol.registry.canary import Measured

Document = Mapping[str, Any]
# The longest text of a report.
DETAIL_CHARS = 100_000


class UpdatePhase(StrEnum):
    """The step that an update requires of the nodes now; see the module."""

    CANARY = "canary"
    PREPARE = "prepare"
    PROMOTE = "promote"


@dataclass(frozen=True)
class UpdateStep:
    """An update under way. `percent`: the share of its canary, 0 outside of that phase. `config`: replaces these parts of the deployment's
    configuration, None: they stay. `manifest`, `layers`: of the new version, as pushed."""

    id: str
    version: str
    digest: str
    phase: UpdatePhase
    percent: float = 0.0
    config: Document | None = field(default=None, repr=False)
    manifest: Document = field(default_factory=dict)
    layers: tuple[Document, ...] = ()

    @classmethod
    def parse(cls, found: Document) -> UpdateStep:
        """Inverse of `document`; fields that a newer registry adds are ignored."""
        told = {name: found[name] for name in ("config", "manifest") if name in found}
        phase, percent = UpdatePhase(found["phase"]), float(found.get("percent", 0))
        layers = tuple(found.get("layers", ()))
        return cls(str(found["id"]), str(found["version"]), str(found["digest"]), phase, percent, layers=layers, **told)

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document."""
        named = {"id": self.id, "version": self.version, "digest": self.digest, "phase": self.phase, "percent": self.percent}
        return {**named, "config": self.config, "manifest": self.manifest, "layers": list(self.layers)}


@dataclass(frozen=True)
class WantedDeployment:
    """A deployment as every node is to serve it.

    `slots`: on each node, or with `placement` (udo_protocol.state.placement.Placement, as a document) on all nodes together. `made`: a
    higher one means another deployment of that name, with none of the former one's state. `generation`: a new one means that what was
    refused is to be tried again. `config`: env, secrets, files (path: base64), limits and policy; elasticity, unless it is the default; and
    application ({name, mode, settings}), if it belongs to one.
    """

    name: str
    operator: str
    version: str
    digest: str
    manifest: Document = field(default_factory=dict)
    layers: tuple[Document, ...] = ()
    slots: int = 1
    placement: Document | None = None
    made: int | None = None
    generation: int = 0
    config: Document = field(default_factory=dict, repr=False)
    update: UpdateStep | None = None

    @classmethod
    def parse(cls, found: Document) -> WantedDeployment:
        """Inverse of `document`; fields that a newer registry adds are ignored."""
        optional = ("manifest", "slots", "placement", "made", "generation", "config")
        told = {name: found[name] for name in optional if name in found}
        told["layers"] = tuple(found.get("layers", ()))
        told["update"] = UpdateStep.parse(found["update"]) if found.get("update") else None
        return cls(str(found["name"]), str(found["operator"]), str(found["version"]), str(found["digest"]), **told)

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document."""
        names = ("name", "operator", "version", "digest", "manifest", "layers", "slots", "placement", "made", "generation", "config")
        found = {name: getattr(self, name) for name in names}
        return {**found, "layers": list(self.layers), "update": self.update and self.update.document()}

    @property
    def keyed(self) -> bool:
        """Whether its operator keeps state by key."""
        return bool(self.manifest.get("key"))

    def slots_on(self, node: str) -> int:
        """The number of slots that this node is to have."""
        return list(self.placement["nodes"]).count(node) if self.placement else self.slots

    @property
    def slots_in_all(self) -> int:
        """The number of its slots on all of its nodes; 1 if each node has its own."""
        return self.slots if self.placement else 1


@dataclass(frozen=True)
class MovedSession:
    """A keyed session whose group map has been released: a node's knowledge of it by an earlier `version` no longer holds."""

    deployment: str
    session: str
    version: int


@dataclass(frozen=True)
class WantedState:
    """The wanted state of every node; has secrets, so only for nodes. `addresses`: host:port of the nodes that listen for other hosts."""

    generation: int
    moved: tuple[MovedSession, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    deployments: tuple[WantedDeployment, ...] = ()

    @classmethod
    def parse(cls, found: Document) -> WantedState:
        """Inverse of `document`. ProtocolError says which part is not as expected: no part of such a state is carried out."""
        part = "its generation, moved sessions or addresses"
        try:
            moved = tuple(MovedSession(str(m["deployment"]), str(m["session"]), int(m["version"])) for m in found.get("moved", ()))
            state = cls(int(found["generation"]), moved, dict(found.get("addresses", {})))
            deployments = []
            for number, deployment in enumerate(found["deployments"]):
                part = f"deployment {number}"
                deployments.append(WantedDeployment.parse(deployment))
        except (LookupError, TypeError, ValueError, AttributeError) as e:
            raise ProtocolError(
                f"the registry's wanted state is not of the form that this release knows ({part}: {type(e).__name__}: {e}); is the "
                "registry of a newer one? Update the node managers first"
            ) from e
        return cls(state.generation, state.moved, state.addresses, tuple(deployments))

    def document(self) -> dict[str, Any]:
        """The data in the form of a JSON document."""
        moved = [{"deployment": m.deployment, "session": m.session, "version": m.version} for m in self.moved]
        deployments = [d.document() for d in self.deployments]
        return {"generation": self.generation, "moved": moved, "addresses": dict(self.addresses), "deployments": deployments}


class NodeReport(BaseModel):
    """A node's report on a deployment: "answering" when it serves, "failed" when it cannot, "refused" when it does not take the image,
    else its current activity. Also the body of POST /api/v1/nodes/<node>/report.

    Within an update, `update_id` and as `phase` the step: pulling, starting, ready, promoting, answering or failed; or observed, with the
    canary's counts as `measured`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    deployment: Name
    version: str
    digest: str
    state: str = Field(max_length=50)
    detail: str = Field(default="", max_length=DETAIL_CHARS)
    update_id: str | None = None
    phase: str | None = None
    error_code: str | None = Field(default=None, max_length=50)
    measured: Measured | None = None
