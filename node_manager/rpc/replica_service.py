"""The requests of replicas to the owner's node: messages to calls of node_manager/replicas/sources.py, and back. No decisions here."""

from __future__ import annotations

from collections.abc import Iterator

from node_manager.manager import Manager
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.state.carrying import PART_BYTES
from udo_protocol.state.replication import ReplicaName


def _name(replica: pb.SlotReplica) -> ReplicaName:
    return ReplicaName(replica.deployment, replica.made, replica.place, replica.node, replica.disk)


def copied(m: Manager, request: pb.CopySlotRequest) -> Iterator[pb.SlotCopyPart]:
    """The state of a slot, key by key."""
    keys, carried = m.sources.copy(_name(request.replica))
    for key, value in carried:
        for at in range(0, max(len(value), 1), PART_BYTES):
            yield pb.SlotCopyPart(key=key, value=value[at : at + PART_BYTES], more=at + PART_BYTES < len(value), prefix=keys.prefix)


def followed(m: Manager, request: pb.FollowSlotRequest) -> pb.FollowSlotReply:
    """The writes of the slot's owner after the position that the request gives."""
    found = m.sources.follow(_name(request.replica), request.log, request.held, request.after, request.wait_ms)
    writes = [
        pb.LoggedWrites(position=w.position, token=w.token, whole=w.whole, commands=[pb.LoggedCommand(words=c) for c in w.commands])
        for w in found.writes
    ]
    return pb.FollowSlotReply(again=found.again, writes=writes, prefix=found.keys.prefix)
