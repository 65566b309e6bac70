"""Two nodes with a slot each; two partitions with a key group in each slot; nodes stop at any moment, with or without their disks.

A node's queue is in memory; state is on its disk once an END made it durable. The disk that a node had when the session began is kept
elsewhere (by the registry): `named`. A query whose state is lost may be refused, and no other; without the loss of a disk it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.groups import apply, next_value
from tests.model.lost_node.rules import Rules
from tests.model.rules import Rules as SlotRules
from tests.model.slots.model import Step
from tests.model.state import END, STALE, Frame, Group, Label, Lane, Memory, at

ONE_SLOT = SlotRules()
NODES = PARTS = 2


class Stored(NamedTuple):
    """The state of a slot: the groups of both partitions, and the last epoch of which it got an END."""

    memory: Memory = Memory((Group(),) * PARTS)
    ended: int | None = None


class Node(NamedTuple):
    """`disk` counts its disks; `now` is lost with its queue server, `durable` with the disk."""

    disk: int = 0
    now: Stored = Stored()
    durable: Stored = Stored()


class LiveAttempt(NamedTuple):
    """An attempt of a partition. `lanes`: for each one opened, whether it still exists; `sent`: frames at each node, an event, then END."""

    part: int
    number: int
    lanes: tuple[bool, ...] = ()
    sent: tuple[int, ...] = (0,) * NODES
    answers: tuple[int, ...] = ()


class Budget(NamedTuple):
    """The number of times that each fault may still happen."""

    die: int = 0  # an attempt dies where it is
    stop: int = 0  # a node loses its servers
    lose: int = 0  # a node loses its disk, too
    rerun: int = 0  # a partition runs again after its success


class World(NamedTuple):
    """The whole state. By partition: `started`: attempts of this epoch; `won`: one has succeeded. `truth`: epochs committed."""

    nodes: tuple[Node, ...]
    named: tuple[int | None, ...]
    attempts: tuple[LiveAttempt, ...]
    started: tuple[int, ...]
    won: tuple[bool, ...]
    truth: int
    refused: bool
    budget: Budget


@dataclass(frozen=True)
class LostNode:
    """This many epochs, in which each partition has one event for each node."""

    epochs: int
    faults: Budget
    rules: Rules

    def first(self) -> World:
        """The world before anything is sent."""
        return self._begun(World((Node(),) * NODES, (None,) * NODES, (), (), (), 0, False, self.faults))

    def settle(self, world: World) -> World:
        """The world with attempts in a fixed order, as their order does not matter."""
        return world._replace(attempts=tuple(sorted(world.attempts)))

    def done(self, world: World) -> bool:
        """Whether the last epoch is committed, or the query has failed with an error that says what was lost."""
        return world.refused or world.truth == self.epochs

    def problem(self, world: World) -> str | None:
        """A refusal without a lost disk; wrong answers are found at the step that shows them."""
        if world.refused and not any(node.disk for node in world.nodes):
            return "the query is refused, yet no disk was lost"
        return None

    def steps(self, world: World) -> Iterator[Step]:
        """Every possible step, with the world after it."""
        if self.done(world):
            return
        for i in range(len(world.attempts)):
            yield from self._attempt(world, i)
        for k in range(NODES):
            yield from self._stopped(world, k)
        if all(world.won):
            yield self._committed(world)
        for part in range(PARTS):
            if world.won[part] and world.budget.rerun:
                again = world._replace(won=at(world.won, part, False), budget=world.budget._replace(rerun=world.budget.rerun - 1))
                yield Step(f"partition {part} runs again", self._started(again, part), True)

    # Nodes

    def _stopped(self, w: World, k: int) -> Iterator[Step]:
        node, b = w.nodes[k], w.budget
        if b.stop:
            back = _cut_off(w, k, node._replace(now=node.durable))
            yield Step(f"node {k} is restarted", back._replace(budget=b._replace(stop=b.stop - 1)), True)
        if b.lose:
            new = _cut_off(w, k, Node(node.disk + 1))
            yield Step(f"node {k} loses its disk", new._replace(budget=b._replace(lose=b.lose - 1)), True)

    # A producer

    def _attempt(self, w: World, i: int) -> Iterator[Step]:
        me, name = w.attempts[i], _name(w.attempts[i])
        if w.budget.die:
            yield Step(f"{name} dies", self._failed(w._replace(budget=w.budget._replace(die=w.budget.die - 1)), i), True)
        if len(me.lanes) < NODES:
            yield self._opened(w, i, len(me.lanes))
            return
        for k in range(NODES):
            if me.sent[k] < 2:
                yield self._pushed(w, i, k)
        if (all if self.rules.ended_at_all else any)(n == 2 for n in me.sent):
            yield self._succeeded(w, i)

    def _opened(self, w: World, i: int, k: int) -> Step:
        me, node, named = w.attempts[i], w.nodes[k], w.named[k]
        text = f"{_name(me)} opens its lane at node {k}"
        if named not in (None, node.disk) and (self.rules.every_node or k == 0):
            return Step(f"{text}: refused, it has another disk", w._replace(refused=True))
        if named is None and self.rules.named_first:
            w = w._replace(named=at(w.named, k, node.disk))
        return Step(text, w._replace(attempts=at(w.attempts, i, me._replace(lanes=(*me.lanes, True)))))

    def _pushed(self, w: World, i: int, k: int) -> Step:
        me, node, end = w.attempts[i], w.nodes[k], w.attempts[i].sent[k] == 1
        text = f"node {k} processes {'END' if end else 'the event'} of {_name(me)}"
        if not me.lanes[k] and self.rules.lane_of_server:
            return Step(f"{_name(me)} finds its lane at node {k} gone", self._failed(w, i))
        if (node.now.ended is None and w.truth > 0) or (node.now.ended or 0) > w.truth:
            return Step(f"{text}: refused, it lacks epochs", w._replace(refused=True))
        label = Label(0, w.truth, me.number)
        memory, _, value = apply(node.now.memory, Frame(Lane(me.part, label), me.sent[k] + 1, (me.part,), end), ONE_SLOT)
        if value == STALE:
            return Step(f"{text}: STALE", self._failed(w, i), problem=f"{_name(me)} is refused as STALE, yet none is newer")
        now = Stored(memory, w.truth if end else node.now.ended)
        after = node._replace(now=now, durable=now if end else node.durable)
        answers = me.answers if value == END else (*me.answers, int(value))
        pushed = me._replace(sent=at(me.sent, k, me.sent[k] + 1), answers=answers)
        return Step(f"{text}: {value}", w._replace(nodes=at(w.nodes, k, after), attempts=at(w.attempts, i, pushed)))

    # Spark

    def _succeeded(self, w: World, i: int) -> Step:
        me = w.attempts[i]
        named = tuple(node.disk if name is None else name for node, name in zip(w.nodes, w.named, strict=True))
        world = w._replace(attempts=at(w.attempts, i), won=at(w.won, me.part, True), named=named)
        wrong = set(me.answers) - {w.truth + 1}
        problem = f"Spark takes the answers {me.answers} of {_name(me)}, expected {w.truth + 1} of each key" if wrong else None
        return Step(f"{_name(me)} succeeds", world, problem=problem)

    def _committed(self, w: World) -> Step:
        values = {next_value(g, ONE_SLOT) for node in w.nodes if not node.disk for g in node.durable.memory.groups}
        problem = f"epoch {w.truth} is committed with the values {values}" if values - {w.truth + 1} else None
        return Step(f"Spark commits epoch {w.truth}", self._begun(w._replace(truth=w.truth + 1)), problem=problem)

    def _begun(self, w: World) -> World:
        w = w._replace(attempts=(), started=(0,) * PARTS, won=(False,) * PARTS)
        for part in range(PARTS):
            w = self._started(w, part)
        return w

    def _started(self, w: World, part: int) -> World:
        new = LiveAttempt(part, w.started[part])
        return w._replace(attempts=(*w.attempts, new), started=at(w.started, part, w.started[part] + 1))

    def _failed(self, w: World, i: int) -> World:
        """Remove the attempt, and start another one of the partition."""
        return self._started(w._replace(attempts=at(w.attempts, i)), w.attempts[i].part)


def _cut_off(w: World, k: int, node: Node) -> World:
    """Replace the node: the lanes that were opened there are gone."""
    attempts = tuple(a._replace(lanes=at(a.lanes, k, False)) if len(a.lanes) > k else a for a in w.attempts)
    return w._replace(nodes=at(w.nodes, k, node), attempts=attempts)


def _name(me: LiveAttempt) -> str:
    return f"attempt {me.number} of partition {me.part}"
