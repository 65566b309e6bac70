"""The slots of a deployment that `udo record` records, over all nodes that can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from udo_cli.platform import slot_names, usage
from udo_protocol.errors import NotFound, UdoError, UsageError
from udo_protocol.node.api import NodeClient


@dataclass(frozen=True)
class Recordable:
    """A slot, and a client of its node."""

    node: NodeClient
    of: str  # the node's name
    number: int

    @property
    def name(self) -> str:
        """NODE:SLOT."""
        return slot_names.shown(self.of, self.number)


def find(deployment: str, wanted: str | None, address: str | None) -> tuple[list[Recordable], list[str]]:
    """The slots to record: all on the node at `address`, None: on all nodes; or the one named `wanted`, NUMBER or NODE:NUMBER. Also a line
    for each node that could not be asked.

    NotFound if there are none; UsageError if several have that number.
    """
    found, silent = _there(deployment, address)
    if wanted is None:
        return found, silent
    node, number = slot_names.parsed(wanted, "--slot")
    chosen = [slot for slot in found if slot.number == number and node in ("", slot.of)]
    if len(chosen) > 1:
        raise UsageError(
            f"--slot: expected one slot, got {', '.join(slot.name for slot in chosen)}; name it with its node: {chosen[0].name}"
        )
    if not chosen:
        raise NotFound(f"deployment {deployment!r} has no slot {wanted}; it has {', '.join(slot.name for slot in found)}")
    return chosen, silent


def came_later(deployment: str, address: str | None, recorded: Sequence[Recordable]) -> list[str]:
    """The names of slots that the deployment has now and that are not among those recorded."""
    try:
        found, _ = _there(deployment, address)
    except UdoError:  # it is gone, or its nodes
        return []
    known = {slot.name for slot in recorded}
    return [slot.name for slot in found if slot.name not in known]


def _there(deployment: str, address: str | None) -> tuple[list[Recordable], list[str]]:
    def slots(node: NodeClient) -> list[Recordable]:
        status = node.status()
        there = [s for s in status.slots if s.deployment == deployment and not s.pinned]
        if not there:
            raise NotFound(f"no deployment {deployment!r} on node {status.node}; look at: udo status")
        return [Recordable(node, status.node, s.slot) for s in there]

    answers, silent = usage.ask_all(address, slots)
    return [slot for _, of_node in answers for slot in of_node], silent
