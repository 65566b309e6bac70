"""The slots of a deployment over nodes as the command line sees them, and the spreading of key groups over some of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from udo_cli.platform import slot_names
from udo_protocol import ranges
from udo_protocol.errors import Conflict, ProtocolError
from udo_protocol.limits import MOST_KEY_GROUPS
from udo_protocol.node.api import NodeClient
from udo_protocol.state import group_map
from udo_protocol.state.group_map import SlotGroups

Say = Callable[[str], None]


@dataclass(frozen=True)
class PlacedSlot:
    """A slot of a keyed deployment over nodes, and its key groups."""

    node: str
    number: int
    groups: tuple[int, ...]

    @property
    def name(self) -> str:
        """NODE:SLOT."""
        return slot_names.shown(self.node, self.number)


@dataclass(frozen=True)
class Shared:
    """Key groups that were moved to a slot."""

    to: PlacedSlot
    groups: tuple[int, ...]
    ms: float


def slots(node: NodeClient, name: str) -> list[PlacedSlot]:
    """The slots of the deployment, in the order of their places; any node can list them."""
    return [PlacedSlot(s.node, s.slot, tuple(ranges.parsed(s.groups, MOST_KEY_GROUPS))) for s in node.places(name).slots]


def is_keyed_over(deployment: Mapping[str, Any]) -> bool:
    """Whether the registry's deployment keeps state in slots over nodes."""
    return bool(deployment.get("placement") and deployment["manifest"].get("key"))


def make_room(node: NodeClient, name: str, count: int, wait_s: float, say: Say) -> None:
    """Move the key groups off the slots after the first `count`, if there are more."""
    there = slots(node, name)
    if count < len(there):
        _say(spread(node, name, there, range(count), wait_s), say)


def fill(node: NodeClient, name: str, wait_s: float, say: Say) -> None:
    """Spread the key groups evenly over all slots, if some have none."""
    there = slots(node, name)
    if not all(slot.groups for slot in there):
        _say(spread(node, name, there, range(len(there)), wait_s), say)


def empty(node: NodeClient, name: str, of: str, wait_s: float, say: Say) -> None:
    """Move the key groups off the slots of the node `of`; if `of` had the first slot, the node that has it next gets the order of runs."""
    there = slots(node, name)
    others = [place for place, slot in enumerate(there) if slot.node != of]
    if not others:
        raise Conflict(f"all slots of deployment {name!r} are on node {of}: give it slots on other nodes first (udo scale {name} N)")
    if any(slot.groups for slot in there if slot.node == of):
        _say(spread(node, name, there, others, wait_s), say)
    if there[0].node == of:
        node.hand_over_runs(name, of, there[others[0]].node)


def _say(done: Iterator[Shared], say: Say) -> None:
    for shared in done:
        say(f"{shared.ms:8.1f} ms  key groups {ranges.shown(shared.groups)} are in slot {shared.to.name}")


def spread(node: NodeClient, name: str, there: Sequence[PlacedSlot], onto: Collection[int], wait_s: float) -> Iterator[Shared]:
    """Move as few key groups as possible so that they are spread evenly over the slots in the places `onto`, slot by slot.

    An error leaves finished moves as they are; the same call again goes on with the rest.
    """
    place = {g: at for at, slot in enumerate(there) for g in slot.groups}
    if sorted(place) != list(range(len(place))):
        raise ProtocolError(f"deployment {name!r}: expected each key group in one slot, got {ranges.shown(place)}")
    now = SlotGroups(group_map.FIRST_VERSION, dict.fromkeys(range(len(there)), 0), tuple(place[g] for g in range(len(place))))
    for at, groups in group_map.shares(now, sorted(onto)).items():
        ms = 0.0
        for event in node.move_groups(name, groups, there[at].number, "", wait_s, there[at].node):
            ms = event.at_ms
        yield Shared(there[at], tuple(groups), ms)
