"""Deployments whose slots are on several nodes: which node has which slot, and the nodes' addresses, as the registry last said.

Kept on disk: a node that is restarted while the registry is away must not take its own slots for all slots.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from node_manager.files import read_kept, write_json
from udo_protocol.certificates import Tls
from udo_protocol.errors import NodeAway
from udo_protocol.node.api import SCHEME, NodeClient, connect_node
from udo_protocol.node.peers import peer_key
from udo_protocol.registry.wanted import WantedState
from udo_protocol.state.placement import Placement


class Across:
    """See the module. Methods may be called from any thread."""

    def __init__(self, node: str, home: Path, tls: Tls | None, token: str = "") -> None:
        self.node, self._tls, self._token, self._file = node, tls, token, home / "placements.json"
        known = read_kept(self._file, "Remove it while the registry can be reached, which tells its content again")
        self._told = {"placements": known.get("placements", {}), "addresses": known.get("addresses", {})}
        self.changes = 0  # how often this node has heard something new
        self._turns = itertools.count()
        self._lock = Lock()

    def learn(self, wanted: WantedState) -> None:
        """Store the placements and addresses that the registry gives now."""
        found = {d.name: {**d.placement, "keyed": d.keyed} for d in wanted.deployments if d.placement}
        with self._lock:
            placements = {name: self._newest(name, placement) for name, placement in found.items()}
            self._store({"placements": placements, "addresses": dict(wanted.addresses)})

    def learn_one(self, name: str, placement: Mapping[str, Any]) -> Placement:
        """Store the placement of a keyed deployment that the registry or another node gave, also for the next manager."""
        with self._lock:
            found = self._newest(name, {**placement, "keyed": True})
            self._store({**self._told, "placements": {**self._told["placements"], name: found}})
        return _parsed(found)

    def _newest(self, name: str, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """The newer of the known placement and `found`: replies may arrive out of order, and a map never goes back."""
        known = self._told["placements"].get(name)
        return found if known is None or _parsed(found).newer(_parsed(known)) else known

    def _store(self, told: dict[str, Any]) -> None:
        if told != self._told:
            write_json(self._file, told, durable=True)
            self._told = told
            self.changes += 1

    def find(self, name: str) -> Placement | None:
        """The placement of the deployment's slots; None if every node has its own."""
        found = self._told["placements"].get(name)
        return _parsed(found) if found else None

    def placements(self) -> list[tuple[str, Placement]]:
        """All deployments over nodes."""
        return [(name, _parsed(found)) for name, found in list(self._told["placements"].items())]

    @property
    def replicated(self) -> bool:
        """Whether some deployment has replicas: this node may have its slots, keep replicas of them, or be asked to."""
        return any(found.get("replication") for found in list(self._told["placements"].values()))

    def in_turn(self, placement: Placement) -> Iterator[str]:
        """The nodes that have slots: this one first, then the others, starting with a different one at each call."""
        nodes = list(dict.fromkeys(placement.nodes))
        turn = next(self._turns) % len(nodes)
        return iter(sorted([*nodes[turn:], *nodes[:turn]], key=lambda node: node != self.node))

    def peers(self) -> list[str]:
        """The other nodes that listen for other hosts, as the registry last said."""
        return sorted(node for node, address in self._told["addresses"].items() if address and node != self.node)

    def connect(self, node: str) -> NodeClient:
        """Connect to another node; NodeAway if the registry gives no address, since the node was stopped."""
        address = self._told["addresses"].get(node)
        if not address:
            raise NodeAway(
                f"node {self.node} does not know the address of node {node}, which was stopped, or does not listen for other hosts (udo "
                "node --listen)."
            )
        return connect_node(f"{SCHEME}{address}", self._tls, peer_key(self._token, node))


def _parsed(found: Mapping[str, Any]) -> Placement:
    return Placement.parse(found, keyed=bool(found["keyed"]))
