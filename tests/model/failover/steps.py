"""What all steps share."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.failover.state import Budget, Member, Node, World
from tests.model.state import at

EPOCHS = 2
ATTEMPTS = 2  # retries after which Spark gives the query up


class Step(NamedTuple):
    """One thing that can happen next. `chosen`: a fault or a freedom, spent from the budget; it counts for no progress."""

    text: str
    world: World
    chosen: bool = False
    problem: str | None = None


def members(w: World) -> list[Member]:
    """Who is alive, by the disk it has now."""
    return [Member(i, n.incarnation) for i, n in enumerate(w.nodes) if n.alive]


def become(w: World, node: int, after: Node) -> World:
    """That node as it is now."""
    return w._replace(nodes=at(w.nodes, node, after))


def spend(w: World, what: str, amount: int = 1) -> Budget:
    """What is left of the budget."""
    return w.budget._replace(**{what: getattr(w.budget, what) - amount})
