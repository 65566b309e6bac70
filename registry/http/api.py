"""The JSON API under /api/v1: thin routes that check, call one function of the domain, and answer. No rule lives here."""

from __future__ import annotations

import json
import re

from flask import Blueprint, Response, request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from registry.content import repositories
from registry.domain import audit, catalogue, deployments, draining, failover, group_maps, nodes, placements, plans, updates
from registry.domain.canaries import CanaryBody
from registry.domain.configuration import ConfigBody
from registry.http.starting import TIMEOUT_S, promote, start
from registry.http.stream import stream
from registry.http.web import body, caller, flag, number, reply, services
from udo_protocol.errors import UsageError
from udo_protocol.registry.wanted import NodeReport

routes = Blueprint("api", __name__, url_prefix="/api/v1")
_NODE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


class UpdateBody(BaseModel):
    """Body of update and rollback."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    version: str | None = None
    timeout_s: float = Field(default=TIMEOUT_S, gt=0, le=3600)
    canary: CanaryBody | None = None
    config: ConfigBody | None = None


class EpochBody(BaseModel):
    """Body of POST .../epochs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    session: str = Field(min_length=1, max_length=200)
    epoch: int = Field(ge=-1, lt=1 << 63)


class GcBody(BaseModel):
    """Body of POST /api/v1/gc. With `unused_s` shorter than a push takes, one under way may have to start again."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    unused_s: float | None = Field(default=None, ge=0, le=10 * 365 * 86400)
    untagged: bool = False


@routes.get("/operators")
def list_operators() -> Response:
    with services().store.read() as session:
        return reply({"operators": catalogue.operators(session)})


@routes.get("/operators/<name>/versions/<ref>")
def get_version(name: str, ref: str) -> Response:
    with services().store.read() as session:
        return reply(catalogue.describe(catalogue.find(session, name, ref)))


@routes.delete("/operators/<name>/versions/<ref>")
def delete_version(name: str, ref: str) -> Response:
    force = flag("force")
    with services().store.write(durable=True) as session:
        repositories.delete_version(session, caller(), catalogue.find(session, name, ref), force=force)
    return reply({})


@routes.post("/gc")
def collect_garbage() -> Response:
    """Collect garbage, as the registry does every few minutes by itself, with other bounds if wished."""
    wish = body(GcBody)
    unused_s = services().config.unused_kept_s if wish.unused_s is None else wish.unused_s
    blobs, uploads = services().collect(unused_s, untagged=wish.untagged)
    return reply({"blobs": blobs, "uploads": uploads})


@routes.get("/deployments")
def list_deployments() -> Response:
    s = services()
    with s.store.read() as session:
        return reply({"deployments": deployments.everything(session, s.presence(session))})


@routes.get("/deployments/<name>")
def get_deployment(name: str) -> Response:
    s = services()
    with s.store.read() as session:
        return reply(deployments.describe(session, deployments.find(session, name), s.presence(session)))


@routes.post("/deployments")
def deploy() -> Response:
    s, new = services(), body(deployments.NewDeployment)
    with s.store.write() as session:
        there = s.presence(session)
        deployment, created = deployments.create(session, caller(), new, there)
        return reply(deployments.describe(session, deployment, there), 201 if created else 200)


@routes.delete("/deployments/<name>")
def undeploy(name: str) -> Response:
    drop_state = flag("drop_state")
    with services().store.write() as session:
        deployments.remove(session, caller(), name, drop_state=drop_state)
    return reply({})


@routes.post("/deployments/<name>/scale")
def scale(name: str) -> Response:
    s, wish = services(), body(deployments.ScaleBody)
    with s.store.write() as session:
        return reply(
            deployments.describe(session, deployments.scale(session, caller(), name, wish, s.presence(session)), s.presence(session))
        )


@routes.post("/deployments/<name>/moves")
def move_groups(name: str) -> Response:
    wish = body(placements.MoveBody)
    with services().store.write(durable=True) as session:  # a forgotten version of the map could be given to another move
        return reply({"placement": placements.move(session, caller(), name, wish)})


@routes.post("/deployments/<name>/replicas")
def replica_in_step(name: str) -> Response:
    wish = body(failover.InStepBody)
    with services().store.write(durable=True) as session:
        return reply({"placement": failover.in_step(session, deployments.find(session, name), wish)})


@routes.post("/deployments/<name>/epochs")
def bind_epoch(name: str) -> Response:
    wish = body(EpochBody)
    with services().store.write() as session:
        bound = deployments.bind_epoch(session, name, wish.session, wish.epoch, services().clock())
        return reply({"version": bound.version, "digest": bound.digest})


@routes.post("/deployments/<name>/plans")
def number_plan(name: str) -> Response:
    s = services()
    with s.store.write() as session:
        deployments.find(session, name)
        return reply({"plan": plans.number(session, s.clock())})


@routes.get("/deployments/<name>/group-maps")
def list_group_maps(name: str) -> Response:
    with services().store.read() as session:
        return reply({"group_maps": group_maps.everything(session, name)})


@routes.post("/deployments/<name>/group-maps")
def claim_group_map(name: str) -> Response:
    wish = body(group_maps.ClaimBody)
    with services().store.write(durable=True) as session:  # a forgotten home could be given away twice
        return reply(group_maps.claim(session, name, wish, services().clock()))


@routes.post("/deployments/<name>/group-maps/release")
def release_group_map(name: str) -> Response:
    s, wish = services(), body(group_maps.ReleaseBody)
    with s.store.write(durable=True) as session:
        return reply(group_maps.release(session, caller(), name, wish, s.presence(session).live))


@routes.post("/deployments/<name>/<any(update, rollback):action>")
def start_update(name: str, action: str) -> Response:
    wish, by = body(UpdateBody), caller()
    if action == "update" and wish.version is None:
        raise UsageError('update: expected the version to go to, as {"version": ...}')
    if action == "rollback" and wish.canary is not None:
        raise UsageError("rollback: a canary belongs to an update; roll back without one")
    if action == "rollback" and wish.config is not None:
        raise UsageError("rollback: variables, secrets and files stay as they are; change them by an update")
    canary = wish.canary.model_dump() if wish.canary else None
    return _followed(start(by, updates.WantedUpdate(name, action, wish.version, wish.timeout_s, canary, wish.config)))


@routes.post("/deployments/<name>/promote")
def promote_canary(name: str) -> Response:
    return _followed(promote(caller(), name))


def _followed(update_id: str) -> Response:
    """The events of an update as they happen, if a stream is asked for; else the address to read them at."""
    if "text/event-stream" in request.headers.get("Accept", ""):
        return stream(update_id)
    return reply({"id": update_id, "events": f"/api/v1/updates/{update_id}/events"}, 202)


@routes.get("/updates/<update_id>")
def get_update(update_id: str) -> Response:
    with services().store.read() as session:
        return reply(updates.describe(session, updates.find(session, update_id)))


@routes.get("/updates/<update_id>/events")
def update_events(update_id: str) -> Response:
    with services().store.read() as session:
        updates.find(session, update_id)
    return stream(update_id)


@routes.get("/audit")
def audit_rows() -> Response:
    with services().store.read() as session:
        return reply({"audit": audit.rows(session, request.args.get("deployment"), int(number("limit", 100, 1000)))})


@routes.get("/nodes")
def list_nodes() -> Response:
    s = services()
    with s.store.read() as session:
        found, delays = nodes.everything(session, s.presence(session)), s.managers.delays()
        return reply({"nodes": [{**n, "delays_ms": delays.get(n["node"], {})} for n in found]})


@routes.post("/nodes/<node>/heartbeat")
def heartbeat(node: str) -> Response:
    s, beat = services(), body(nodes.Heartbeat)
    with s.store.write() as session:
        anew = nodes.heartbeat(session, checked_node(node), beat, s.live_since, s.clock())
    return reply({"generation": s.hub.generation, "interval_s": s.config.node_live_s / 4, "anew": anew})


@routes.delete("/nodes/<node>")
def leave(node: str) -> Response:
    s = services()
    with s.store.write() as session:
        _require_same(session, node)
        nodes.leave(session, node, s.clock())
    return reply({})


@routes.post("/nodes/<node>/drain")
def drain(node: str) -> Response:
    s, wish = services(), body(draining.DrainBody)
    with s.store.write(durable=True) as session:
        return reply({"left": draining.drain(session, caller(), checked_node(node), wish, s.presence(session))})


@routes.get("/nodes/<node>/wanted")
def wanted(node: str) -> Response:
    s, after, wait_s = services(), request.args.get("after", "-1"), number("wait_s", 25, services().config.poll_max_s)
    with s.store.read() as session:
        _require_same(session, checked_node(node))
    s.hub.enter()
    try:
        s.hub.wait_generation(int(after) if after.isdecimal() and len(after) < 19 else -1, wait_s)
    finally:
        s.hub.leave()
    generation, answer = s.wanted
    if generation != s.hub.generation:
        with s.store.read() as session:
            state = nodes.wanted(session)
        answer = json.dumps(state.document(), separators=(",", ":")).encode()
        s.wanted = (state.generation, answer)
    return Response(answer, mimetype="application/json")


@routes.post("/nodes/<node>/report")
def report(node: str) -> Response:
    said = body(NodeReport)
    with services().store.write() as session:
        _require_same(session, checked_node(node))
        nodes.report(session, node, said, services().clock())
    return reply({})


def _require_same(session: Session, node: str) -> None:
    """Conflict if the node that asks (?incarnation=...) is not the live node of that name."""
    nodes.require_same(session, node, request.args.get("incarnation", ""), services().live_since)


def checked_node(node: str) -> str:
    """The name of a node. UsageError if it is invalid."""
    if not _NODE.match(node):
        raise UsageError(f"node name {node!r:.120}: expected letters, digits, '.', '_' or '-', at most 100")
    return node
