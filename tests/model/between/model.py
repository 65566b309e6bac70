"""A key group moves from a slot of node A to one of node B while attempts send its events, and both nodes are restarted at any moment.

No step is atomic over two nodes: A hands over on its disk, B copies that and delivers it by itself, the registry learns of it. A restart
loses a node's queue and its manager's memory; the disk stays. For producers after MOVED see tests/model/rerouted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model import oracle
from tests.model.between.rules import Rules
from tests.model.groups import is_stale, next_value, touch
from tests.model.rules import Rules as SlotRules
from tests.model.slots.model import Step
from tests.model.state import Group, Label, at

ONE_SLOT = SlotRules()
A, B = range(2)


class Node(NamedTuple):
    """`life` counts its queue servers; `newer`: the present one accepts only frames by the newer map. `now` includes events not ENDed."""

    life: int = 0
    newer: bool = False
    now: Group | None = None
    durable: Group | None = None


class Carried(NamedTuple):
    """The progress of the move. On A's disk: `noted`, `handed`; on B's: `delivered` and, until it is adopted, `waiting`; in the memory of
    B's manager: `copied`; at the registry: `in_force`, `adopted`."""

    noted: bool = False
    handed: Group | None = None
    copied: Group | None = None
    delivered: bool = False
    waiting: Group | None = None
    in_force: bool = False
    adopted: bool = False


class LiveAttempt(NamedTuple):
    """`lives`: those of the queue servers with its lanes; `newer`: it uses the newer map; `ended`: at A, at B, and for the group."""

    number: int
    lives: tuple[int, int]
    newer: bool = False
    answer: int | None = None
    ended: tuple[bool, bool, bool] = (False, False, False)


class Budget(NamedTuple):
    """The number of times that each fault may still happen."""

    die: int = 0  # an attempt dies where it is
    fail: int = 0  # Spark gives up an attempt, which lives on as a zombie
    stop_a: int = 0
    stop_b: int = 0


class World(NamedTuple):
    """The whole state. Spark waits for the attempt number `started` - 1."""

    nodes: tuple[Node, ...]
    move: Carried
    attempts: tuple[LiveAttempt, ...]
    started: int
    epoch: int
    budget: Budget


@dataclass(frozen=True)
class Between:
    """This many epochs, each with one event of the group."""

    epochs: int
    faults: Budget
    rules: Rules

    def first(self) -> World:
        """The world before anything is sent."""
        return self._started(World((Node(now=Group(), durable=Group()), Node()), Carried(), (), 0, 0, self.faults))

    def settle(self, world: World) -> World:
        """The world with attempts in a fixed order, as their order does not matter; after the last commit without zombies."""
        return world._replace(attempts=() if world.epoch == self.epochs else tuple(sorted(world.attempts, key=lambda a: a.number)))

    def done(self, world: World) -> bool:
        """Whether the last epoch is committed and the move is over."""
        return world.epoch == self.epochs and world.move.adopted and world.move.handed is None

    def problem(self, world: World) -> str | None:
        """None: wrong answers and states are found at the step that shows them."""
        return None

    def steps(self, world: World) -> Iterator[Step]:
        """Every possible step, with the world after it."""
        yield from self._give(world)
        yield from self._take(world)
        yield from self._stopped(world)
        for i in range(len(world.attempts)):
            yield from self._attempt(world, i)

    # The move

    def _give(self, w: World) -> Iterator[Step]:
        m, a = w.move, w.nodes[A]
        if not m.noted and self.rules.noted:
            yield Step("A notes that it is to make the cut", w._replace(move=m._replace(noted=True)))
        elif not a.newer and a.now is not None:
            yield Step("A makes the cut", w._replace(nodes=at(w.nodes, A, a._replace(newer=True))))
        if a.newer and a.now is not None and m.handed is None:
            left = w._replace(nodes=at(w.nodes, A, a._replace(now=None, durable=None)))
            yield Step("A hands the group over", left._replace(move=m._replace(handed=a.now)))
        if m.handed is not None and (m.adopted if self.rules.kept else m.copied is not None or m.adopted):
            yield Step("A forgets what it handed over", w._replace(move=m._replace(handed=None)))

    def _take(self, w: World) -> Iterator[Step]:
        m, b = w.move, w.nodes[B]
        if m.handed is not None and m.copied is None and not (m.delivered and self.rules.once) and not m.adopted:
            yield Step("B copies what A has handed over", w._replace(move=m._replace(copied=m.handed)))
        if m.copied is not None:
            there = m._replace(copied=None, delivered=True, waiting=m.copied)
            yield Step("B delivers it to its slot", w._replace(move=there))
        if m.delivered and not m.in_force:
            yield Step("the registry puts the newer map in force", w._replace(move=m._replace(in_force=True)))
        if m.in_force and m.waiting is not None:
            adopted = b._replace(newer=True, now=m.waiting, durable=m.waiting)
            yield Step("B adopts the group", w._replace(nodes=at(w.nodes, B, adopted), move=m._replace(waiting=None)))
        if not self.rules.opened and not b.newer:
            yield Step("B takes frames by the newer map", w._replace(nodes=at(w.nodes, B, b._replace(newer=True))))
        if m.in_force and m.waiting is None and not m.adopted:
            yield Step("the registry hears that B has adopted it", w._replace(move=m._replace(adopted=True)))

    def _stopped(self, w: World) -> Iterator[Step]:
        m, (a, b), budget = w.move, w.nodes, w.budget
        if budget.stop_a:
            back = Node(a.life + 1, m.noted and self.rules.noted, a.durable, a.durable)
            yield Step("A is restarted", w._replace(nodes=(back, b), budget=budget._replace(stop_a=budget.stop_a - 1)), True)
        if budget.stop_b:
            known = m.delivered and m.waiting is None and self.rules.restored
            back, forgotten = Node(b.life + 1, known, b.durable, b.durable), m._replace(copied=None)
            yield Step("B is restarted", World((a, back), forgotten, *w[2:5], budget._replace(stop_b=budget.stop_b - 1)), True)

    # A producer, and Spark

    def _attempt(self, w: World, i: int) -> Iterator[Step]:
        me, name, budget = w.attempts[i], _name(w.attempts[i]), w.budget
        wanted = me.number == w.started - 1
        if wanted and budget.die:
            yield Step(f"{name} dies", self._gone(w._replace(budget=budget._replace(die=budget.die - 1)), i), True)
        if wanted and budget.fail:
            yield Step(f"Spark gives {name} up", self._started(w._replace(budget=budget._replace(fail=budget.fail - 1))), True)
        place = B if me.newer else A
        if me.answer is None:
            yield from self._pushed(w, i, place, end=False, named=True)
            return
        *told, group = me.ended
        for node in (A, B):
            named = node == place and not group
            if named or (not told[node] and self.rules.end_at_each):
                yield from self._pushed(w, i, node, end=True, named=named)
        if wanted and (all(me.ended) if self.rules.end_at_each else group):
            yield self._committed(w, i)

    def _pushed(self, w: World, i: int, k: int, *, end: bool, named: bool) -> Iterator[Step]:
        """Push an event to that node, or an END that names the group or not."""
        me, node = w.attempts[i], w.nodes[k]
        what = f"{'END' if end else 'the event'} of {_name(me)}"
        if me.lives[k] != node.life:
            yield Step(f"{_name(me)} finds its lane at {'AB'[k]} gone", self._gone(w, i))
        elif node.newer and not me.newer:
            yield Step(f"{'AB'[k]} refuses {what}: MOVED", w._replace(attempts=at(w.attempts, i, me._replace(newer=True))))
        elif k == B and me.newer and not node.newer:
            return  # B does not have the newer map yet: the producer waits
        elif k == A and me.newer and node.now is not None:
            return  # the frame is behind HANDOVER in A's log
        elif named:
            yield self._processed(w, i, k, end=end)
        else:
            after = me._replace(ended=_told(me, k, group=False))
            yield Step(f"{'AB'[k]} answers {what}, which has no group there", w._replace(attempts=at(w.attempts, i, after)))

    def _processed(self, w: World, i: int, k: int, *, end: bool) -> Step:
        me, node = w.attempts[i], w.nodes[k]
        text, label = f"{'AB'[k]} processes {'END' if end else 'the event'} of {_name(me)}", Label(0, w.epoch, me.number)
        group = node.now if node.now is not None else Group()  # a group without state begins anew
        if is_stale(group, label, ONE_SLOT):
            problem = oracle.refused(me.number == w.started - 1, _name(me))
            return Step(f"{text}: STALE", self._gone(w, i), problem=problem)
        group = touch(group, label, ONE_SLOT)
        if end:
            group = group._replace(ended=True, candidate=None)
            after, there = me._replace(ended=_told(me, k, group=True)), node._replace(now=group, durable=group)
        else:
            group = group._replace(running=group.running + 1)
            after, there = me._replace(answer=group.running), node._replace(now=group)
        return Step(text, w._replace(nodes=at(w.nodes, k, there), attempts=at(w.attempts, i, after)))

    def _committed(self, w: World, i: int) -> Step:
        me, m, (a, b) = w.attempts[i], w.move, w.nodes
        holder = (m.waiting if m.waiting is not None else b.durable) if m.delivered else m.handed if a.durable is None else a.durable
        value = None if holder is None else next_value(holder, ONE_SLOT)
        problem = None
        if me.answer != w.epoch + 1:
            problem = f"Spark takes the answer {me.answer} of {_name(me)}, expected {w.epoch + 1}"
        elif value != w.epoch + 1:
            problem = f"epoch {w.epoch} is committed with the value {value}, expected {w.epoch + 1}"
        after = w._replace(attempts=(), started=0, epoch=w.epoch + 1)
        done = after.epoch == self.epochs
        return Step(f"{_name(me)} succeeds, Spark commits", after if done else self._started(after), problem=problem)

    def _started(self, w: World) -> World:
        new = LiveAttempt(w.started, (w.nodes[A].life, w.nodes[B].life), newer=w.move.in_force)
        return w._replace(attempts=(*w.attempts, new), started=w.started + 1)

    def _gone(self, w: World, i: int) -> World:
        """Remove an attempt; Spark starts a new one if it waited for it."""
        left = w._replace(attempts=at(w.attempts, i))
        return self._started(left) if w.attempts[i].number == w.started - 1 else left


def _told(me: LiveAttempt, k: int, *, group: bool) -> tuple[bool, bool, bool]:
    """The flags of answered ENDs after an answer from node `k`."""
    at_a, at_b, named = me.ended
    return at_a or k == A, at_b or k == B, named or group


def _name(me: LiveAttempt) -> str:
    return f"attempt {me.number}"
