"""Deployments: an operator version made callable under a name, and the binding of epochs to versions."""

from __future__ import annotations

import base64
import binascii
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from sqlalchemy import CursorResult, select
from sqlalchemy import delete as sql_delete
from sqlalchemy.orm import Session

from registry.domain import audit, catalogue
from registry.domain.audit import Caller, iso
from registry.domain.presence import Presence
from registry.store.models import Deployment, Epoch, GroupMap, NodeState, Update, Version
from registry.store.store import bump
from udo_protocol.errors import Conflict, NotFound, UsageError
from udo_protocol.formats.manifest import Name, OperatorLimits
from udo_protocol.lifecycle import REFUSED, UPDATE_OPEN
from udo_protocol.limits import MOST_BACKOFF_US, MOST_KEY_GROUPS, MOST_RETRIES, MOST_SLOTS, SlotLimits
from udo_protocol.state.dead_letters import DEAD_LETTER

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
EnvValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=1 << 20)]
_LIMITS = {f.name for f in fields(SlotLimits)} | set(OperatorLimits.model_fields)
# Spark keeps this many batches to go back to (spark.sql.streaming.minBatchesToRetain); older ones never return.
EPOCHS_KEPT = 100


def require_files(files: dict[str, str]) -> None:
    """ValueError unless these are base64 under relative paths that stay inside."""
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ValueError(f"file {name!r}: expected a relative path inside the operator's directory")
        try:
            base64.b64decode(content, validate=True)
        except binascii.Error:
            raise ValueError(f"file {name!r}: expected its content in base64") from None


class ScaleBody(BaseModel):
    """Body of POST /api/v1/deployments/<name>/scale."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slots: int = Field(ge=1, le=MOST_SLOTS)


class NewDeployment(BaseModel):
    """Body of POST /api/v1/deployments."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Name
    operator: Name
    version: str = "latest"
    env: dict[EnvName, EnvValue] = {}
    secrets: dict[EnvName, EnvValue] = {}
    files: dict[str, str] = {}
    slots: int = Field(default=1, ge=1, le=MOST_SLOTS)  # on each node
    policy: Literal["fail", "dead-letter"] = "fail"
    limits: dict[str, float] = {}

    @field_validator("files")
    @classmethod
    def _files_stay_inside(cls, files: dict[str, str]) -> dict[str, str]:
        require_files(files)
        return files

    @field_validator("limits")
    @classmethod
    def _limits_are_known(cls, limits: dict[str, float]) -> dict[str, float]:
        for name, value in limits.items():
            if name not in _LIMITS:
                raise ValueError(f"no limit {name!r}; there are: {', '.join(sorted(_LIMITS))}")
            if value <= 0:
                raise ValueError(f"limit {name!r}: expected more than 0")
            if name == "retries" and value not in range(1, MOST_RETRIES + 1):
                raise ValueError(f"limit 'retries': expected a whole number from 1 to {MOST_RETRIES}, got {value:g}")
            if name == "key_groups" and value not in range(1, MOST_KEY_GROUPS + 1):
                raise ValueError(f"limit 'key_groups': expected a whole number from 1 to {MOST_KEY_GROUPS}, got {value:g}")
            if name == "backoff_ceiling_us" and value > MOST_BACKOFF_US:
                raise ValueError(f"limit 'backoff_ceiling_us': expected at most {MOST_BACKOFF_US}, got {value:g}")
        return limits


def find(session: Session, name: str) -> Deployment:
    """The deployment of that name; NotFound lists near ones."""
    if deployment := session.get(Deployment, name):
        return deployment
    raise NotFound(f"no deployment {name!r}{catalogue.near(name, list(session.scalars(select(Deployment.name))))}")


def describe(session: Session, d: Deployment, there: Presence) -> dict[str, Any]:
    """A deployment as shown without a token: names of secrets and files, never their values. On a node that is not live its state
    is `away`."""
    states = session.scalars(select(NodeState).where(NodeState.deployment == d.name).order_by(NodeState.node))
    shown = ("node", "state", "version", "digest", "detail", "error_code")
    away = {node: {"state": "away", "away_since": iso(since)} for node, since in there.away.items()}
    running = session.scalar(select(Update).where(Update.deployment == d.name, Update.state.in_(UPDATE_OPEN)))
    return {
        "name": d.name,
        "operator": d.version.name,
        "version": d.version.version,
        "digest": d.version.digest,
        "manifest": d.version.manifest,
        "env": d.env,
        "secrets": sorted(d.secrets),
        "files": sorted(d.files),
        "slots": d.slots,
        "policy": d.policy,
        "limits": d.limits,
        "generation": d.generation,
        "previous": d.previous,
        "created_at": iso(d.created_at),
        "update": {n: getattr(running, n) for n in ("id", "state", "to_version", "detail", "canary")} if running else None,
        "nodes": [{**{n: getattr(s, n) for n in shown}, "at": iso(s.at), "away_since": None, **away.get(s.node, {})} for s in states],
    }


def everything(session: Session, there: Presence) -> list[dict[str, Any]]:
    """All deployments, by name."""
    return [describe(session, d, there) for d in session.scalars(select(Deployment).order_by(Deployment.name))]


def create(session: Session, caller: Caller, new: NewDeployment) -> tuple[Deployment, bool]:
    """Deploy (deployment, whether it is new). The same again is fine, and nodes that have refused it try again; another one under
    that name is a Conflict."""
    version = catalogue.find(session, new.operator, new.version)
    _require_slots(new.name, version, new.slots)
    config = {n: getattr(new, n) for n in ("env", "secrets", "files", "slots", "policy", "limits")}
    if there := session.get(Deployment, new.name):
        if there.version_id == version.id and all(getattr(there, n) == value for n, value in config.items()):
            refused = sql_delete(NodeState).where(NodeState.deployment == there.name, NodeState.state == REFUSED)
            if cast(CursorResult[Any], session.execute(refused)).rowcount:
                there.generation = bump(session)
            return there, False
        raise Conflict(
            f"deployment {new.name!r} exists ({there.version.name}@{there.version.version}, or with other settings): change its version "
            f"with: udo update {new.name} {version.version}, its variables, secrets and files with: udo update {new.name} --env, --secret, "
            f"--file or --unset, its slots with: udo scale {new.name}; for other limits or another policy undeploy it first"
        )
    deployment = Deployment(
        name=new.name, version_id=version.id, version=version, previous=[], generation=bump(session), created_at=caller.now, **config
    )
    session.add(deployment)
    audit.record(session, caller, "deploy", deployment=new.name, after=version.digest, detail=f"{version.name}@{version.version}")
    return deployment, True


def scale(session: Session, caller: Caller, name: str, slots: int) -> Deployment:
    """Let it have that many slots on each node; nodes that answered report again when they have them. Conflict while an update runs."""
    deployment = find(session, name)
    _require_slots(name, deployment.version, slots)
    if running := session.scalar(select(Update).where(Update.deployment == name, Update.state.in_(UPDATE_OPEN))):
        raise Conflict(f"deployment {name!r} is being updated ({running.id}); scale it when that has ended")
    if slots != deployment.slots:
        audit.record(session, caller, "scale", deployment=name, detail=f"{deployment.slots} to {slots} slots")
        deployment.slots, deployment.generation = slots, bump(session)
        for state in session.scalars(select(NodeState).where(NodeState.deployment == name, NodeState.state == "answering")):
            state.state = "scaling"
    return deployment


def _require_slots(name: str, version: Version, slots: int) -> None:
    if slots > 1 and version.manifest.get("key"):
        raise UsageError(f"deployment {name!r} keeps state per key, which lies in one slot: expected 1 slot, got {slots}")


def remove(session: Session, caller: Caller, name: str, *, drop_state: bool = False) -> None:
    """Undeploy: nodes stop its instances, and drop its state if that is agreed to; Conflict else, and while an update runs."""
    deployment = find(session, name)
    if deployment.policy == DEAD_LETTER and not drop_state:
        raise Conflict(
            f"deployment {name!r} keeps dead letters, which nodes would drop. See what there is with: udo dead ls {name}; then udo "
            f"undeploy {name}, which asks the nodes, or DELETE ...?drop_state=true"
        )
    if deployment.version.manifest.get("key") and not drop_state:
        raise Conflict(
            f"deployment {name!r} is keyed: nodes would drop the state that queries have left there. See what there is with: udo state ls "
            f"{name}; then udo undeploy {name}, which asks the nodes, or DELETE ...?drop_state=true"
        )
    if running := session.scalar(select(Update).where(Update.deployment == name, Update.state.in_(UPDATE_OPEN))):
        hint = f"; end its canary with: udo rollback {name}" if running.state == "canary" else ""
        raise Conflict(f"deployment {name!r} is being updated ({running.id}); undeploy it when that has ended{hint}")
    session.delete(deployment)
    for table in (NodeState, Epoch, GroupMap):
        session.execute(sql_delete(table).where(table.deployment == name))
    bump(session)
    audit.record(session, caller, "undeploy", deployment=name, before=deployment.version.digest)


def bind_epoch(session: Session, name: str, run: str, epoch: int, now: float) -> Epoch:
    """The version that serves this epoch of the session `run`: the first caller binds the wanted one, all later ones get the same."""
    deployment = find(session, name)
    if bound := session.get(Epoch, (name, run, epoch)):
        return bound
    bound = Epoch(deployment=name, session=run, epoch=epoch, version=deployment.version.version, digest=deployment.version.digest, at=now)
    session.add(bound)
    old = sql_delete(Epoch).where(Epoch.deployment == name, Epoch.session == run, Epoch.epoch < epoch - EPOCHS_KEPT)
    session.execute(old)
    return bound
