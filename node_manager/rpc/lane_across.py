"""OpenLane for a deployment whose slots are on several nodes: the called node asks the others and combines their answers.

A stateless lane goes to one slot: on this node if it has one, else on another. A keyed lane goes to all slots, in the order of the
placement; the node of the first slot gives the run its place among all runs, since one node must. Each node itself checks whether it still
has what the session left there (node_manager/homes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from node_manager.deployments.across import Across
from udo_protocol.errors import NodeAway, NotFound, PeerError, SlotsAway, Unavailable
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.state.group_map import SlotGroups
from udo_protocol.state.placement import Placement

OpenHere = Callable[[pb.OpenLaneRequest], pb.OpenLaneReply]
Awaited = Callable[[], pb.OpenLaneReply]


def open_across(across: Across, me: str, placement: Placement, request: pb.OpenLaneRequest, here: OpenHere) -> pb.OpenLaneReply:
    """See the module; `here` opens a lane in this node's own slots."""

    def moved() -> bool:
        now = across.find(request.deployment.partition("@")[0])
        return now is None or now.nodes != placement.nodes

    def ask(node: str, *, run: bool) -> Awaited:
        asked = pb.OpenLaneRequest()
        asked.CopyFrom(request)
        asked.here, asked.run_elsewhere = True, not run
        return partial(here, asked) if node == me else across.connect(node).forward_lane(asked, moved)

    if placement.keyed:
        return _all_slots(placement, request, ask)
    refused: Exception | None = None
    for node in across.in_turn(placement):
        try:
            return ask(node, run=True)()
        except (PeerError, NotFound) as e:  # the node is away, or has not caught up yet
            refused = refused or e
    assert refused is not None
    raise refused


def _all_slots(placement: Placement, request: pb.OpenLaneRequest, ask: Callable[..., Awaited]) -> pb.OpenLaneReply:
    """Ask all nodes at once: each may wait for an instance that is just starting.

    The versions of the map by which the slots take frames are those that this node knows: a slot that knows a newer one refuses.
    """
    name, asked, replies = request.deployment, dict[str, Awaited](), dict[str, pb.OpenLaneReply]()
    known = placement.map(request.key_groups or KEY_GROUPS)
    for node in dict.fromkeys(placement.nodes[place] for place in (0, *known.slots)):  # place 0's node orders the runs
        with _naming(name, placement, node):
            asked[node] = ask(node, run=not asked)
    for node, answer in asked.items():
        with _naming(name, placement, node):
            replies[node] = answer()
    _require_same(name, placement, known, replies)
    whole = pb.OpenLaneReply()
    whole.CopyFrom(next(iter(replies.values())))
    whole.ClearField("slots")
    for place, route in known.routes.items():
        slot = replies[placement.nodes[place]].slots[placement.ordinal(place)]
        whole.slots.add().CopyFrom(slot)
        whole.slots[-1].route, whole.slots[-1].name = route, placement.name(place)
    whole.route, whole.node = whole.slots[0].route, whole.slots[0].node
    whole.ClearField("groups")
    if len(whole.slots) > 1:
        whole.groups.CopyFrom(pb.GroupMap(version=known.version, slots=known.places()))
    return whole


@contextmanager
def _naming(name: str, placement: Placement, node: str) -> Iterator[None]:
    """Name the node's slots in its errors."""
    slots = ", ".join(str(k) for k, n in enumerate(placement.nodes) if n == node)
    what = f"deployment {name!r} has its slots {slots} of {len(placement.nodes)} on node {node}"
    try:
        yield
    except NodeAway as e:
        raise SlotsAway(
            f"{what}: {e} Start its node manager again with the home that it had: the query goes on then, since the state of these slots "
            "is on that node's disk"
        ) from e
    except (Unavailable, NotFound) as e:
        raise Unavailable(f"{what}: {e}") from e


def _require_same(name: str, placement: Placement, known: SlotGroups, replies: Mapping[str, pb.OpenLaneReply]) -> None:
    """Unavailable if a node does not know the placement yet, or that the session was released, or if another node answers instead of it."""
    newest = max(reply.session_version for reply in replies.values())
    for node, reply in replies.items():
        if reply.node != node:
            raise Unavailable(f"node {reply.node} answers at the address of node {node}, which has slots of deployment {name!r}")
        expected = 1 + max((placement.ordinal(place) for place in known.slots if placement.nodes[place] == node), default=0)
        if len(reply.slots) < expected:
            there = f"{len(reply.slots)} slots on node {node}"
            raise Unavailable(f"deployment {name!r} has {there}, expected {expected}: that node does not know the placement yet")
        if reply.session_version != newest:
            raise Unavailable(f"a session of deployment {name!r} was released, and node {node} has not heard of it yet; try again")
