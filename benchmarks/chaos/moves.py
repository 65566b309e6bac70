"""Faults of deployments with several slots: key groups move, and the number of slots changes, while queries run.

What is moved where comes from the seed. Nothing here waits for a change of the version to be over: the node refuses one of the two.
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
# From one to all: a query has few keys, which lie in few groups.
_NUMBERS = (1, 16, 64, KEY_GROUPS)
# A step may wait for an instance or a server that was killed. A move that takes longer goes on by itself.
_WAIT_S = 20.0


class Movable(Protocol):
    """A platform whose deployments have several slots. All may raise UdoError while parts of it are away."""

    def slots(self, deployment: str) -> list[int]:
        """Their numbers."""

    def move(self, deployment: str, groups: Sequence[int], to: int, strategy: str) -> None:
        """Returns when the groups are in that slot."""

    def scale(self, deployment: str, count: int) -> None:
        """Returns when it has that many slots."""


class Moves:
    """Moves of one platform's deployments, which were given `slots` slots: from then on they have one to one more than that."""

    def __init__(self, platform: Movable, slots: int) -> None:
        self._platform, self._slots = platform, slots

    def run(self, deployment: str, kind: str, rng: random.Random) -> tuple[list[str], str]:
        """What took place, and with which groups and slots."""
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
    """What a move counts as."""
    return f"{MOVE} ({strategy})"


def move(node: NodeClient, deployment: str, groups: Sequence[int], to: int, strategy: str) -> None:
    """By a node's API, to its end."""
    for _ in node.move_groups(deployment, groups, to, strategy, _WAIT_S):
        pass


def mapped(node: NodeClient, deployment: str) -> list[int]:
    """The slots that the deployment's group map names."""
    return [s.slot for s in node.status().slots if s.deployment == deployment and s.map_version]
