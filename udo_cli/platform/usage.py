"""The users of an operator version: deployments, from the registry, and lanes and sessions, from the nodes that can be asked from here."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from udo_cli.platform import remote
from udo_cli.settings import CliSettings
from udo_protocol import ranges
from udo_protocol.errors import NotFound, SlotBroken, Unavailable
from udo_protocol.limits import MOST_KEY_GROUPS
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    from udo_protocol.node.api import NodeClient

Json = dict[str, Any]
T = TypeVar("T")


def live_nodes(api: Registry) -> Iterator[tuple[str, NodeClient | None]]:
    """(name, client) of every live node; the client is None for a node on another host if no node on this host can ask it."""
    known = [n for n in api.nodes() if n["live"]]
    here = _here(known, CliSettings())
    for node in known:
        yield node["node"], _client(node, here)


def nodes_to_ask(address: str | None, *, everywhere: bool = False) -> Iterator[tuple[str, NodeClient | None, str]]:
    """(name, client or None, reason why it cannot be asked) of the node manager at `address` or UDO_NODE if given, unless `everywhere`.

    Else of every node that the registry knows; without a registry, of this host's node only.
    """
    settings = CliSettings()
    if not everywhere and (address := address or settings.node):
        yield address, remote.node(address), ""
        return
    try:
        with remote.registry(settings) as api:
            known = api.nodes()
    except Unavailable as e:
        yield "other nodes", None, str(e)
        yield "node of this host", remote.connect(settings.node_address()), ""
        return
    here = _here(known, settings)
    for n in known:
        why = f"it is on another host, {n['address']}, and there is no node of its registry here to ask it by"
        yield f"node {n['node']}", _client(n, here) if n["live"] else None, why if n["live"] else f"away since {n['last_seen']}"
    if here is None and (local := settings.local_node()):  # this host's node follows another registry, or none
        yield "node of this host", remote.connect(local), ""


def ask_all(
    address: str | None, ask: Callable[[NodeClient], T], *, everywhere: bool = False
) -> tuple[list[tuple[NodeClient, T]], list[str]]:
    """Return the answers of the nodes that could be asked, and for each other node a line with the reason.

    Nodes that raise NotFound are left out; NotFound if all do. Unavailable if none can be asked.
    """
    answers, silent, missing = [], [], None
    for name, node, why in nodes_to_ask(address, everywhere=everywhere):
        try:
            if node is None:
                raise Unavailable(why)
            answers.append((node, ask(node)))
        except NotFound as e:
            missing = e
        except Unavailable as e:
            silent.append(f"not asked: {name}: {e}")
    if not answers:
        raise missing or Unavailable("; ".join(silent) or "there is no node to ask; start one with: udo up")
    return answers, silent


def _here(known: list[Json], settings: CliSettings) -> NodeClient | None:
    """The node in use, if it is one of these, by its name too: nodes of other hosts have their sockets at the same path."""
    local = settings.local_node()
    names = {n["node"] for n in known if local and Path(n["address"].rpartition(":")[2]) == Path(local).resolve()}
    if not local or not names:
        return None
    node = remote.connect(local)
    try:
        return node if node.status().node in names else None
    except Unavailable:
        return None


def _client(node: Json, here: NodeClient | None) -> NodeClient | None:
    """A client for a node: on this host by its socket (address HOST:PATH), on another host through the node that is here."""
    host, _, path = node["address"].rpartition(":")
    if host in ("", socket.gethostname()) and Path(path).exists():
        return remote.connect(path)
    return here and here.on(node["node"])


def of_version(api: Registry, name: str, digest: str) -> Json:
    """{deployments: [{name, wanted}], queries: ..., key_groups: ..., nodes_not_asked: [names]} for the operator version with that digest.

    `wanted` is False for a deployment that could only be rolled back to it. A query may use it under a deployment of another
    version, by asking for NAME@VERSION.
    """
    all_of_it = [d for d in api.deployments() if d["operator"] == name]
    known = [d for d in all_of_it if digest in (d["digest"], *(p["digest"] for p in d["previous"]))]
    found = [{"name": d["name"], "wanted": d["digest"] == digest} for d in known]
    return {"deployments": found, **_queries(api, {d["name"] for d in all_of_it}, digest)}


def of_deployment(api: Registry, name: str) -> Json:
    """{queries: ..., key_groups: ..., nodes_not_asked: [names]} for a deployment."""
    return _queries(api, {name}, "")


def _queries(api: Registry, deployments: set[str], digest: str) -> Json:
    """`queries`: [{node, deployment, slot, version, lanes, sessions: [{session, lanes, in_use}]}], of slots that run `digest`.

    A lane is one task or client that exchanges events now, a session the state of one query of a keyed deployment; a
    stateless query has lanes only, while its tasks run. `key_groups`: [{node, deployment, slot, number, groups, map_version}], of
    deployments that keep state: the number of key groups in each slot, and the groups.
    """
    used: list[Json] = []
    maps: list[Json] = []
    silent: list[str] = []
    for name, node in live_nodes(api) if deployments else ():
        try:
            if node is None:
                raise Unavailable("on another host")
            slots = [s for s in node.status().slots if s.deployment in deployments and digest in ("", s.digest)]
            used += [_slot(name, node, s) for s in slots]
            maps += [_groups(name, s) for s in slots if s.map_version]
        except Unavailable:
            silent.append(name)
    return {"queries": [u for u in used if u["lanes"] or u["sessions"]], "key_groups": maps, "nodes_not_asked": silent}


def _groups(name: str, slot: Any) -> Json:
    place = {"node": name, "deployment": slot.deployment, "slot": slot.slot}
    return {**place, "number": len(ranges.parsed(slot.groups, MOST_KEY_GROUPS)), "groups": slot.groups, "map_version": slot.map_version}


def _slot(name: str, node: NodeClient, slot: Any) -> Json:
    try:
        kept = [s for s in node.sessions(slot.deployment).sessions if s.slot == slot.slot]
    except (NotFound, SlotBroken):  # undeployed meanwhile, or corrupted by its operator, which `udo status` shows
        kept = []
    return {
        "node": name,
        "deployment": slot.deployment,
        "slot": slot.slot,
        "version": slot.version,
        "lanes": slot.lanes,
        "sessions": [{"session": s.session, "lanes": s.lanes, "in_use": s.in_use} for s in kept],
    }
