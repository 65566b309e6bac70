"""A deployment's sessions, for commands on one of them: over nodes, the parts that the nodes have count as one session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from udo_cli.platform import over_nodes, remote, usage
from udo_protocol.errors import NotFound, Unavailable, UsageError
from udo_protocol.node.api import NodeClient
from udo_protocol.proto import node_manager_pb2 as pb


@dataclass(frozen=True)
class PlacedSession:
    """`last_ended`: None if no epoch has ended. `nodes`: those that have a part of it."""

    name: str
    keys: int
    last_ended: int | None
    nodes: list[NodeClient]


def there(deployment: str, address: str | None) -> tuple[list[PlacedSession], list[str]]:
    """The sessions on this node, or on the one at `address`; over nodes those on all, with a line for each node that could not be asked."""
    placed, unknown = False, list[str]()
    if not address:
        try:
            with contextlib.suppress(NotFound), remote.registry() as api:  # else it is this node's alone
                placed = over_nodes.is_keyed_over(api.deployment(deployment))
        except Unavailable as e:
            unknown.append(f"not asked: other nodes, if they have a part of it: {e}")
    if placed:
        answers, silent = usage.ask_all(None, lambda node: _sessions(node, deployment), everywhere=True)
        return _merged(answers), silent
    node = remote.node(address)
    return _merged([(node, _sessions(node, deployment))]), unknown


def find(deployment: str, text: str, address: str | None) -> tuple[PlacedSession, list[str]]:
    """The session with that name, or the only one with that prefix, and the lines of `there`."""
    found, silent = there(deployment, address)
    known = {s.name: s for s in found}
    return known[only(deployment, text, list(known))], silent


def only(deployment: str, text: str, names: list[str], having: str = "") -> str:
    """The name among these that equals `text`, or the only one with that prefix. NotFound; UsageError if there are several."""
    near = [text] if text in names else [s for s in names if s.startswith(text)]
    if len(near) == 1:
        return near[0]
    if near:
        raise UsageError(f"ambiguous prefix {text!r} of sessions of {deployment!r}: {', '.join(near)}")
    some = ", ".join(names[:5]) or "none"
    raise NotFound(f"deployment {deployment!r} has no session {text!r}{having}; there are: {some}. List them with: udo state ls")


def _sessions(node: NodeClient, deployment: str) -> list[pb.StateSession]:
    return list(node.sessions(deployment).sessions)


def _merged(answers: Iterable[tuple[NodeClient, list[pb.StateSession]]]) -> list[PlacedSession]:
    found: dict[str, PlacedSession] = {}
    for node, sessions in answers:
        for s in sessions:
            before = found.get(s.session, PlacedSession(s.session, 0, None, []))
            ended = [n for n in (before.last_ended, s.last_ended if s.HasField("last_ended") else None) if n is not None]
            found[s.session] = PlacedSession(s.session, before.keys + s.keys, max(ended, default=None), [*before.nodes, node])
    return [found[name] for name in sorted(found)]
