"""Requests to a node for lanes."""

from __future__ import annotations

from typing import Any

from udo_protocol.node.api import NodeClient
from udo_protocol.proto import node_manager_pb2 as pb


def opened(node: NodeClient, deployment: str, lane: str, wait_ms: int = 30_000, **asked: Any) -> pb.OpenLaneReply:
    """Ask the node for a lane; `asked`: other fields of the request."""
    return node.open_lane(pb.OpenLaneRequest(deployment=deployment, lane=lane, wait_ms=wait_ms, **asked))
