"""Calls from the node manager of a replica to that of the slot's owner (udo_protocol/state/replication.py)."""

from __future__ import annotations

from collections.abc import Iterator

from udo_protocol.node.api import NodeClient
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state.replication import LoggedWrites, ReplicaName

_COPY_S = 600.0
# Added to the time that the other node waits for new writes.
_MARGIN_S = 10.0


def _named(replica: ReplicaName) -> pb.SlotReplica:
    name, made, place = replica.deployment, replica.made, replica.place
    return pb.SlotReplica(deployment=name, made=made, place=place, node=replica.node, disk=replica.disk)


def copy_slot(owner: NodeClient, replica: ReplicaName) -> Iterator[tuple[str, bytes]]:
    """The state of the slot, key by key (udo_protocol/state/replica_copies.py)."""
    whole = bytearray()
    for part in owner.passed_on("CopySlot", pb.CopySlotRequest(replica=_named(replica)), _COPY_S, streamed=True):
        whole += part.value
        if not part.more:
            yield part.key, bytes(whole)
            whole.clear()


def follow_slot(
    owner: NodeClient, replica: ReplicaName, log: str, held: str, after: str, wait_ms: int
) -> tuple[SlotKeys, list[LoggedWrites]] | None:
    """Report that the replica holds the log up to `held`, and wait up to `wait_ms` for writes after `after`.

    Returns the slot's keys, as its node names them, and the writes; None if the slot has to be copied."""
    asked = pb.FollowSlotRequest(replica=_named(replica), log=log, held=held, after=after, wait_ms=wait_ms)
    found: pb.FollowSlotReply = owner.passed_on("FollowSlot", asked, wait_ms / 1000 + _MARGIN_S, streamed=False)
    if found.again:
        return None
    return SlotKeys.parse(found.prefix), [
        LoggedWrites(w.position, [list(c.words) for c in w.commands], w.token, w.whole) for w in found.writes
    ]
