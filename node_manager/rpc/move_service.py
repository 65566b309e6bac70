"""Moves of key groups as calls: over the nodes of a deployment, one after the other; and the transfer of groups and runs between nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from node_manager.deployments.between import Coming, sources
from node_manager.deployments.move_steps import CPAL
from node_manager.manager import Manager
from udo_protocol import ranges
from udo_protocol.errors import Conflict, NotFound, Unavailable, UsageError
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue.connection import Connection
from udo_protocol.state import checkpoints
from udo_protocol.state.carrying import Carried
from udo_protocol.state.placement import Placement

# The places of the groups are looked up this many times, since somebody else may change the map meanwhile.
_LOOKS = 3


def moved(m: Manager, request: pb.MoveGroupsRequest) -> Iterator[pb.MoveEvent]:
    """Move key groups to a slot: on this node, or over the nodes of the deployment."""
    r, started = request, time.monotonic()
    if (placed := m.across.find(r.deployment)) and not r.here:
        yield from over_nodes(m, r, placed)
        return
    for now in m.moves.move(r.deployment, r.groups, r.to_slot, r.strategy or CPAL, r.wait_ms / 1000, r.to_node):
        yield _event(now.moved, now.total, started, done=now.done)


def over_nodes(m: Manager, request: pb.MoveGroupsRequest, placed: Placement) -> Iterator[pb.MoveEvent]:
    """Let each node that has some of these groups move them, one node after the other. If the call is cut off, the nodes that were not
    asked yet move nothing; the same call again goes on."""
    name, started, target = request.deployment, time.monotonic(), request.to_node or m.settings.node
    if target not in placed.nodes:
        raise NotFound(f"deployment {name!r} has its slots on {', '.join(dict.fromkeys(placed.nodes))}, got node {target!r}")
    if not placed.keyed:
        raise UsageError(f"deployment {name!r} keeps no state, so it has no key groups to move")
    wanted, total = sorted(set(request.groups)), len(set(request.groups))
    here, most = m.settings.node, _key_groups(m, name)
    if not wanted or wanted[-1] >= most:
        raise UsageError(f"deployment {name!r} has the key groups 0 to {most - 1}: expected some of these, got {wanted or 'none'}")

    def events(node: str, asked: pb.MoveGroupsRequest) -> Iterator[int]:
        """Yield how many groups of that node are moved."""
        if node == here:
            wait_s = asked.wait_ms / 1000
            for now in m.moves.move(name, asked.groups, asked.to_slot, asked.strategy or CPAL, wait_s, target):
                yield now.moved
        else:
            for event in m.across.connect(node).forward_move(asked):
                yield event.moved

    ordinal = m.moves.taker(target).ready(name, request.to_slot).place
    for _ in range(_LOOKS):
        placed = _newest(m, name)
        found = sources(placed, wanted, placed.of(target)[ordinal], most)
        before = total - sum(map(len, found.values()))
        for node, groups in found.items():
            asked = pb.MoveGroupsRequest()
            asked.CopyFrom(request)
            asked.groups[:], asked.to_node, asked.here = groups, target, True
            for moved in events(node, asked):
                yield _event(before + moved, total, started)
            before += len(groups)
        if not found:
            yield _event(total, total, started, done=True)
            return
    left = sum(map(len, found.values()))
    raise Conflict(f"{left} key groups of deployment {name!r} were moved elsewhere meanwhile: try again")


def _event(moved: int, total: int, started: float, *, done: bool = False) -> pb.MoveEvent:
    return pb.MoveEvent(moved=moved, total=total, done=done, at_ms=(time.monotonic() - started) * 1000)


def _newest(m: Manager, name: str) -> Placement:
    assert m.catalogue is not None, "a deployment over nodes has a registry"
    return m.across.learn_one(name, m.catalogue.deployment(name)["placement"])


def _key_groups(m: Manager, name: str) -> int:
    assert m.catalogue is not None
    return int(m.catalogue.deployment(name)["limits"].get("key_groups", KEY_GROUPS))


def read_ahead(m: Manager, parts: Iterator[pb.GroupsPart], asked: Callable[[], bool]) -> pb.ReadGroupsAheadReply:
    """Let a slot of this node read groups of another node's slot that are going to move to it, as long as that is `asked`."""
    header = _header(parts)
    coming = Coming(header.version, list(header.groups), header.copy)
    m.moves.takes.ahead(header.deployment, header.slot, coming, _carried(parts), asked)
    return pb.ReadGroupsAheadReply()


def taken(m: Manager, parts: Iterator[pb.GroupsPart]) -> pb.TakeGroupsReply:
    """Bring the groups that another node's slot has handed over into a slot of this node."""
    header = _header(parts)
    m.moves.takes.take(header.deployment, header.slot, header.version, _carried(parts), header.copy)
    return pb.TakeGroupsReply()


def _read(parts: Iterator[pb.GroupsPart]) -> Iterator[pb.GroupsPart]:
    try:
        yield from parts
    except grpc.RpcError:
        raise Unavailable("the node that sends key groups has ended the call before all had come") from None


def _header(parts: Iterator[pb.GroupsPart]) -> pb.GroupsPart:
    header = next(_read(parts), None)
    if header is None:
        raise UsageError("expected a header, then keys with their values; got nothing")
    return header


def _carried(parts: Iterator[pb.GroupsPart]) -> Iterator[Carried]:
    whole = bytearray()
    for part in _read(parts):
        whole += part.value
        if not part.more:
            yield Carried(part.key, bytes(whole), list(part.sizes), part.field if part.HasField("field") else None)
            whole.clear()


def places(m: Manager, request: pb.PlacesRequest) -> pb.PlacesReply:
    """The slots of a deployment over nodes: each node gives the numbers of its slots, the registry their key groups."""
    name, here = request.deployment, m.settings.node
    if request.here:
        return pb.PlacesReply(slots=[pb.PlacedSlot(node=here, slot=own.number) for own in m.deployments.find(name).own])
    if m.across.find(name) is None:
        raise UsageError(f"deployment {name!r} is not spread over nodes: each node has slots of its own")
    placed = _newest(m, name)
    now, numbers = placed.map(_key_groups(m, name)), dict[str, list[int]]()
    for node in dict.fromkeys(placed.nodes):
        own = places(m, pb.PlacesRequest(deployment=name, here=True)) if node == here else m.across.connect(node).places(name, here=True)
        numbers[node] = [slot.slot for slot in own.slots]
    for node, there in numbers.items():
        if len(there) < (expected := placed.nodes.count(node)):
            raise Unavailable(f"deployment {name!r} has {len(there)} slots on node {node}, expected {expected}: they are still starting")
    return pb.PlacesReply(
        slots=[
            pb.PlacedSlot(node=node, slot=numbers[node][placed.ordinal(place)], groups=ranges.shown(now.of(place)))
            for place, node in enumerate(placed.nodes)
        ]
    )


def hand_over_runs(m: Manager, request: pb.HandOverRunsRequest) -> None:
    """Let the node that knows the sessions' runs send them to the other node."""
    name, here, source = request.deployment, m.settings.node, request.from_node
    if source != here:
        m.across.connect(source).hand_over_runs(name, source, request.to_node)
        return
    with connected_state(m) as state:
        runs = checkpoints.runs(state, m.deployments.find(name).slot.keys)
    wanted = pb.TakeRunsRequest(deployment=name, sessions=[pb.SessionRuns(session=s, runs=known) for s, known in runs.items()])
    if request.to_node == here:
        return
    m.across.connect(request.to_node).take_runs(wanted)


def take_runs(m: Manager, request: pb.TakeRunsRequest) -> None:
    """Note these runs of sessions beside those that this node knows itself."""
    with connected_state(m) as state:
        keys = m.deployments.find(request.deployment).slot.keys
        checkpoints.know_runs(state, keys, {s.session: dict(s.runs) for s in request.sessions})


@contextmanager
def connected_state(m: Manager) -> Iterator[Connection]:
    """A connection to the node's state server."""
    with contextlib.closing(m.servers.connect("state")) as state:
        yield state
