"""Ask nodes for data that only they have, for a user who is signed in with a write token.

A node on the registry's own host is asked through its socket, which only its user can open. Any other node that listens for other hosts
is asked as node managers ask each other: over TLS with the registry's certificate, with a proof that this side has the registry's token
(udo_protocol/node/peers.py). The calls that a node then answers are listed in node_manager/rpc/forwarding.py. A node that is reachable in
neither way, does not answer, or is away is listed with the reason.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from sqlalchemy import select

from registry.console import signing_in
from registry.domain.audit import iso
from registry.http.web import services
from registry.store.models import Node
from udo_protocol.certificates import Tls
from udo_protocol.errors import NotFound, UdoError, Unauthorized, Unavailable
from udo_protocol.node.peers import peer_key

if TYPE_CHECKING:  # gRPC is loaded when a node is asked
    from udo_protocol.node.api import NodeClient

T = TypeVar("T")
# Nodes asked at once; each takes a thread while it waits.
_AT_ONCE = 16
# A node that has not answered after this time is listed as silent. Also given to calls of NodeClient that have a bound of their own.
ANSWER_S = 10.0


@dataclass(frozen=True)
class NodeAnswers(Generic[T]):
    """By node: the answers of those that have the data, and the reasons why others did not answer."""

    told: Sequence[tuple[str, T]]
    silent: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Reach:
    """A node and its addresses; `away_since` is set if it is not to be asked."""

    name: str
    address: str
    listen: str
    away_since: str


def ask_nodes(ask: Callable[[NodeClient], T], only: str = "") -> NodeAnswers[T]:
    """Ask all nodes at once, or the one of that name. Unauthorized for callers not signed in; NotFound if there is no such node."""
    signing_in.require_signed_in()
    s = services()
    tls = Tls.folder(s.config.tls) if s.config.tls else None
    with s.store.read() as session:
        away = s.presence(session).away
        rows = session.scalars(select(Node).where(Node.name == only) if only else select(Node).order_by(Node.name))
        nodes = [Reach(n.name, n.address, n.listen, iso(away[n.name]) if n.name in away else "") for n in rows]
    if only and not nodes:
        raise NotFound(f"no node {only!r} has reported")
    s.hub.enter()  # as a long poll: nodes' own requests still get through
    try:
        with ThreadPoolExecutor(min(_AT_ONCE, len(nodes) or 1), thread_name_prefix="ask-nodes") as pool:
            found = list(pool.map(lambda node: _asked(node, ask, s.tokens, tls), nodes))
    finally:
        s.hub.leave()
    told = [(n.name, answer) for n, answer in zip(nodes, found, strict=True) if not isinstance(answer, Exception)]
    silent = [(n.name, str(e)) for n, e in zip(nodes, found, strict=True) if isinstance(e, Exception) and not isinstance(e, NotFound)]
    return NodeAnswers(told, silent)


def ask_node(node: str, ask: Callable[[NodeClient], T]) -> T:
    """Ask one node. Unavailable, with the reason, if it did not answer; NotFound if it does not have it."""
    found = ask_nodes(ask, only=node)
    for _, answer in found.told:
        return answer
    raise Unavailable(f"node {node}: {found.silent[0][1]}") if found.silent else NotFound(f"node {node} does not have it")


def _asked(node: Reach, ask: Callable[[NodeClient], T], tokens: Sequence[str], tls: Tls | None) -> T | UdoError:
    if node.away_since:
        return Unavailable(f"it is away since {node.away_since}")
    error: UdoError = Unavailable("it knows none of the registry's tokens")
    try:
        for client in clients(node, tokens, tls):
            try:
                return ask(client)
            except Unauthorized as e:  # it has another one of the registry's tokens
                error = e
    except UdoError as e:
        error = e
    return error


def clients(node: Reach, tokens: Sequence[str], tls: Tls | None) -> list[NodeClient]:
    """A client for each token that the node may know. Unavailable if the node is out of reach."""
    from udo_protocol.node.api import SCHEME, connect_node

    host, _, path = node.address.rpartition(":")
    if host == socket.gethostname() and os.path.exists(path):
        return [connect_node(path).on(node.name)]  # by name: another node may have that socket by now
    if not node.listen:
        raise Unavailable(f"it is on another host ({host or 'unknown'}) and does not listen for others: start it with --listen")
    if tls is None:
        raise Unavailable(f"it is on another host ({host or 'unknown'}), and the registry has no certificates: start it with --tls")
    return [connect_node(f"{SCHEME}{node.listen}", tls, peer_key(token, node.name)) for token in tokens]
