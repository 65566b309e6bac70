"""Several slots of a keyed deployment: an attempt splits its events over them and ENDs at each; in between anything may fail.

The inside of a slot (instances, logs, checkpoints) belongs to the other model: here a slot does each step at once. One partition, a key
group in each slot; the world holds the slots' state, the live attempts, and what Spark believes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model import oracle
from tests.model.groups import apply, next_value, touch
from tests.model.rules import Rules as SlotRules
from tests.model.slots.rules import Rules
from tests.model.state import END, STALE, Frame, Group, Label, Lane, Memory, at

ONE_SLOT = SlotRules()


class Slot(NamedTuple):
    """Its key group's count, the partition's highest event time by its ENDs, and the runs in the order in which it saw them."""

    memory: Memory = Memory((Group(),))
    time: Group = Group()
    runs: tuple[int, ...] = ()


class LiveAttempt(NamedTuple):
    """Alive, wanted by Spark or a zombie. `sent`: for each slot, the number of its frames processed; the last one is END."""

    run: int
    epoch: int
    number: int
    sent: tuple[int, ...]
    answers: tuple[int, ...] = ()  # one for each event


class Budget(NamedTuple):
    """The number of times that each fault may still happen."""

    fail: int = 0  # Spark gives up an attempt, which lives on as a zombie
    die: int = 0  # an attempt dies where it is
    twin: int = 0  # a second attempt starts while the first one runs
    rerun: int = 0  # the stage runs again after the task's success
    restart: int = 0  # the driver starts again and replays the epoch
    crash: int = 0  # the new slot's owner dies while a group moves (tests/model/rerouted)


class World(NamedTuple):
    """The whole state. `running`: attempts that Spark waits for; `started`: attempts of this epoch and run; `won`: one has succeeded."""

    slots: tuple[Slot, ...]
    attempts: tuple[LiveAttempt, ...]
    run: int
    epoch: int
    started: int
    running: tuple[int, ...]
    won: bool
    truth: tuple[int, ...]
    budget: Budget


class Step(NamedTuple):
    """A possible next step. `chosen`: a fault; it does not count as progress."""

    text: str
    world: World
    chosen: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class Slots:
    """`events`: for each epoch, the slot of each event. `rules` are for the slots together, `each` for one slot."""

    events: tuple[tuple[int, ...], ...]
    faults: Budget
    rules: Rules
    each: SlotRules = ONE_SLOT
    count: int = 2

    def first(self) -> World:
        """The world before anything is sent."""
        empty = World((Slot(),) * self.count, (), 0, 0, 0, (), False, (0,) * self.count, self.faults)
        return self._started(empty)

    def settle(self, world: World) -> World:
        """The world without attempts that have sent everything and that Spark does not wait for: they do nothing more."""
        live = tuple(sorted(a for a in world.attempts if self._wanted(world, a) or not self._over(a)))
        return world._replace(attempts=live)

    def done(self, world: World) -> bool:
        """Whether the last epoch is committed."""
        return world.epoch == len(self.events)

    def problem(self, world: World) -> str | None:
        """None: wrong answers and states are found at the step that shows them."""
        return None

    def steps(self, world: World) -> Iterator[Step]:
        """Every possible step, with the world after it."""
        for i in range(len(world.attempts)):
            yield from self._frames(world, i)
            if world.budget.die:
                yield Step(f"{_name(world.attempts[i])} dies", self._dead(world, i), True)
        if not self.done(world):
            yield from self._spark(world)

    # A producer

    def _frames(self, w: World, i: int) -> Iterator[Step]:
        me = w.attempts[i]
        for k in range(self.count):
            mine = [s for s in self.events[me.epoch] if s == k]
            if me.sent[k] < len(mine):
                yield self._pushed(w, i, k, end=False)
            elif me.sent[k] == len(mine) and (mine or self.rules.end_at_each):
                yield self._pushed(w, i, k, end=True)

    def _pushed(self, w: World, i: int, k: int, *, end: bool) -> Step:
        me, slot = w.attempts[i], w.slots[k]
        runs = slot.runs if me.run in slot.runs else (*slot.runs, me.run)
        label = Label(me.run if self.rules.one_run_order else runs.index(me.run), me.epoch, me.number)
        memory, _, value = apply(slot.memory, Frame(Lane(0, label), me.sent[k] + 1, (0,), end), self.each)
        text = f"slot {k} processes {'END' if end else 'an event'} of {_name(me)}: {value}"
        if value == STALE:
            newest = self._wanted(w, me) and me.number == w.started - 1
            gone = w._replace(slots=at(w.slots, k, slot._replace(runs=runs)), attempts=at(w.attempts, i))
            gone = gone._replace(running=tuple(n for n in w.running if not (self._wanted(w, me) and n == me.number)))
            return Step(text, self._again(gone), problem=oracle.refused(newest, _name(me)))
        time = self._timed(slot.time, me, label, k) if end else slot.time
        answers = me.answers if value == END else (*me.answers, int(value))
        after = me._replace(sent=at(me.sent, k, me.sent[k] + 1), answers=answers)
        world = w._replace(slots=at(w.slots, k, Slot(memory, time, runs)), attempts=at(w.attempts, i, after))
        return Step(text, world)

    def _timed(self, group: Group, me: LiveAttempt, label: Label, k: int) -> Group:
        """The event time after an END: the partition's highest, or without the rule the highest of this slot's events."""
        seen = [n for n, s in enumerate(self.events[me.epoch]) if s == k or self.rules.whole_time]
        group = touch(group, label, self.each)
        highest = max((me.epoch * 10 + n for n in seen), default=0)
        return group._replace(running=max(group.running, highest), ended=True, candidate=None)

    def _of(self, me: LiveAttempt, k: int) -> int:
        return self.events[me.epoch].count(k)

    def _over(self, me: LiveAttempt) -> bool:
        return all(self._ended(me, k) for k in range(self.count))

    def _ended(self, me: LiveAttempt, k: int) -> bool:
        return me.sent[k] > self._of(me, k) or not (self._of(me, k) or self.rules.end_at_each)

    # Spark

    def _spark(self, w: World) -> Iterator[Step]:
        b = w.budget
        for me in w.attempts:
            if self._wanted(w, me) and (all if self.rules.ended_at_all else any)(self._ended(me, k) for k in range(self.count)):
                yield Step(f"{_name(me)} succeeds", w._replace(won=True, running=()), problem=self._wrong(w, me))
        if w.won:
            yield self._committed(w)
            if b.rerun:
                yield Step("the stage runs again", self._started(w._replace(won=False, budget=b._replace(rerun=b.rerun - 1))), True)
        elif b.twin and w.running:
            yield Step("a second attempt starts", self._started(w._replace(budget=b._replace(twin=b.twin - 1))), True)
        if b.fail:
            for number in w.running:
                left = tuple(n for n in w.running if n != number)
                given_up = w._replace(running=left, budget=b._replace(fail=b.fail - 1))
                yield Step(f"Spark gives attempt {number} up", self._again(given_up), True)
        if b.restart:
            anew = w._replace(run=w.run + 1, started=0, running=(), won=False, budget=b._replace(restart=b.restart - 1))
            yield Step("the driver restarts", self._started(anew), True)

    def _committed(self, w: World) -> Step:
        truth = tuple(n + self.events[w.epoch].count(k) for k, n in enumerate(w.truth))
        values = tuple(next_value(s.memory.groups[0], self.each) for s in w.slots)
        times = {next_value(s.time, self.each) for s in w.slots}
        problem = None if values == truth else f"epoch {w.epoch} is committed with the values {values}, expected {truth}"
        if problem is None and len(times) > 1:
            problem = f"after epoch {w.epoch} the slots' watermarks differ: {sorted(times)}"
        world = w._replace(epoch=w.epoch + 1, truth=truth, started=0, won=False, running=())
        return Step(f"Spark commits epoch {w.epoch}", world if self.done(world) else self._started(world), problem=problem)

    def _wrong(self, w: World, me: LiveAttempt) -> str | None:
        """The problem of answers that are not each slot's counts of its own key, in the order of processing."""
        expected = sorted(w.truth[k] + n + 1 for k in range(self.count) for n in range(self._of(me, k)))
        got = sorted(me.answers)
        return None if got == expected else f"Spark takes the answers {got} of {_name(me)}, expected {expected}"

    def _started(self, w: World) -> World:
        me = LiveAttempt(w.run, w.epoch, w.started, (0,) * self.count)
        return w._replace(attempts=(*w.attempts, me), started=w.started + 1, running=(*w.running, me.number))

    def _again(self, w: World) -> World:
        """Start an attempt if none is running."""
        return w if w.running or w.won or self.done(w) else self._started(w)

    def _dead(self, w: World, i: int) -> World:
        me = w.attempts[i]
        left = tuple(n for n in w.running if not (self._wanted(w, me) and n == me.number))
        return self._again(w._replace(attempts=at(w.attempts, i), running=left, budget=w.budget._replace(die=w.budget.die - 1)))

    def _wanted(self, w: World, me: LiveAttempt) -> bool:
        return (me.run, me.epoch) == (w.run, w.epoch) and me.number in w.running


def _name(me: LiveAttempt) -> str:
    return f"attempt {me.number} of run {me.run} at epoch {me.epoch}"
