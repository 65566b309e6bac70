"""Faults of deployments with several slots: key groups move, and the number of slots changes, while queries run.

The groups and the target come from the seed. Moves do not wait until a change of the version is over: the node refuses one of the two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from udo_protocol.limits import KEY_GROUPS
from udo_protocol.node.api import NodeClient

MOVE, SCALE = "key groups moved", "slots scaled"
WEIGHTS = {MOVE: 12.0, SCALE: 2.0}
STRATEGIES = ("cpal", "direct")
# Numbers of groups, from one to all: a query has few keys, and so few groups with state.
_NUMBERS = (1, 16, 64, KEY_GROUPS)
# A step may wait for an instance or a server that was killed. A move that takes longer continues by itself.
_WAIT_S = 20.0


class Movable(Protocol):
    """A platform whose deployments have several slots. All methods may raise UdoError while parts of it are away."""

    def slots(self, deployment: str) -> list[int]:
        """Return the numbers of the slots."""

    def move(self, deployment: str, groups: Sequence[int], to: int, strategy: str) -> None:
        """Move the groups; return when they are in the slot `to`."""

    def scale(self, deployment: str, count: int) -> None:
        """Change the number of slots; return when there are `count`."""


class Moves:
    """Moves of one platform's deployments, which begin with `slots` slots and from then on have between 1 and `slots` + 1."""

    def __init__(self, platform: Movable, slots: int) -> None:
        self._platform, self._slots = platform, slots

    def run(self, deployment: str, kind: str, rng: random.Random) -> tuple[list[str], str]:
        """Move key groups, or change the number of slots; return what took place, and details."""
        there = self._platform.slots(deployment)
        if kind == SCALE:
            count = rng.randint(1, self._slots + 1)
            self._platform.scale(deployment, count)
            return [SCALE] if count != len(there) else [], f"{len(there)} to {count}"
        groups, strategy = rng.sample(range(KEY_GROUPS), rng.choice(_NUMBERS)), rng.choice(STRATEGIES)
        if not there:
            return [], "no slot can be seen"
        to = rng.choice(there)
        self._platform.move(deployment, groups, to, strategy)
        return [told(strategy)], f"{len(groups)} to slot {to} of {there}"


def told(strategy: str) -> str:
    """The name under which a move is counted."""
    return f"{MOVE} ({strategy})"


def move(node: NodeClient, deployment: str, groups: Sequence[int], to: int, strategy: str) -> None:
    """Move key groups by a node's API, and wait for the end of the move."""
    for _ in node.move_groups(deployment, groups, to, strategy, _WAIT_S):
        pass


def mapped(node: NodeClient, deployment: str) -> list[int]:
    """The slots that the deployment's group map names."""
    return [s.slot for s in node.status().slots if s.deployment == deployment and s.map_version]
