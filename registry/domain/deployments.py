"""Deployments: an operator version made callable under a name, and the binding of epochs to versions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from sqlalchemy import CursorResult, exists, select
from sqlalchemy import delete as sql_delete
from sqlalchemy.orm import Session, aliased

from elasticity.scaling.modes import AUTO, Elasticity
from registry.domain import applications, audit, catalogue, replicas, spreading
from registry.domain.audit import Caller, iso
from registry.domain.presence import Presence, disks, reachable
from registry.domain.replicas import Nodes
from registry.store.models import Deployment, Epoch, GroupMap, NodeState, Update
from registry.store.store import bump
from udo_protocol.errors import Conflict, NotFound, UsageError
from udo_protocol.formats.manifest import LATEST, Name, OperatorLimits
from udo_protocol.lifecycle import REFUSED, UPDATE_OPEN
from udo_protocol.limits import MOST_BACKOFF_US, MOST_KEY_GROUPS, MOST_REPLICAS, MOST_RETRIES, MOST_SLOTS, SlotLimits
from udo_protocol.state.dead_letters import DEAD_LETTER
from udo_protocol.state.group_map import FIRST_VERSION
from udo_protocol.state.placement import Placement

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
EnvValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=1 << 20)]
_LIMITS = {f.name for f in fields(SlotLimits)}
# Spark keeps this many batches to go back to (spark.sql.streaming.minBatchesToRetain); older ones never return.
EPOCHS_KEPT = 100


def require_files(files: dict[str, str]) -> None:
    """ValueError unless these are base64 under relative paths that stay inside the operator's directory."""
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ValueError(f"file {name!r}: expected a relative path inside the operator's directory")
        try:
            base64.b64decode(content, validate=True)
        except binascii.Error:
            raise ValueError(f"file {name!r}: expected its content in base64") from None


class ElasticityBody(BaseModel):
    """Settings of the controllers for a deployment (elasticity.scaling.modes.Elasticity); fields not given stay as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    mode: Literal["off", "advise", "auto"] | None = None
    policy: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$", max_length=100)] | None = None
    least: int | None = Field(default=None, ge=1, le=MOST_SLOTS)
    most: int | None = Field(default=None, ge=0, le=MOST_SLOTS)
    idle_after_s: float | None = Field(default=None, ge=0)
    settings: dict[EnvName, int | float | EnvValue] | None = None


class ScaleBody(BaseModel):
    """Body of POST /api/v1/deployments/<name>/scale; fields not given stay as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slots: int | None = Field(default=None, ge=1, le=MOST_SLOTS)
    replicas: int | None = Field(default=None, ge=0, le=MOST_REPLICAS)
    elasticity: ElasticityBody | None = None


class NewDeployment(BaseModel):
    """Body of POST /api/v1/deployments."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Name
    operator: Name
    version: str = LATEST
    env: dict[EnvName, EnvValue] = {}
    secrets: dict[EnvName, EnvValue] = {}
    files: dict[str, str] = {}
    slots: int = Field(default=1, ge=1, le=MOST_SLOTS)  # on each node; with over_nodes in all
    over_nodes: bool = False  # slots in all, spread over the nodes
    replicas: int = Field(default=0, ge=0, le=MOST_REPLICAS)  # of each slot, on other nodes
    policy: Literal["fail", "dead-letter"] = "fail"
    limits: dict[str, float] = {}
    elasticity: ElasticityBody | None = None

    @field_validator("files")
    @classmethod
    def _files_stay_inside(cls, files: dict[str, str]) -> dict[str, str]:
        require_files(files)
        return files

    @field_validator("limits")
    @classmethod
    def _limits_are_known(cls, limits: dict[str, float]) -> dict[str, float]:
        for name, value in limits.items():
            if name not in _LIMITS and name in OperatorLimits.model_fields:
                raise ValueError(f"limit {name!r} is the operator's own: set it in its operator.toml, under [limits], and push a version")
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
            if not value.is_integer():
                raise ValueError(f"limit {name!r}: expected a whole number, got {value:g}")
        return limits


def find(session: Session, name: str) -> Deployment:
    """The deployment of that name; NotFound lists similar names."""
    if deployment := session.get(Deployment, name):
        return deployment
    raise NotFound(f"no deployment {name!r}{catalogue.near(name, list(session.scalars(select(Deployment.name))))}")


def describe(session: Session, d: Deployment, there: Presence) -> dict[str, Any]:
    """A deployment as shown without a token: names of secrets and files, never their values. Its state on a node that is not live
    is `away`."""
    return _described(session, d, there, applications.memberships(session))


def _described(session: Session, d: Deployment, there: Presence, members: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
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
        "placement": d.placement,
        "elasticity": Elasticity.stored(d.elasticity).record(),
        "application": members.get(d.name, {}).get("name"),
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
    members = applications.memberships(session)  # once: they are read from all applications
    return [_described(session, d, there, members) for d in session.scalars(select(Deployment).order_by(Deployment.name))]


def create(session: Session, caller: Caller, new: NewDeployment, there: Presence) -> tuple[Deployment, bool]:
    """Deploy; returns (deployment, whether it is new). Repeating the same call is fine, and nodes that have refused it try again; a
    different one under that name is a Conflict."""
    version = catalogue.find(session, new.operator, new.version)
    _require_groups(new.name, version.manifest, new.limits, new.slots)
    config = {n: getattr(new, n) for n in ("env", "secrets", "files", "slots", "policy", "limits")}
    _require_replicable(new.name, version.manifest, new.over_nodes, new.replicas)
    config["elasticity"] = _elasticity(new.name, version.manifest, new.over_nodes, None, new.elasticity)
    if old := session.get(Deployment, new.name):
        asked = {n: value for n, value in config.items() if n != "elasticity" or new.elasticity}
        same = all(getattr(old, n) == value for n, value in asked.items()) and (old.placement is not None) == new.over_nodes
        same = same and replicas.wanted(old.placement) == new.replicas
        if old.version_id == version.id and same:
            refused = sql_delete(NodeState).where(NodeState.deployment == old.name, NodeState.state == REFUSED)
            if cast(CursorResult[Any], session.execute(refused)).rowcount:
                old.generation = bump(session)
            return old, False
        raise Conflict(
            f"deployment {new.name!r} exists ({old.version.name}@{old.version.version}, or with other settings): change its version "
            f"with: udo update {new.name} {version.version}, its variables, secrets and files with: udo update {new.name} --env, --secret, "
            f"--file or --unset, its slots and replicas with: udo scale {new.name}; for other limits or another policy undeploy it first"
        )
    applications.require_no_application(session, new.name)
    generation = bump(session)
    deployment = Deployment(
        name=new.name,
        version_id=version.id,
        version=version,
        previous=[],
        generation=generation,
        made=generation,
        created_at=caller.now,
        placement=None,
        **config,
    )
    if new.over_nodes:
        deployment.placement = _placed(new, reachable(session, there), deployment.generation)
        if new.replicas:
            nodes = deployment.placement["nodes"]
            copies = replicas.first(nodes, new.replicas, disks(session, nodes))
            deployment.placement["replication"] = copies.document()
    session.add(deployment)
    audit.record(session, caller, "deploy", deployment=new.name, after=version.digest, detail=f"{version.name}@{version.version}")
    return deployment, True


def _require_groups(name: str, manifest: Mapping[str, Any], limits: Mapping[str, Any], slots: int) -> None:
    """UsageError if a keyed deployment would have more slots than key groups."""
    if manifest.get("key") and slots > (groups := SlotLimits.of(limits).key_groups):
        raise UsageError(f"deployment {name!r} has {groups} key groups: expected at most as many slots, got {slots}")


def _require_replicable(name: str, manifest: Mapping[str, Any], over_nodes: bool, count: int) -> None:
    """UsageError for replicas of a deployment that has no state, or whose slots the registry does not place."""
    if count and not (over_nodes and manifest.get("key")):
        kind = "is spread over nodes" if manifest.get("key") else "keeps state"
        raise UsageError(f"deployment {name!r}: expected replicas only of one that {kind}; got {count}")


def _placed(new: NewDeployment, nodes: list[str], made: int) -> dict[str, Any]:
    """The placement of the slots, spread evenly over these nodes. Conflict if there are none."""
    if not nodes:
        raise Conflict(
            f"deployment {new.name!r} is to be spread over nodes, and no live node listens for other hosts: start them with --tls and "
            "--listen (docs/executors.md)"
        )
    return {"version": FIRST_VERSION, "nodes": list(spreading.placed(nodes, new.slots)), "made": made}


def _elasticity(
    name: str, manifest: Mapping[str, Any], over_nodes: bool, before: dict[str, Any] | None, body: ElasticityBody | None
) -> dict[str, Any] | None:
    """The controllers' settings after the change. UsageError if the deployment does not allow them."""
    if body is None:
        return before
    given = body.model_dump(exclude_none=True)
    if given.get("policy", (before or {}).get("policy")) != (before or {}).get("policy"):
        given = {"settings": {}, **given}  # another policy's settings mean nothing
    after = {**(before or {}), **given}
    wish = Elasticity.parse(after)
    if wish.idle_after_s and manifest.get("key"):
        raise UsageError(
            f"deployment {name!r} keeps state, so it always has an instance: expected no idle_after_s, got {wish.idle_after_s:g}"
        )
    if wish.mode == AUTO and over_nodes:
        raise UsageError(
            f"deployment {name!r}: expected mode off or advise, since its slots are spread over nodes, and stay where they are; got auto. "
            f"See what is advised with: udo events {name}"
        )
    return after


def scale(session: Session, caller: Caller, name: str, body: ScaleBody, there: Presence) -> Deployment:
    """Set the number of slots (on each node, or in all over nodes), of replicas of each, or the controllers' settings; nodes that answered
    report again when they have them. Conflict while an update runs or key groups move, and if slots that have key groups would have to
    go."""
    deployment = find(session, name)
    slots = deployment.slots if body.slots is None else body.slots
    elasticity = _elasticity(name, deployment.version.manifest, bool(deployment.placement), deployment.elasticity, body.elasticity)
    _require_groups(name, deployment.version.manifest, deployment.limits, slots)
    if running := session.scalar(select(Update).where(Update.deployment == name, Update.state.in_(UPDATE_OPEN))):
        raise Conflict(f"deployment {name!r} is being updated ({running.id}); scale it when that has ended")
    changes = [f"{deployment.slots} to {slots} slots"] if slots != deployment.slots else []
    if body.replicas is not None and body.replicas != (before := replicas.wanted(deployment.placement)):
        _require_replicable(name, deployment.version.manifest, bool(deployment.placement), body.replicas)
        changes.append(f"{before} to {body.replicas} replicas")
        now, _ = placement_of(deployment)
        deployment.placement = replicas.changed(now, body.replicas, disks(session, now.nodes)).document()
    if elasticity != deployment.elasticity:
        told = elasticity or {}
        changes.append(", ".join(f"{entry} {told[entry]}" for entry in ("mode", "policy", "least", "most") if entry in told) or "settings")
    if changes and deployment.placement and slots != deployment.slots:
        nodes = reachable(session, there)
        deployment.placement = _rescaled(deployment, slots, nodes, disks(session, nodes))
    if changes:
        audit.record(session, caller, "scale", deployment=name, detail="; ".join(changes))
        deployment.slots, deployment.elasticity, deployment.generation = slots, elasticity, bump(session)
        for state in session.scalars(select(NodeState).where(NodeState.deployment == name, NodeState.state == "answering")):
            state.state = "scaling"
    return deployment


def placement_of(deployment: Deployment) -> tuple[Placement, int]:
    """The placement of a deployment over nodes, and its number of key groups. Conflict while groups move, or a step is under way."""
    assert deployment.placement is not None
    now = Placement.parse(deployment.placement, keyed=bool(deployment.version.manifest.get("key")))
    if now.moving is not None:
        raise Conflict(
            f"key groups of deployment {deployment.name!r} are being moved by node {now.moving.node}: try again when that is done"
        )
    if now.step is not None:
        raise Conflict(
            f"a step of application {now.step.application!r} changes the slots of deployment {deployment.name!r}: try again when that is "
            f"done, or give it up (udo app set {now.step.application} --mode advise)"
        )
    return now, SlotLimits.of(deployment.limits).key_groups


def _rescaled(deployment: Deployment, slots: int, nodes: list[str], disks: Mapping[str, str]) -> dict[str, Any]:
    now, key_groups = placement_of(deployment)
    now.require_no_replicas(deployment.name, "its number of slots cannot be changed")
    if now.replication is not None:
        nodes = Nodes(disks, nodes).able(now.replication)
    if slots < len(now.nodes):
        return spreading.shrunk(now, slots, key_groups).document()
    if not nodes:
        raise Conflict(f"no live node that may have new slots of deployment {deployment.name!r} listens for other hosts")
    return spreading.grown(now, slots, nodes, key_groups, disks).document()


def remove(session: Session, caller: Caller, name: str, *, drop_state: bool = False) -> None:
    """Undeploy: nodes stop its instances and drop its state. Conflict without `drop_state` if it keeps any, and while an update runs."""
    deployment = find(session, name)
    applications.require_free(session, name, "undeploy it")
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
    """The version that serves this epoch of the session `run`: the first caller binds the wanted one, all later callers get the same."""
    deployment = find(session, name)
    if bound := session.get(Epoch, (name, run, epoch)):
        return bound
    bound = Epoch(deployment=name, session=run, epoch=epoch, version=deployment.version.version, digest=deployment.version.digest, at=now)
    session.add(bound)
    old = sql_delete(Epoch).where(Epoch.deployment == name, Epoch.session == run, Epoch.epoch < epoch - EPOCHS_KEPT)
    session.execute(old)
    return bound


def forget_epochs(session: Session, before: float) -> None:
    """Drop bindings made before `before`, except for the last epoch of each session: a query that is restarted runs that epoch again."""
    later = aliased(Epoch)
    followed = exists().where(later.deployment == Epoch.deployment, later.session == Epoch.session, later.epoch > Epoch.epoch)
    session.execute(sql_delete(Epoch).where(Epoch.at < before, followed), execution_options={"synchronize_session": False})
