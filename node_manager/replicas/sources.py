"""The owner's node: tells its slots which replicas they have, and sends the replicas what they ask for.

A replica's request says what the replica holds, and so acknowledges it. The slots' owners wait for these acknowledgements
(udo_protocol/state/replication.py); this module only notes them. The registry decides which nodes are replicas.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from node_manager.deployments.across import Across
from node_manager.deployments.deployments import Deployments, NodeDeployment
from node_manager.slots.loading import NodeParts
from node_manager.slots.slot import Slot
from udo_protocol.errors import Conflict
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import replica_copies, replication
from udo_protocol.state.carrying import Dumped
from udo_protocol.state.placement import Placement
from udo_protocol.state.replication import LoggedWrites, ReplicaName, Replicas


class Followed(NamedTuple):
    """The writes to the slot with these keys which follow those that a replica holds. `again`: the replica has to copy the slot."""

    keys: SlotKeys
    again: bool
    writes: list[LoggedWrites]


class InStep(NamedTuple):
    """A replica that holds all that was ENDed; from that version of the placement on its slot ENDs nothing without it."""

    deployment: str
    place: int
    node: str
    version: int


class Sources:
    """The slots of one node that have replicas. Methods may be called from any thread."""

    def __init__(self, node: NodeParts, deployments: Deployments, across: Across) -> None:
        self._node, self._deployments, self._across = node, deployments, across
        self._lock = Lock()  # the named replicas do not change within a replica's request

    def name_replicas(self) -> None:
        """Tell the slots of this node which nodes are their replicas, as the registry last said."""
        with self._state() as state:
            for deployment, placed in self._replicated():
                for place, slot in self._own(deployment, placed):
                    copies = placed.replication
                    assert copies is not None
                    with self._lock:
                        replication.configure(state, slot.keys, placed.version, copies.counted[place], copies.joining[place])

    def follow(self, replica: ReplicaName, log: str, held: str, after: str, wait_ms: int) -> Followed:
        """Note that the replica holds the log up to `held`; return the writes after `after`. Conflict if it is no replica of this slot."""
        slot = self._of(replica)
        with self._state() as state:
            with self._lock:
                known = self._require_named(state, slot, replica)
                if known.log != log or not replication.acknowledge(state, slot.keys, replica.node, held):
                    return Followed(slot.keys, True, [])
                replication.require(state, slot.keys, replica.node)
            return Followed(slot.keys, False, replication.entries(state, slot.keys, after, wait_ms))

    def copy(self, replica: ReplicaName) -> tuple[SlotKeys, Iterator[Dumped]]:
        """Return the keys of the slot, and its state."""
        slot = self._of(replica)

        def carried() -> Iterator[Dumped]:
            with self._state() as state:
                with self._lock:
                    self._require_named(state, slot, replica)
                    replication.pin(state, slot.keys, replica.node)
                yield from replica_copies.copying(state, slot.keys, replica.node)

        return slot.keys, carried()

    def _require_named(self, state: Connection, slot: Slot, replica: ReplicaName) -> Replicas:
        """Conflict if the slot does not know that replica."""
        known = replication.replicas(state, slot.keys)
        if known is None or replica.node not in known.named:
            raise Conflict(f"slot {replica.place} of {replica.deployment!r} has not heard yet of its replica on node {replica.node}")
        return known

    def in_step(self) -> list[InStep]:
        """The replicas that the registry does not count yet, and may count now."""
        found = []
        with self._state() as state:
            for deployment, placed in self._replicated():
                for place, slot in self._own(deployment, placed):
                    copies, known = placed.replication, replication.replicas(state, slot.keys)
                    assert copies is not None
                    if known is None or not copies.joining[place]:
                        continue
                    missing = replication.lacking(state, slot.keys)[1]
                    ready = [node for node in copies.joining[place] if node in known.required and node not in missing]
                    found += [InStep(deployment.name, place, node, known.version) for node in ready]
        return found

    def lacking(self, deployment: NodeDeployment) -> dict[int, list[str]]:
        """Slot number -> its replicas that do not hold all that is written."""
        placed = self._across.find(deployment.name)
        if placed is None or placed.replication is None:
            return {}
        with self._state() as state:
            found = {}
            for place, slot in self._own(deployment, placed):
                required = replication.replicas(state, slot.keys)
                missing = set(replication.lacking(state, slot.keys)[1])
                found[slot.number] = sorted(missing | (placed.replication.named(place) - set(required.required if required else ())))
        return found

    def _replicated(self) -> Iterator[tuple[NodeDeployment, Placement]]:
        for deployment in self._deployments.all():
            placed = self._across.find(deployment.name)
            if placed is not None and placed.replication is not None:
                yield deployment, placed

    def _own(self, deployment: NodeDeployment, placed: Placement) -> Iterator[tuple[int, Slot]]:
        """The places of this node with their slots, without a slot that is of an earlier term, or not there yet."""
        copies = placed.replication
        assert copies is not None
        for place, slot in zip(placed.of(self._across.node), deployment.own, strict=False):
            if deployment.term(slot.number) == copies.terms[place]:
                yield place, slot

    def _of(self, replica: ReplicaName) -> Slot:
        deployment, placed = self._deployments.find(replica.deployment), self._across.find(replica.deployment)
        copies = placed.replication if placed else None
        if placed is not None and copies is not None and placed.made == replica.made:
            named = replica.place < len(placed.nodes) and replica.node in copies.named(replica.place)
            if named and copies.disks.get(replica.node) == replica.disk:
                for place, slot in self._own(deployment, placed):
                    if place == replica.place:
                        return slot
        raise Conflict(
            f"node {replica.node} is no replica of slot {replica.place} of {replica.deployment!r}, or that slot is not on node "
            f"{self._across.node}, by version {placed.version if placed else 0} of its placement"
        )

    @contextmanager
    def _state(self) -> Iterator[Connection]:
        with contextlib.closing(self._node.servers.connect("state")) as state:
            yield state
