"""Calls between nodes of one registry, by the method's name: those that a node passes on, and those that it answers to other nodes.

A caller on a node's own socket may name another node (udo_protocol/node/peers.py, `udo --node NAME`): its state, dead letters and figures
are listed and changed from any host that has a node. Nodes recognise each other by the registry's token; the registry itself is one of
them, for its console (registry/console/asking.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from node_manager.deployments.across import Across
from node_manager.manager import Manager
from node_manager.rpc.wire import refuse, stream, unary
from udo_protocol.errors import Unauthorized, UsageError
from udo_protocol.node.peers import NODE_HEADER, PEER_HEADER, is_peer

# Answered to every caller with a certificate.
FOR_ALL = {"OpenLane", "Check", "Watch"}  # the last two are gRPC's health service
PASSED_ON = {"Status", "Stats", "Signals", "Decisions", "Usage", "Logs", "StateList", "StateExport", "StateDrop", "Record"}
PASSED_ON |= {"DeadList", "DeadDrop", "DeadReplay", "DeadAmend"}
# For moves of key groups between nodes (node_manager/deployments/taking.py), and for draining a node.
STEPS = {"MoveGroups", "ReadyToTake", "ReadGroupsAhead", "TakeGroups", "AdoptGroups", "Places", "HandOverRuns", "TakeRuns"}
# For imports over nodes (node_manager/rpc/state_across.py).
STEPS |= {"StateImport"}
# For diffs over nodes (node_manager/rpc/diff_across.py).
STEPS |= {"Diff"}
# For replicas (node_manager/replicas).
STEPS |= {"CopySlot", "FollowSlot"}
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Find = Callable[[grpc.HandlerCallDetails], Handler | None]


@dataclass(frozen=True)
class _PassedOn:
    """One method of another node, as a handler of this one."""

    across: Across
    node: str
    method: str

    @unary
    def answer(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self.across.connect(self.node).passed_on(self.method, request, context.time_remaining(), streamed=False)

    @stream
    def answers(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield from self.across.connect(self.node).passed_on(self.method, request, context.time_remaining(), streamed=True)


class Forwarding(grpc.ServerInterceptor):
    """On a node's own socket: passes on calls that name another node."""

    def __init__(self, manager: Manager) -> None:
        self._across, self._node = manager.across, manager.settings.node

    def intercept_service(self, continuation: Find, details: grpc.HandlerCallDetails) -> Handler | None:
        node, method = _shown(details, NODE_HEADER), _method(details)
        here = continuation(details)
        if here is None or node in ("", self._node):
            return here
        if method not in PASSED_ON:
            return _refusal(UsageError(f"{method} is not passed on to node {node}: run the command on its host, without --node"))
        there = _PassedOn(self._across, node, method)
        if here.response_streaming:
            return grpc.unary_stream_rpc_method_handler(there.answers, here.request_deserializer, here.response_serializer)
        return grpc.unary_unary_rpc_method_handler(there.answer, here.request_deserializer, here.response_serializer)


class OnlyPeers(grpc.ServerInterceptor):
    """On a node's port for other hosts: OpenLane for all, some methods for node managers of its registry; every other one is UNIMPLEMENTED.

    For these methods a certificate is not enough: hosts that only call operators have one, too.
    """

    def __init__(self, manager: Manager) -> None:
        self._settings = manager.settings

    def intercept_service(self, continuation: Find, details: grpc.HandlerCallDetails) -> Handler | None:
        method = _method(details)
        if method in FOR_ALL:
            return continuation(details)
        if method not in PASSED_ON | STEPS:
            return None
        if not is_peer(_shown(details, PEER_HEADER), self._settings.token, self._settings.node):
            return _refusal(Unauthorized(f"node {self._settings.node} does this for node managers that have its registry's token only"))
        return continuation(details)


def _method(details: grpc.HandlerCallDetails) -> str:
    return str(details.method).rpartition("/")[2]


def _shown(details: grpc.HandlerCallDetails, header: str) -> str:
    return str(dict(details.invocation_metadata).get(header, ""))


def _refusal(error: Exception) -> Handler:
    return grpc.unary_unary_rpc_method_handler(lambda request, context: refuse(context, error))
