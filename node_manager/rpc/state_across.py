"""The export and import of a session whose slots are on several nodes: the called node asks the others.

An export is the state at one moment. Each node pins its slots' newest checkpoints. When all have, each is asked once more: if a node's
newest checkpoints are still those that it has pinned, they were so at the moment between the two rounds, which is the same for all.
Otherwise all pin anew.

An import has three rounds, since nothing is atomic over several nodes: from the first on no node serves the session, in the second each
node writes its slots' part of it, and from the third on each serves it. A lane needs all of them, so if an import is interrupted
nobody is served until it is repeated.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from queue import Full, Queue
from threading import Event

from node_manager.deployments.across import Across
from node_manager.homes import import_number
from node_manager.rpc.state_service import Parts, Step, group_parts
from udo_protocol import supervised
from udo_protocol.errors import Conflict, NodeAway, NotFound, StateLost, Unavailable
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.state.pieces import StoredGroup
from udo_protocol.state.placement import Placement

# (node) -> the export of the slots that it has.
Export = Callable[[str], Parts]
# Tries are made for this long, after random pauses of at most so long: a regular one could meet every checkpoint of a regular query. None
# succeeds if the query's slots make checkpoints more often than two rounds take.
_TRIED_S, _PAUSE_S = 20.0, 0.1
# Key groups of a node that wait to be sent on: a node whose turn comes late has to go on reading, or loses its pin.
_WAITING, _LOOK_S = 4, 0.2


@dataclass(frozen=True)
class _Pinned:
    """The export of one node's slots, whose header has been read."""

    node: str
    header: pb.StateHeader
    parts: Parts


def export_across(across: Across, name: str, session: str, export: Export) -> Parts:
    """Yield the session's parts, of all nodes.

    NotFound if no node has it, StateLost if not all do, Conflict if groups move or no moment is found at which no slot makes a checkpoint.
    """
    deadline = time.monotonic() + _TRIED_S
    while time.monotonic() < deadline:
        placed = across.find(name)
        if placed is None or placed.moving is not None:
            raise Conflict(f"key groups of deployment {name!r} are being moved between nodes: try again when that is done")
        with ExitStack() as open_parts:
            pinned = _all_pinned(placed, session, export, open_parts)
            if _at_one_moment(placed, pinned, export) and across.find(name) == placed:
                open_parts.pop_all()  # its readers close them
                yield _header(pinned)
                yield from _groups(pinned)
                return
        time.sleep(random.uniform(0, _PAUSE_S))
    raise Conflict(
        f"the slots of {name!r} make checkpoints too often for session {session} to be read on all nodes at one moment: try again while "
        "its queries make a pause"
    )


def _all_pinned(placed: Placement, session: str, export: Export, until: ExitStack) -> list[_Pinned]:
    """The export of each node, pinned. NotFound if no node has the session, StateLost if one of them does not."""
    pinned: list[_Pinned] = []
    without: dict[str, NotFound] = {}
    for node in dict.fromkeys(placed.nodes):
        try:
            pinned.append(_pinned(placed, node, export, until))
        except NotFound as e:
            without[node] = e
    if without and pinned:
        raise StateLost(
            f"session {session} has state on node {', '.join(p.node for p in pinned)} and none on node {', '.join(without)}, which has "
            "slots too: it was dropped there, the node has lost its disk, or the session's first epoch has not ended"
        )
    for missing in without.values():
        raise missing
    return pinned


def _pinned(placed: Placement, node: str, export: Export, until: ExitStack) -> _Pinned:
    with _naming(placed, node):
        parts = export(node)
        until.callback(parts.close)  # type: ignore[attr-defined]
        return _Pinned(node, next(parts).header, parts)


@contextmanager
def _naming(placed: Placement, node: str) -> Iterator[None]:
    """Name the node's slots in its errors."""
    try:
        yield
    except (NodeAway, Unavailable) as e:
        slots = ", ".join(str(k) for k, n in enumerate(placed.nodes) if n == node)
        raise type(e)(f"the session's slots {slots} of {len(placed.nodes)} are on node {node}: {e}") from e


def _at_one_moment(placed: Placement, pinned: list[_Pinned], export: Export) -> bool:
    for each in pinned:
        with ExitStack() as open_parts:
            again = _pinned(placed, each.node, export, open_parts).header
        if (list(again.covers), again.last_ended) != (list(each.header.covers), each.header.last_ended):
            return False
    return True


def _header(pinned: list[_Pinned]) -> pb.StatePart:
    whole = pb.StateHeader()
    whole.CopyFrom(pinned[0].header)
    ended = [p.header.last_ended for p in pinned if p.header.HasField("last_ended")]
    if ended:
        whole.last_ended = max(ended)
    whole.keys, whole.bytes = sum(p.header.keys for p in pinned), sum(p.header.bytes for p in pinned)
    return pb.StatePart(header=whole)


def _groups(pinned: list[_Pinned]) -> Parts:
    """The groups of all nodes, read from all at once. Groups below 0, which every slot has, are those of the first node."""
    arrived: Queue[list[pb.StatePart] | BaseException | None] = Queue(_WAITING)
    over = Event()

    def put(found: list[pb.StatePart] | BaseException | None) -> None:
        while not over.is_set():
            with suppress(Full):
                arrived.put(found, timeout=_LOOK_S)
                return

    def read(each: _Pinned) -> None:
        group: list[pb.StatePart] = []
        try:
            for part in each.parts:
                if over.is_set():
                    break
                if group and part.piece.group != group[0].piece.group:
                    put(group)
                    group = []
                if part.piece.group >= 0 or each is pinned[0]:
                    group.append(part)
            put(group)
            put(None)
        except BaseException as e:
            put(e)
        finally:
            each.parts.close()  # type: ignore[attr-defined]

    left = len(pinned)
    try:
        for each in pinned:
            supervised.once("state-export", partial(read, each))
        while left:
            found = arrived.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield from found
    finally:
        over.set()


def import_across(across: Across, placed: Placement, header: pb.StateHeader, groups: Mapping[int, StoredGroup], here: Step) -> None:
    """Import the session into the slots of all nodes; `here` carries out this node's steps. Conflict if key groups move meanwhile."""
    if placed.moving is not None:
        raise Conflict(f"key groups of deployment {header.deployment!r} are being moved between nodes: try again when that is done")
    nodes, known = list(dict.fromkeys(placed.nodes)), placed.map(header.key_groups)

    def step(node: str, part: pb.StateHeader, mine: Mapping[int, StoredGroup] | None = None) -> pb.StateImportReply:
        values = (value for number, group in (mine or {}).items() for value in group_parts(number, group))
        parts = chain([pb.StatePart(header=part)], values)
        with _naming(placed, node):
            return here(parts) if node == across.node else across.connect(node).import_state(parts)

    header.number = import_number()
    runs = [step(node, _of(header, pb.StateHeader.BEGIN)).run for node in nodes]
    for node in nodes:
        mine = {n: group for n, group in groups.items() if n < 0 or placed.nodes[known.groups[n]] == node}
        part = _of(header, pb.StateHeader.PUT, run=runs[0])  # the first slot of all orders the runs
        if node != nodes[0]:  # counted once
            part.keys = part.bytes = 0
        step(node, part, mine)
    if across.find(header.deployment) != placed:
        raise Conflict(f"key groups of deployment {header.deployment!r} have moved meanwhile: import the session again")
    for node in nodes:
        step(node, _of(header, pb.StateHeader.END))


def _of(header: pb.StateHeader, step: pb.StateHeader.Step, run: int = 0) -> pb.StateHeader:
    found = pb.StateHeader()
    found.CopyFrom(header)
    found.step, found.run = step, run
    return found
