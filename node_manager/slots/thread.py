"""The base that the parts of a slot share: its thread with connections and timers, its keys, its node."""

from __future__ import annotations

from node_manager.slots.loading import NodeParts
from node_manager.slots.worker import SlotWorker
from udo_protocol.errors import Unavailable
from udo_protocol.queue.keys import SlotKeys


class SlotThread(SlotWorker):
    """The thread of one slot. The slot's parts are used by its steps only, unless they say otherwise."""

    kind = "slot"

    def __init__(self, node: NodeParts, deployment: str, number: int) -> None:
        super().__init__(f"{deployment}-{number}", node.servers, deployment=deployment, slot=number)
        self.node, self.deployment, self.number = node, deployment, number
        self.keys = SlotKeys(deployment, number)

    def has_been_stopped(self) -> Unavailable:
        """The error for callers that come after the slot has stopped."""
        return Unavailable(f"deployment {self.deployment} has been stopped on node {self.node.settings.node}")
