"""All possible steps: group 1 moves from slot 0 to slot 1, a new one, while attempts send events of both groups and END.

The inside of a slot belongs to other models (tests/model, tests/model/move): here a slot does each step at once. One partition. But the
adopting slot answers before its next checkpoint, and may die in between: then it adopts the delivered group again, and replays its log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model import oracle
from tests.model.groups import is_stale, next_value, touch
from tests.model.rerouted.rules import Rules
from tests.model.rules import Rules as SlotRules
from tests.model.slots.model import Budget, Step
from tests.model.state import NEVER, Group, Label, at

ONE_SLOT = SlotRules()
MOVES = 1  # the group that moves
# The phases of the move: not begun; handed over by the source; adopted by the other slot.
BEFORE, CUT, ADOPTED = range(3)
NOTHING = None, None


class Slot(NamedTuple):
    """Its groups (None: not in this slot), and the partition's highest event time (None: the slot does not know the query yet)."""

    groups: tuple[Group | None, Group | None]
    time: Group | None


class Processed(NamedTuple):
    """A frame in the new slot's log since its last checkpoint: an event, or an END with these groups and this highest event time."""

    label: Label
    groups: tuple[int, ...]
    highest: int | None = None


class Durable(NamedTuple):
    """The new slot's durable state: its last checkpoint, state delivered to it and not in the checkpoint yet, and its log since."""

    state: Slot
    delivered: Slot | None = None
    log: tuple[Processed, ...] = ()


class LiveAttempt(NamedTuple):
    """Alive, wanted by Spark or a zombie. `moved`: it uses the newer map. `told`: slots that got its END; `ended`: groups named there."""

    run: int
    epoch: int
    number: int
    sent: int = 0
    moved: bool = False
    told: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()


class World(NamedTuple):
    """The whole state. `underway`: state handed over and not adopted yet."""

    slots: tuple[Slot, Slot]
    underway: Slot | None
    phase: int
    attempts: tuple[LiveAttempt, ...]
    run: int
    epoch: int
    started: int
    running: tuple[int, ...]
    won: bool
    truth: tuple[int, ...]
    budget: Budget
    durable: Durable = Durable(Slot(NOTHING, None))  # maintained only while the slot may still die


@dataclass(frozen=True)
class Rerouted:
    """`events`: for each epoch, the group of each event; `mine`: the groups of the partition."""

    events: tuple[tuple[int, ...], ...]
    faults: Budget
    rules: Rules
    mine: tuple[int, ...] = (0, 1)

    def first(self) -> World:
        """The world before anything is sent."""
        slots = Slot((Group(), Group()), Group()), Slot((None, None), None)
        return self._started(World(slots, None, BEFORE, (), 0, 0, 0, (), False, (0, 0), self.faults))

    def settle(self, world: World) -> World:
        """The world without attempts that have sent everything and that Spark does not wait for: they do nothing more."""
        return world._replace(attempts=tuple(sorted(a for a in world.attempts if self._wanted(world, a) or not self._over(a))))

    def done(self, world: World) -> bool:
        """Whether the last epoch is committed and the move is over."""
        return world.epoch == len(self.events) and world.phase == ADOPTED

    def problem(self, world: World) -> str | None:
        """None: wrong answers and states are found at the step that shows them."""
        return None

    def steps(self, world: World) -> Iterator[Step]:
        """Every possible step, with the world after it."""
        yield from self._move(world)
        yield from self._new_slot(world)
        for i in range(len(world.attempts)):
            yield from self._frames(world, i)
            if world.budget.die:
                yield Step(f"{_name(world.attempts[i])} dies", self._dead(world, i), True)
        if world.epoch < len(self.events):
            yield from self._spark(world)

    # The move

    def _move(self, w: World) -> Iterator[Step]:
        source, other = w.slots
        group = source.groups[MOVES]
        if w.phase == BEFORE:
            assert group is not None
            if not self.rules.undo:
                group = group._replace(base=group.running)
            if not self.rules.labels:
                group = group._replace(label=NEVER._replace(epoch=group.label.epoch))
            if not self.rules.candidate:
                group = group._replace(candidate=None)
            handed = Slot((None, group), source.time if self.rules.times else Group())
            left = source._replace(groups=(source.groups[0], None))
            yield Step("slot 0 hands the group over", w._replace(slots=(left, other), underway=handed, phase=CUT))
        if w.phase == CUT:
            assert w.underway is not None
            durable = w.durable._replace(delivered=w.underway if w.budget.crash and self.rules.delivered else None)
            adopted = _adopted(other, w.underway)
            yield Step("slot 1 adopts the group", w._replace(slots=(source, adopted), underway=None, phase=ADOPTED, durable=durable))

    def _new_slot(self, w: World) -> Iterator[Step]:
        """The new slot's checkpoints, and its death."""
        if not w.budget.crash or w.phase != ADOPTED:
            return
        if w.durable.log or w.durable.delivered:
            state = w.slots[1]
            if w.durable.delivered and not self.rules.taken_in:
                state = state._replace(groups=NOTHING)
            yield Step("slot 1 makes a checkpoint", w._replace(durable=Durable(state)))
        state = w.durable.state
        if w.durable.delivered:
            state = _adopted(state, w.durable.delivered)
        for done in w.durable.log:
            state = _after(state, done) or state
        died = w._replace(budget=w.budget._replace(crash=w.budget.crash - 1), durable=Durable(Slot(NOTHING, None)))
        yield Step("slot 1 dies, and its next owner replays its log", died._replace(slots=(w.slots[0], state)), True)

    # A producer

    def _frames(self, w: World, i: int) -> Iterator[Step]:
        me, events = w.attempts[i], self.events[w.attempts[i].epoch]
        if me.sent < len(events):
            yield from self._pushed(w, i, self._place(me, events[me.sent]), None)
            return
        for slot in (0, 1):
            named = tuple(g for g in self.mine if g not in me.ended and self._place(me, g) == slot)
            if slot in self._untold(me) or named:
                yield from self._pushed(w, i, slot, named)

    def _untold(self, me: LiveAttempt) -> set[int]:
        """The slots that still have to get its END, whether they have groups or not."""
        known = {0, 1} if me.moved and self.rules.end_at_new else {0}
        return known - set(me.told)

    def _place(self, me: LiveAttempt, group: int) -> int:
        return 1 if me.moved and group == MOVES else 0

    def _pushed(self, w: World, i: int, slot: int, ended: tuple[int, ...] | None) -> Iterator[Step]:
        """Push an event, or END with these groups, to that slot."""
        me = w.attempts[i]
        if slot == 0 and w.phase != BEFORE and not me.moved and self.rules.split_anew:
            newer = me._replace(moved=True)
            if ended is not None and not self.rules.ended_once_more:
                newer = newer._replace(ended=self.mine)
            yield Step(f"slot 0 refuses {_name(me)}: MOVED", w._replace(attempts=at(w.attempts, i, newer)))
            return
        if slot == 1 and w.phase != ADOPTED and self.rules.opened:
            return
        yield self._processed(w, i, slot, ended)

    def _processed(self, w: World, i: int, slot: int, ended: tuple[int, ...] | None) -> Step:
        me, there = w.attempts[i], w.slots[slot]
        label = Label(me.run, me.epoch, me.number)
        highest = None if ended is None else me.epoch * 10 + len(self.events[me.epoch])
        done = Processed(label, (self.events[me.epoch][me.sent],) if ended is None else ended, highest)
        text = f"slot {slot} processes {'END' if ended is not None else 'an event'} of {_name(me)}"
        state = _after(there, done)
        if state is None:
            newest = self._wanted(w, me) and me.number == w.started - 1
            gone = w._replace(attempts=at(w.attempts, i))
            gone = gone._replace(running=tuple(n for n in w.running if not (self._wanted(w, me) and n == me.number)))
            return Step(f"{text}: STALE", self._again(gone), problem=oracle.refused(newest, _name(me)))
        after = me._replace(sent=me.sent + (ended is None))
        if ended is None:
            (group,) = (state.groups[g] for g in done.groups)
            assert group is not None
            after = after._replace(answers=(*me.answers, group.running))
        else:
            after = after._replace(told=tuple(sorted({*me.told, slot})), ended=tuple(sorted({*me.ended, *ended})))
        slots = at(w.slots, slot, state)
        if slot == 1 and w.budget.crash:
            w = w._replace(durable=w.durable._replace(log=(*w.durable.log, done)))
        return Step(text, w._replace(slots=(slots[0], slots[1]), attempts=at(w.attempts, i, after)))

    def _over(self, me: LiveAttempt) -> bool:
        return me.ended == self.mine and not self._untold(me)

    # Spark

    def _spark(self, w: World) -> Iterator[Step]:
        b = w.budget
        for me in w.attempts:
            if self._wanted(w, me) and self._over(me):
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
        truth = tuple(n + self.events[w.epoch].count(g) for g, n in enumerate(w.truth))
        owners = [*w.slots, *([w.underway] if w.underway else [])]
        values = tuple(next_value(group, ONE_SLOT) for g in (0, 1) for s in owners if (group := s.groups[g]) is not None)
        times = {next_value(s.time, ONE_SLOT) for s in owners if s.time is not None}
        problem = None if values == truth else f"epoch {w.epoch} is committed with the values {values}, expected {truth}"
        if problem is None and len(times) > 1:
            problem = f"after epoch {w.epoch} the slots' watermarks differ: {sorted(times)}"
        world = w._replace(epoch=w.epoch + 1, truth=truth, started=0, won=False, running=())
        return Step(f"Spark commits epoch {w.epoch}", world if world.epoch == len(self.events) else self._started(world), problem=problem)

    def _wrong(self, w: World, me: LiveAttempt) -> str | None:
        """The problem of an answer that is not the count of its group, in the order of the events."""
        counts, expected = list(w.truth), []
        for g in self.events[me.epoch]:
            counts[g] += 1
            expected.append(counts[g])
        return None if list(me.answers) == expected else f"Spark takes the answers {me.answers} of {_name(me)}, expected {expected}"

    def _started(self, w: World) -> World:
        me = LiveAttempt(w.run, w.epoch, w.started, moved=w.phase == ADOPTED)
        return w._replace(attempts=(*w.attempts, me), started=w.started + 1, running=(*w.running, me.number))

    def _again(self, w: World) -> World:
        """Start an attempt if none is running."""
        return w if w.running or w.won or w.epoch == len(self.events) else self._started(w)

    def _dead(self, w: World, i: int) -> World:
        me = w.attempts[i]
        left = tuple(n for n in w.running if not (self._wanted(w, me) and n == me.number))
        return self._again(w._replace(attempts=at(w.attempts, i), running=left, budget=w.budget._replace(die=w.budget.die - 1)))

    def _wanted(self, w: World, me: LiveAttempt) -> bool:
        return (me.run, me.epoch) == (w.run, w.epoch) and me.number in w.running


def _name(me: LiveAttempt) -> str:
    return f"attempt {me.number} of run {me.run} at epoch {me.epoch}"


def _adopted(there: Slot, delivered: Slot) -> Slot:
    """The slot with the delivered group, and with its event time if the slot had none."""
    return Slot((there.groups[0], delivered.groups[MOVES]), there.time or delivered.time)


def _after(there: Slot, done: Processed) -> Slot | None:
    """The slot after that frame; None if the frame is STALE."""
    groups: tuple[Group | None, ...] = there.groups
    found = {g: group if (group := groups[g]) is not None else Group() for g in done.groups}  # a group without state begins anew
    time = there.time or Group()
    if any(is_stale(group, done.label, ONE_SLOT) for group in (*found.values(), time)):
        return None
    for g, group in found.items():
        group = touch(group, done.label, ONE_SLOT)
        group = group._replace(running=group.running + 1) if done.highest is None else group._replace(ended=True, candidate=None)
        groups = at(groups, g, group)
    if done.highest is None:
        return Slot((groups[0], groups[1]), there.time)
    time = touch(time, done.label, ONE_SLOT)
    return Slot((groups[0], groups[1]), time._replace(running=max(time.running, done.highest), ended=True, candidate=None))
