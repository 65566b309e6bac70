"""The part of udo_protocol.registry.api.Registry that a node uses to bring about what is wanted, and to report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from node_manager.deployments.lanes import Catalogue


class RegistryCalls(Catalogue, Protocol):
    """See the module."""

    def wanted(self, node: str, after: int, wait_s: float, incarnation: str) -> Mapping[str, Any]:
        """`{generation, deployments}`; answers at once if the generation is newer than `after`. Conflict, here and below: there is another
        node of this name, with another incarnation."""

    def report(self, node: str, deployment: str, **report: Any) -> Any:
        """What became of a deployment or of a step of its update here."""

    def heartbeat(self, node: str, **properties: Any) -> Any:
        """Tell the registry that the node is alive, and what it has."""

    def leave(self, node: str, incarnation: str) -> Any:
        """The node stops regularly."""

    def in_step(self, deployment: str, *, node: str, replica: str, place: int, version: int) -> Mapping[str, Any]:
        """A replica holds what its slot on this node has ENDed; the placement after that."""
