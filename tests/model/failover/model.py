"""All possible steps, and the condition: the answer of epoch e is e + 1, whatever is lost, suspected or cut off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.failover import cluster, lane
from tests.model.failover.rules import Rules
from tests.model.failover.state import Budget, Configuration, Group, Member, Node, Registry, Spark, World
from tests.model.failover.steps import ATTEMPTS, EPOCHS, Step


@dataclass(frozen=True)
class Failover:
    """Three nodes: the owner, its replica and a spare one. `kept`: the faults are too few to lose the group."""

    rules: Rules
    faults: Budget
    kept: bool = False

    def first(self) -> World:
        """The first world: owner and replica know the first version and hold an empty group."""
        configuration = Configuration(1, Member(0, 0), frozenset({Member(1, 0)}))
        holder = Node(told=1, group=Group())
        nodes = (holder._replace(configuration=configuration), holder, Node())
        return World(Registry(configuration), nodes, Spark(), self.faults)

    def steps(self, world: World) -> Iterator[Step]:
        """Every possible step, with the world after it."""
        yield from lane.steps(world)
        yield from cluster.replication(world, self.rules)
        yield from cluster.decisions(world, self.rules)
        yield from cluster.news(world, self.rules)
        yield from cluster.joining(world, self.rules)
        yield from cluster.draining(world, self.rules)
        yield from cluster.faults(world, self.rules)

    def settle(self, world: World) -> World:
        """Worlds are compared as they are."""
        return world

    def problem(self, world: World) -> str | None:
        """Lost groups, if none may be lost; wrong answers are found at the step that commits them."""
        return "nobody holds the group" if self.kept and world.registry.reported else None

    def done(self, world: World) -> bool:
        """Whether all epochs are committed, Spark gave up the query, or the loss was reported."""
        return world.spark.label.epoch == EPOCHS or world.spark.label.attempt > ATTEMPTS or world.registry.reported
