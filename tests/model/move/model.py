"""All possible steps of a move, and the condition: each frame of the newest attempt is answered once, as if nothing had moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from elasticity.allocation.costs import Protocol
from tests.model.move.rules import Rules
from tests.model.move.state import EVENTS, WINDOW, Budget, Checkpoint, Frame, Group, Lane, Owner, Sent, Slot, Taker, World, count
from tests.model.state import at


class Step(NamedTuple):
    """A possible next step. `chosen`: a fault; it does not count as progress."""

    text: str
    world: World
    chosen: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class Move:
    """CPAL: B reads along from the start. CPA: B begins at the cut, with A's last checkpoint. Direct: with one that covers the cut."""

    protocol: Protocol
    rules: Rules
    faults: Budget

    def first(self) -> World:
        """The world before anything is sent."""
        start = Checkpoint(0, Group(), Group())
        return World(Slot(start), Slot(None), Owner(1, Group(), Group()), None, Lane(), self.faults)

    def settle(self, world: World) -> World:
        """Worlds are compared as they are."""
        return world

    def problem(self, world: World) -> str | None:
        """None: wrong answers are found at the step that gives them."""
        return None

    def done(self, world: World) -> bool:
        """Whether all frames of the newest attempt are answered, and the move is over."""
        return len(world.lane.answered) == len(EVENTS) and world.a.checkpoint is not None and world.a.checkpoint.g is None

    def steps(self, world: World) -> Iterator[Step]:
        """Every possible step, with the world after it; none once all is over."""
        if self.done(world):
            return
        yield from self._sending(world)
        yield from self._arrivals(world)
        yield from self._at_a(world)
        yield from self._at_b(world)
        yield from self._executor(world)

    # The producer

    def _sending(self, w: World) -> Iterator[Step]:
        lane = w.lane
        own = [s for s in lane.flight if s.frame.attempt == lane.attempt]
        if lane.next < len(EVENTS) and len(own) < WINDOW:
            frame = Frame(lane.attempt, lane.next)
            to_b = lane.moved and frame.group == "g"
            sent = lane._replace(next=lane.next + 1, flight=(*lane.flight, Sent(frame, to_b)))
            yield Step(f"{_name(frame)} is sent to {'B' if to_b else 'A'}", w._replace(lane=sent))
        if w.a.cut and not lane.moved and (not own or not self.rules.settled):
            yield Step("the producer takes the newer map", w._replace(lane=lane._replace(moved=True)))
        if w.budget.fail:
            again = Lane(lane.attempt + 1, flight=lane.flight)
            yield Step(f"attempt {lane.attempt} fails", w._replace(lane=again, budget=w.budget._replace(fail=w.budget.fail - 1)), True)

    def _arrivals(self, w: World) -> Iterator[Step]:
        """The first frame of each connection arrives."""
        seen: set[tuple[int, bool]] = set()
        for i, (frame, to_b) in enumerate(w.lane.flight):
            if (frame.attempt, to_b) in seen:
                continue
            seen.add((frame.attempt, to_b))
            lane = w.lane._replace(flight=at(w.lane.flight, i))
            if to_b:
                yield Step(f"B accepts {_name(frame)}", w._replace(b=w.b._replace(log=(*w.b.log, frame)), lane=lane))
            elif w.a.cut and frame.group == "g" and self.rules.moved:
                yield Step(f"A refuses {_name(frame)}: MOVED", w._replace(lane=self._told_moved(lane, frame)))
            else:
                yield Step(f"A accepts {_name(frame)}", w._replace(a=w.a._replace(log=(*w.a.log, frame)), lane=lane))

    def _told_moved(self, lane: Lane, refused: Frame) -> Lane:
        """The newest attempt sends the frame again; a zombie's later frames are refused, too, and never sent again."""
        if not self.rules.gap:
            again = (Sent(refused, True),) if refused.attempt == lane.attempt else ()
            return lane._replace(moved=True, flight=(*lane.flight, *again))
        flight = tuple(s for s in lane.flight if s.frame.attempt != refused.attempt or s.frame.n < refused.n)
        if refused.attempt != lane.attempt:
            return lane._replace(flight=flight)
        return lane._replace(moved=True, next=refused.n, flight=flight)

    # The instances

    def _at_a(self, w: World) -> Iterator[Step]:
        me, slot = w.owner, w.a
        if me.cursor < slot.end:
            frame = slot.frame(me.cursor)
            yield self._handled(w, "A", frame, _own(me, frame.group), me.cursor)
        stored = slot.checkpoint
        assert stored is not None
        if stored.seq < me.cursor - 1 <= slot.emitted:
            kept = Checkpoint(me.cursor - 1, me.g, me.h)
            yield Step(f"A stores a checkpoint up to #{kept.seq}", w._replace(a=_trimmed(slot, kept)))
        if w.budget.crash_a:
            fresh = Owner(stored.seq + 1, stored.g, stored.h)
            yield Step("A crashes and is replaced", w._replace(owner=fresh, budget=w.budget._replace(crash_a=w.budget.crash_a - 1)), True)

    def _at_b(self, w: World) -> Iterator[Step]:
        me, a, b = w.taker, w.a, w.b
        if me is None:
            return
        adopted = a.cut is not None and me.behind >= a.cut
        if me.behind < a.base and not adopted:
            yield from self._load(w, "B reloads")
        elif me.behind < (a.cut or a.end):
            frame = a.frame(me.behind)
            after = count(me.g, frame.attempt) if frame.group == "g" else None
            yield Step(f"B replays A's #{me.behind}", w._replace(taker=me._replace(behind=me.behind + 1, g=after or me.g)))
        if me.cursor < b.end and (adopted or not self.rules.drain):
            yield self._handled(w, "B", b.frame(me.cursor), me.g, me.cursor)
        if adopted and me.cursor - 1 <= b.emitted and (b.checkpoint is None or me.cursor - 1 > b.checkpoint.seq):
            kept = Checkpoint(me.cursor - 1, me.g, Group())
            yield Step(f"B stores a checkpoint of its own up to #{kept.seq}", w._replace(b=_trimmed(b, kept)))
        if w.budget.crash_b:
            own = Taker(a.cut or 0, b.checkpoint.g, b.checkpoint.seq + 1) if b.checkpoint and b.checkpoint.g else None
            yield Step("B crashes", w._replace(taker=own, budget=w.budget._replace(crash_b=w.budget.crash_b - 1)), True)

    def _handled(self, w: World, where: str, frame: Frame, group: Group | None, seq: int) -> Step:
        """The instance there processes one frame: it updates values, and answers unless the frame was answered before."""
        if group is None:
            return Step(f"{where} reads {_name(frame)}", w, problem=f"{where} has to handle {_name(frame)}, and has forgotten its group")
        after = count(group, frame.attempt)
        new = seq > (w.a if where == "A" else w.b).emitted
        problem, lane = self._answered(w.lane, frame, after) if new else (None, w.lane)
        kept = after or group
        if where == "A":
            owner = w.owner._replace(cursor=seq + 1, **{frame.group: kept})
            world = w._replace(owner=owner, a=w.a._replace(emitted=max(seq, w.a.emitted)), lane=lane)
        else:
            assert w.taker is not None
            world = w._replace(taker=w.taker._replace(g=kept, cursor=seq + 1), b=w.b._replace(emitted=max(seq, w.b.emitted)), lane=lane)
        return Step(
            f"{where} {'answers' if new else 'repeats'} {_name(frame)} with {after.value if after else 'STALE'}", world, problem=problem
        )

    def _answered(self, lane: Lane, frame: Frame, after: Group | None) -> tuple[str | None, Lane]:
        """Check an answer as the producer does, which ignores those of an older attempt; return the problem and the lane."""
        if frame.attempt != lane.attempt:
            return None, lane
        expected = EVENTS[: frame.n + 1].count(frame.group)
        if after is None or after.value != expected:
            return f"{_name(frame)} is answered with {after.value if after else 'STALE'}, expected {expected}", lane
        if frame.n in lane.answered:
            return f"{_name(frame)} is answered twice", lane
        return None, lane._replace(answered=tuple(sorted((*lane.answered, frame.n))))

    # The executor of the move

    def _executor(self, w: World) -> Iterator[Step]:
        a, stored = w.a, w.a.checkpoint
        assert stored is not None
        begins = {Protocol.CPAL: True, Protocol.CPA: a.cut is not None, Protocol.DIRECT: a.cut is not None and stored.seq >= a.cut - 1}
        if w.taker is None and begins[self.protocol]:
            yield from self._load(w, "B loads")
        if a.cut is None and (w.taker is not None or self.protocol is not Protocol.CPAL):
            yield Step(f"the cut, before #{a.end}", w._replace(a=a._replace(cut=a.end)))
        recorded = a.cut is not None and (stored.seq >= a.cut - 1 or not self.rules.record)
        if a.cut is not None and stored.g is not None and recorded and (w.b.checkpoint or (w.taker and not self.rules.keep)):
            forgotten = a._replace(checkpoint=stored._replace(g=None))
            yield Step("A forgets the group", w._replace(a=forgotten, owner=w.owner._replace(g=None)))

    def _load(self, w: World, what: str) -> Iterator[Step]:
        """B loads A's checkpoint of the group, or a copy of it."""
        stored = w.a.checkpoint
        if stored is None or stored.g is None:
            return
        group = stored.g
        if not self.rules.undo:
            group = group._replace(base=group.value)
        if not self.rules.labels:
            group = group._replace(label=-1)
        yield Step(f"{what} A's checkpoint up to #{stored.seq}", w._replace(taker=Taker(stored.seq + 1, group, w.b.base)))


def _own(me: Owner, group: str) -> Group | None:
    return me.g if group == "g" else me.h


def _trimmed(slot: Slot, kept: Checkpoint) -> Slot:
    return slot._replace(checkpoint=kept, log=slot.log[kept.seq + 1 - slot.base :], base=kept.seq + 1)


def _name(frame: Frame) -> str:
    return f"{frame.group}{frame.n} of attempt {frame.attempt}"
