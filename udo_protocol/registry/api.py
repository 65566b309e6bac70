"""Client of the registry's HTTP API for all of its callers: node manager, Spark driver, command line. One method per endpoint.

Errors of the registry are raised as the classes of udo_protocol.errors; a registry that is away is `Unavailable`. Calls of
the OCI distribution API are in content.py.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack
from urllib.parse import quote

from udo_protocol.errors import Unavailable
from udo_protocol.lifecycle import UPDATE_FINAL
from udo_protocol.registry.applications import ApplicationsClient
from udo_protocol.registry.content import ContentClient
from udo_protocol.registry.http import BRIEFLY_S, RESTART_S, Json, Streamed, retrying

if TYPE_CHECKING:
    from udo_protocol.registry.wanted import NodeReport  # code that only sends requests needs neither pydantic nor pyarrow

__all__ = ["FINAL", "Registry"]
# A paused registry process still accepts connections: after this wait a node turns to the next one, before the node counts as away (10 s).
# With several processes a long poll takes no longer either, so that it does not stay with a paused one.
HEARD_S = 5.0
# Large images are written to disk before the answer comes.
RESTORED_S = 600.0
_PIECE = 1 << 20
# An update's last event has one of these phases.
FINAL = UPDATE_FINAL


class DeployOptions(TypedDict, total=False):
    """Options of a deployment; one that is left out, or None, has the registry's default. slots: on each node, with over_nodes in all.
    replicas: of each slot, on other nodes. policy: for events that the operator fails on. limits, elasticity: by name."""

    env: Mapping[str, str] | None
    secrets: Mapping[str, str] | None
    files: Mapping[str, bytes] | None
    slots: int
    over_nodes: bool
    replicas: int
    policy: str
    limits: Mapping[str, float] | None
    elasticity: Json | None


class Registry(ContentClient, ApplicationsClient):
    """A registry at `url`: `http://host:port`, `https://...` or `unix:/path.sock`, or several of these that are processes of one registry,
    separated by commas; with the write token if writes are intended."""

    # Catalogue

    def operators(self) -> list[Json]:
        """[{name, latest, versions: [{version, digest, created_at, pushed_by}]}], the latest version first."""
        return list(self._json("GET", "/api/v1/operators")["operators"])

    def version(self, operator: str, ref: str = "latest") -> Json:
        """{name, version, digest, manifest, layers: [{digest, size, kind}], created_at, pushed_by}; ref: version, digest or `latest`."""
        return self._json("GET", f"/api/v1/operators/{_q(operator)}/versions/{_q(ref)}")

    def collect_garbage(self, unused_s: float | None = None, *, untagged: bool = False) -> Json:
        """{blobs, uploads} removed: those that no manifest needs and no push has touched for `unused_s` (default: the registry's day).
        With `untagged` also images of that age that have no tag, belong to no index and are attached to nothing."""
        return self._json("POST", "/api/v1/gc", {"untagged": untagged} | ({} if unused_s is None else {"unused_s": unused_s}))

    def delete_version(self, operator: str, ref: str, *, force: bool = False) -> None:
        """Delete a version; Conflict while a deployment uses it, or, without `force`, could be rolled back to it."""
        self._json("DELETE", f"/api/v1/operators/{_q(operator)}/versions/{_q(ref)}{'?force=true' if force else ''}")

    # Deployments

    def deployments(self) -> list[Json]:
        """All deployments, each as `deployment` returns it."""
        return list(self._json("GET", "/api/v1/deployments")["deployments"])

    def deployment(self, name: str) -> Json:
        """{name, operator, version, digest, manifest, env, secrets: [names], files: [paths], slots, placement, elasticity, application,
        policy, limits, generation, previous: [{version, digest}], created_at, nodes: [{node, state, version, digest, detail, error_code,
        at}]}"""
        return self._json("GET", f"/api/v1/deployments/{_q(name)}")

    def deploy(self, name: str, operator: str, version: str = "latest", **options: Unpack[DeployOptions]) -> Json:
        """Deploy an operator. Returns at once; nodes report into `deployment(name)["nodes"]`. Repeating the same call is fine; a different
        one is a Conflict."""
        files = {path: base64.b64encode(content).decode() for path, content in (options.pop("files", None) or {}).items()}
        body = {name: value for name, value in options.items() if value is not None}
        whole = {"name": name, "operator": operator, "version": version, "files": files, **body}
        return self._json("POST", "/api/v1/deployments", whole, retry_s=BRIEFLY_S)

    def scale(self, name: str, slots: int | None = None, elasticity: Json | None = None, replicas: int | None = None) -> Json:
        """Set the number of slots on each node, the replicas of each, or the controllers' settings: `elasticity` = {mode: off | advise |
        auto, policy, least, most, settings: {name: number or text}}, of which any may be left out. Returns at once; nodes report into
        `deployment(name)["nodes"]`."""
        body = ({} if slots is None else {"slots": slots}) | ({"elasticity": elasticity} if elasticity else {})
        body |= {} if replicas is None else {"replicas": replicas}
        return self._json("POST", f"/api/v1/deployments/{_q(name)}/scale", body, retry_s=BRIEFLY_S)

    def undeploy(self, name: str, *, drop_state: bool = False) -> None:
        """Remove a deployment; nodes stop its instances. A keyed one loses its state: Conflict without `drop_state`."""
        self._json("DELETE", f"/api/v1/deployments/{_q(name)}{'?drop_state=true' if drop_state else ''}")

    def update(
        self, name: str, version: str, timeout_s: float = 120.0, canary: Json | None = None, config: Json | None = None
    ) -> Iterator[Json]:
        """Start a live update to a version (or digest). A refusal (SchemaError, Conflict, NotFound) is raised by the call itself; the
        iterator yields {id, phase, node, detail, at_ms, error_code} until the phase is in FINAL; `error_code` is a code of
        udo_protocol.errors if something failed. The update continues even without iteration.

        `canary` = {percent, for_s, rollback_if: ["errors>0", ...], min_events}: the new version first serves that share of the new lanes
        (a keyed one tries that share of the key groups and serves nobody), and the registry decides; the last phase may then be
        `rolled_back`.

        `config` = {env: {K: V}, secrets: {K: V}, files: {path: bytes}}: these are set from then on, or removed if the value is None;
        all others stay."""
        body = {"version": version, "timeout_s": timeout_s} | ({"canary": canary} if canary else {})
        if config:
            files = config.get("files", {}).items()
            packed = {path: None if content is None else base64.b64encode(content).decode() for path, content in files}
            body["config"] = {**config, "files": packed}
        return self._follow(f"/api/v1/deployments/{_q(name)}/update", body)

    def rollback(self, name: str, version: str | None = None, timeout_s: float = 120.0) -> Iterator[Json]:
        """Like `update`, back to the former version, or to the named earlier one."""
        body = {"timeout_s": timeout_s} | ({"version": version} if version else {})
        return self._follow(f"/api/v1/deployments/{_q(name)}/rollback", body)

    def promote(self, name: str) -> Iterator[Json]:
        """Like `update`, for the update whose canary is under way: the canary ends at once, as passed. Conflict if there is none."""
        return self._follow(f"/api/v1/deployments/{_q(name)}/promote", {})

    def update_status(self, update_id: str) -> Json:
        """{id, deployment, action, state, detail, from_version, to_version, nodes, events, ...} of an update."""
        return self._json("GET", f"/api/v1/updates/{_q(update_id)}")

    def in_step(self, deployment: str, *, node: str, replica: str, place: int, version: int) -> Json:
        """Require this replica, which holds all that was ENDed before, for each END of the owner in that place; the new placement."""
        body = {"node": node, "replica": replica, "place": place, "version": version}
        return dict(self._json("POST", f"/api/v1/deployments/{_q(deployment)}/replicas", body, retry_s=BRIEFLY_S)["placement"])

    def plan(self, deployment: str) -> int:
        """A number for a plan that calls the deployment, higher than all given before; needs no token."""
        return int(self._json("POST", f"/api/v1/deployments/{_q(deployment)}/plans", retry_s=BRIEFLY_S)["plan"])

    def epoch(self, deployment: str, session: str, epoch: int) -> Json:
        """The {version, digest} that serves this epoch of the session: bound by the first caller, the same for all later ones."""
        return self._json("POST", f"/api/v1/deployments/{_q(deployment)}/epochs", {"session": session, "epoch": epoch}, retry_s=BRIEFLY_S)

    def claim(self, deployment: str, session: str, node: str, incarnation: str, *, stored: bool = False, start_empty: bool = False) -> Json:
        """Ask for a keyed session that the node is about to serve: {session, version, node, incarnation, nodes, spread, at, granted, part}.
        The first node that asks becomes the session's home, and only the home is granted a session without a store. For a deployment over
        nodes, each node with slots is granted its `part`, as long as it has the disk with which it first asked."""
        body = {"session": session, "node": node, "incarnation": incarnation, "stored": stored, "start_empty": start_empty}
        return self._json("POST", f"/api/v1/deployments/{_q(deployment)}/group-maps", body, retry_s=RESTART_S)

    def group_maps(self, deployment: str) -> list[Json]:
        """The locations of the state of each keyed session: [{session, version, node, incarnation, nodes, spread, at}]."""
        return list(self._json("GET", f"/api/v1/deployments/{_q(deployment)}/group-maps")["group_maps"])

    def release(
        self, deployment: str, session: str, *, node: str = "", incarnation: str = "", version: int | None = None, force: bool = False
    ) -> Json:
        """Remove the session's home. Conflict while its node lives, unless forced; a node that names itself has dropped the session that
        the map of that `version` gave it."""
        body = {"session": session, "node": node, "incarnation": incarnation, "version": version, "force": force}
        return self._json("POST", f"/api/v1/deployments/{_q(deployment)}/group-maps/release", body)

    def move_groups(self, deployment: str, step: str, *, node: str, version: int, groups: Sequence[int] = (), to: int = 0) -> Json:
        """Take a step of a move of key groups between nodes, as the node that executes it: `begin` (by the map of that version, move these
        groups of one of its slots to the slot in place `to`), `in force` or `done` (the move of that version). The new placement."""
        body = {"step": step, "node": node, "version": version, "groups": list(groups), "to": to}
        return dict(self._json("POST", f"/api/v1/deployments/{_q(deployment)}/moves", body, retry_s=BRIEFLY_S)["placement"])

    def audit(self, deployment: str | None = None, limit: int = 100) -> list[Json]:
        """[{at, who, address, action, deployment, from_digest, to_digest, detail}], the latest first."""
        chosen = f"&deployment={_q(deployment)}" if deployment else ""
        return list(self._json("GET", f"/api/v1/audit?limit={limit}{chosen}")["audit"])

    # Nodes

    def nodes(self) -> list[Json]:
        """[{node, address, driver, capabilities, metrics_address, listen, last_seen, live, drained, delays_ms: {node: round trip}}]"""
        return list(self._json("GET", "/api/v1/nodes")["nodes"])

    def heartbeat(
        self,
        node: str,
        *,
        address: str = "",
        driver: str = "process",
        capabilities: Json | None = None,
        metrics_address: str = "",
        listen: str = "",
        incarnation: str = "",
    ) -> Json:
        """Report that the node lives, at its start and every `interval_s` of the reply. Until then a node takes no part in updates. With
        `anew` in the reply the registry knows nothing about the node's deployments: all have to be reported.

        Conflict, as for the node's other calls, if there is a node of that name with another incarnation.
        """
        body = {"address": address, "driver": driver, "capabilities": capabilities or {}, "metrics_address": metrics_address}
        body |= {"listen": listen} if listen else {}
        body |= {"incarnation": incarnation} if incarnation else {}
        return self._json("POST", f"/api/v1/nodes/{_q(node)}/heartbeat", body, retry_s=BRIEFLY_S, read_s=min(self._timeout_s, HEARD_S))

    def leave(self, node: str, incarnation: str = "") -> None:
        """Report that the node stops as intended: no update waits for it."""
        self._json("DELETE", f"/api/v1/nodes/{_q(node)}{_by(incarnation)}", retry_s=BRIEFLY_S)

    def drain(self, node: str, keyed: Sequence[str] = (), *, undo: bool = False) -> list[Json]:
        """Give the node no more slots of deployments over nodes (`undo`: it may get them again). Stateless slots move to other nodes; slots
        of the `keyed` deployments are removed; slots with replicas move by themselves. Returns deployments that still have slots there:
        [{deployment, keyed, waits, why}]; `waits`: no action is needed."""
        body = {"keyed": list(keyed), "undo": undo}
        return list(self._json("POST", f"/api/v1/nodes/{_q(node)}/drain", body, retry_s=BRIEFLY_S)["left"])

    def wanted(self, node: str, after: int = -1, wait_s: float = 25.0, incarnation: str = "") -> Json:
        """The deployments that this node shall have, once their generation differs from `after`, or unchanged after `wait_s`.

        The document of a udo_protocol.registry.wanted.WantedState, which says what a node does with it.
        """
        if self.several:
            wait_s = min(wait_s, HEARD_S)
        read_s = wait_s + min(self._timeout_s, HEARD_S)
        query = f"?after={after}&wait_s={wait_s}{_by(incarnation, '&')}"
        return self._json("GET", f"/api/v1/nodes/{_q(node)}/wanted{query}", read_s=read_s)

    def report(self, node: str, report: NodeReport, incarnation: str = "") -> None:
        """Report the state of a deployment on this node, or of a step of its update."""
        path = f"/api/v1/nodes/{_q(node)}/report{_by(incarnation)}"
        self._json("POST", path, report.model_dump(exclude_none=True), retry_s=RESTART_S, read_s=min(self._timeout_s, RESTART_S))

    def health(self) -> Json:
        """{status, registry: its number, generation, requires_signatures, live_nodes, waiting_requests}."""
        return self._json("GET", "/healthz")

    def backup(self, path: Path) -> int:
        """Write the registry's content to one file that only its owner can read, complete or not at all; returns its size in bytes."""
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                streamed = self._stream("GET", "/api/v1/backup")
                with streamed as response:
                    for piece in self._guarded(response.iter_raw(), streamed.url):
                        file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        return size

    def restore(self, path: Path, *, replace: bool = False) -> Json:
        """Restore a backup into the registry: {registry: its number from now on, was, made_at, rows, blobs}. Conflict if the registry is
        not empty, unless its content is to be replaced."""
        with path.open("rb") as file:
            headers = {"Content-Length": str(os.fstat(file.fileno()).st_size), "Content-Type": "application/octet-stream"}
            content = iter(lambda: file.read(_PIECE), b"")
            query = "?replace=true" if replace else ""
            return dict(self._send("POST", f"/api/v1/restore{query}", content=content, headers=headers, read_s=RESTORED_S).json())

    def _follow(self, path: str, body: Json) -> Iterator[Json]:
        first = self._stream("POST", path, body, {"Accept": "text/event-stream"})
        events = self._events(first)
        weakref.finalize(events, first.close)  # closing a generator that was never started runs none of its code
        return events

    def _events(self, streamed: Streamed) -> Iterator[Json]:
        """Events up to the last one; a broken stream is resumed where it broke, since the registry may just be restarting."""
        update_id, seen = "", "0"
        while True:
            try:
                with streamed as response:
                    for number, event in _parse(self._guarded(response.iter_lines(), streamed.url)):
                        seen, update_id = number, event["id"]
                        yield event
                        if event["phase"] in FINAL:
                            return
                broken = Unavailable(f"the registry at {streamed.url} ended the stream of update {update_id or '?'} before its last event")
            except Unavailable as e:
                broken = e
            if not update_id:
                raise broken
            again = partial(self._stream, "GET", f"/api/v1/updates/{update_id}/events", None, {"Last-Event-ID": seen})
            streamed = retrying(again, self._timeout_s)


def _parse(lines: Iterator[str]) -> Iterator[tuple[str, Json]]:
    """(id, data) of each server-sent event."""
    number = "0"
    for line in lines:
        if line.startswith("id: "):
            number = line[4:]
        elif line.startswith("data: "):
            yield number, json.loads(line[6:])


def _by(incarnation: str, before: str = "?") -> str:
    """The query parameter that says which node of that name asks."""
    return f"{before}incarnation={_q(incarnation)}" if incarnation else ""


def _q(text: str) -> str:
    return quote(text, safe=":")
