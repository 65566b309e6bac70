"""Who uses an operator version: deployments by the registry, open lanes and sessions by the nodes that can be asked from here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from udo_cli import remote
from udo_cli.settings import CliSettings
from udo_protocol.errors import NotFound, SlotBroken, Unavailable
from udo_protocol.node.api import NodeClient, connect_node
from udo_protocol.registry.api import Registry

Json = dict[str, Any]


def live_nodes(api: Registry) -> Iterator[tuple[str, NodeClient | None]]:
    """Every live node, with None for one that cannot be asked from here: it answers on a socket of its own host."""
    for node in api.nodes():
        if node["live"]:
            yield node["node"], reachable(node["address"])


def reachable(address: str) -> NodeClient | None:
    """The node manager at HOST:PATH, if that is a socket of this host."""
    host, _, path = address.rpartition(":")
    return connect_node(path) if host in ("", socket.gethostname()) and Path(path).exists() else None


def nodes_to_ask(address: str | None) -> Iterator[tuple[str, NodeClient | None, str]]:
    """(name, node, why not) of the node manager at `address` or UDO_NODE if one is given, else of every node the registry knows; of
    this host's alone when there is no registry."""
    settings = CliSettings()
    if address := address or settings.node:
        yield address, connect_node(address), ""
        return
    try:
        with remote.registry(settings) as api:
            known = api.nodes()
    except Unavailable as e:
        yield "of others", None, str(e)
        yield "here", connect_node(settings.node_address()), ""
        return
    for n in known:
        node = reachable(n["address"]) if n["live"] else None
        yield n["node"], node, f"its socket is on another host, {n['address']}" if n["live"] else f"away since {n['last_seen']}"
    here = settings.local_node()
    if here and not any(n["address"].endswith(f":{here}") for n in known):  # one that follows another registry, or none
        yield "here", connect_node(here), ""


def of_version(api: Registry, name: str, digest: str) -> Json:
    """{deployments: [{name, wanted}], queries: ..., nodes_not_asked: [names]} of the operator version with that digest.

    `wanted` is False for a deployment that could only be rolled back to it. A query may use it under a deployment of another
    version, by asking for NAME@VERSION.
    """
    all_of_it = [d for d in api.deployments() if d["operator"] == name]
    known = [d for d in all_of_it if digest in (d["digest"], *(p["digest"] for p in d["previous"]))]
    found = [{"name": d["name"], "wanted": d["digest"] == digest} for d in known]
    return {"deployments": found, **_queries(api, {d["name"] for d in all_of_it}, digest)}


def of_deployment(api: Registry, name: str) -> Json:
    """{queries: ..., nodes_not_asked: [names]} of a deployment."""
    return _queries(api, {name}, "")


def _queries(api: Registry, deployments: set[str], digest: str) -> Json:
    """`queries`: [{node, deployment, slot, version, lanes, sessions: [{session, lanes, in_use}]}], of slots that run `digest`.

    A lane is one task or client that exchanges events now, a session what one query of a keyed deployment keeps; a
    stateless query has lanes only, while its tasks run.
    """
    used: list[Json] = []
    silent: list[str] = []
    for name, node in live_nodes(api) if deployments else ():
        try:
            if node is None:
                raise Unavailable("on another host")
            slots = [s for s in node.status().slots if s.deployment in deployments and digest in ("", s.digest)]
            used += [_slot(name, node, s) for s in slots]
        except Unavailable:
            silent.append(name)
    return {"queries": [u for u in used if u["lanes"] or u["sessions"]], "nodes_not_asked": silent}


def _slot(name: str, node: NodeClient, slot: Any) -> Json:
    try:
        kept = [s for s in node.sessions(slot.deployment).sessions if s.slot == slot.slot]
    except (NotFound, SlotBroken):  # undeployed meanwhile; what its operator broke `udo status` says
        kept = []
    return {
        "node": name,
        "deployment": slot.deployment,
        "slot": slot.slot,
        "version": slot.version,
        "lanes": slot.lanes,
        "sessions": [{"session": s.session, "lanes": s.lanes, "in_use": s.in_use} for s in kept],
    }
