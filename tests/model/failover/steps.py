"""Helpers of all steps."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.failover.state import Budget, Member, Node, World
from tests.model.state import at

EPOCHS = 2
ATTEMPTS = 2  # Spark gives up the query after so many retries


class Step(NamedTuple):
    """A possible next step. `chosen`: a fault or a free choice, taken from the budget; it does not count as progress."""

    text: str
    world: World
    chosen: bool = False
    problem: str | None = None


def members(w: World) -> list[Member]:
    """The live nodes, with their present disks."""
    return [Member(i, n.incarnation) for i, n in enumerate(w.nodes) if n.alive]


def become(w: World, node: int, after: Node) -> World:
    """The world with that node replaced."""
    return w._replace(nodes=at(w.nodes, node, after))


def spend(w: World, what: str, amount: int = 1) -> Budget:
    """The budget less that amount."""
    return w.budget._replace(**{what: getattr(w.budget, what) - amount})
