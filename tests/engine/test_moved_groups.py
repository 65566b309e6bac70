"""Key groups that move between two slots, engines alone: whenever an owner dies, answers and state equal those of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from udo_runtime.engine import content
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.state.codec import TIMERS, unpack

from tests.support.attempt import GROUPS, Attempt
from tests.support.counting_slot import COUNTS, EVENTS, slot
from tests.support.memory_slot import MemorySlot
from tests.support.selection import long
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import ADOPT, ANSWER, ERROR, HANDOVER, PREPARE, SKIPPED, Header, encode
from udo_protocol.state.dead_letters import DEAD, PENDING, Letter


class Two:
    """Two slots, the place of each group, and one partition's attempts at both. `dies`: for each slot, the moments at which it dies."""

    def __init__(
        self, dies: Sequence[frozenset[int]] = (frozenset(), frozenset()), *, commit: str = "epoch", bad: bool = False, told: int = 2
    ) -> None:
        self._told = told
        self.slots = [slot(commit=commit, dies=d, policy=Policy(dead_letter=True) if bad else None) for d in dies]
        self.places = {0: 0, 1: 0, 2: 0, 3: 1}
        self._version = 1

    def move(self, group: int) -> None:
        """Move the group to the other slot."""
        self._version += 1
        source = self.places[group]
        self.slots[source].move(self.slots[1 - source], self._version, [group], told=self._told)
        self.places[group] = 1 - source

    def serve(self) -> None:
        for s in self.slots:
            s.serve()

    def state(self) -> dict[int, int]:
        """The durable counts by key, of both slots together."""
        there = [(n, g) for s in self.slots for n, g in s.durable.session("q").groups.items() if n >= 0]
        assert sorted(n for n, _ in there) == sorted({n for n, _ in there}), "a group is in both slots"
        return {k: unpack(v)["n"] for _, g in there for k, v in g.values.items() if k != TIMERS}


class Parts:
    """One attempt: a lane in each slot."""

    def __init__(self, two: Two, epoch: int, number: int) -> None:
        self._two, self._epoch = two, epoch
        label = Label(run=1, epoch=epoch, attempt=number)
        self.of = [
            Attempt(s.lane(f"q.{epoch}.{number}"), (EVENTS, COUNTS), groups=(), session="q", partition=0, label=label) for s in two.slots
        ]

    def send(self, *keys: int) -> None:
        for k in keys:
            self.of[self._two.places[k % len(GROUPS)]].send([k], self._epoch)

    def end(self) -> None:
        """Send END to each slot, with the groups that it has."""
        self._two.serve()
        for at, part in enumerate(self.of):
            part.end([g for g in GROUPS if self._two.places[g] == at], highest_us=None)
        self._two.serve()

    def answers(self) -> list[tuple[int, int]]:
        """The answers to events, without those of timers."""
        return sorted(a for part in self.of for a in part.answers() if a[1] < 1000)


def count(*epochs: Sequence[int]) -> list[list[tuple[int, int]]]:
    counts, answers = Counter[int](), []
    for keys in epochs:
        answers.append([])
        for k in keys:
            counts[k] += 1
            answers[-1].append((k, counts[k]))
        answers[-1].sort()
    return answers


def play(two: Two) -> list[list[tuple[int, int]]]:
    """A group moves in the middle of an attempt that fails; the next attempt begins where the group then is; it moves back."""
    answers = []
    first = Parts(two, 0, 1)
    first.send(2, 6, 3)
    first.end()
    answers.append(first.answers())
    failed = Parts(two, 1, 1)
    failed.send(2, 0, 3)
    two.serve()
    two.move(2)
    failed.send(2, 2)
    two.serve()
    again = Parts(two, 1, 2)
    again.send(2, 6, 7)
    again.end()
    answers.append(again.answers())
    last = Parts(two, 2, 3)
    last.send(2, 1)
    two.serve()
    two.move(2)
    last.send(2, 3)
    last.end()
    answers.append(last.answers())
    return answers


EXPECTED = count([2, 6, 3], [2, 6, 7], [2, 1, 2, 3])
STATE = {2: 4, 6: 2, 3: 2, 7: 1, 1: 1}


@pytest.mark.parametrize(("commit", "told"), [("epoch", 2), long("epoch", 1), long("frame", 2)])
def test_whatever_effect_an_owner_dies_at_while_a_group_moves_each_event_counts_once(commit: str, told: int) -> None:
    """Also between the adopting slot's first answers and the checkpoint that makes the group part of its state."""
    undisturbed = Two(commit=commit, told=told)
    assert play(undisturbed) == EXPECTED and undisturbed.state() == STATE
    for which in range(2):
        for moment in range(undisturbed.slots[which].moments):
            dies = [frozenset({moment}) if at == which else frozenset() for at in range(2)]
            two = Two(dies, commit=commit, told=told)
            assert play(two) == EXPECTED, f"slot {which} dies at moment {moment}"
            assert two.slots[which].deaths == 1 and two.state() == STATE


def test_an_epoch_that_has_ended_at_the_one_slot_goes_on_at_the_other_also_if_it_is_evaluated_again() -> None:
    two = Two()
    first = Parts(two, 0, 1)
    first.send(2, 2)
    first.end()
    two.move(2)
    again = Parts(two, 0, 2)  # the driver was restarted before it committed the epoch
    again.send(2, 2)
    again.end()
    assert first.answers() == again.answers() == [(2, 1), (2, 2)]
    cut_off = Parts(two, 0, 3)
    cut_off.send(2)
    two.serve()
    two.move(2)
    late = Parts(two, 1, 4)
    late.send(2)
    late.end()
    assert late.answers() == [(2, 3)], "the ENDed values are the candidate that counts, in whatever slot"


def test_an_attempt_that_failed_at_the_one_slot_does_not_complete_the_group_at_the_other() -> None:
    two = Two()
    first = Parts(two, 0, 1)
    first.send(1)
    first.end()
    failed = Parts(two, 1, 1)
    failed.of[0].send([1, 13], 1)
    two.serve()
    two.move(1)
    failed.of[1].end([1], highest_us=None)
    two.serve()
    assert [part.kinds() for part in failed.of] == [[ERROR], [SKIPPED]]
    again = Parts(two, 1, 2)
    again.send(1)
    again.end()
    assert again.answers() == [(1, 2)]


def test_dead_letters_of_a_group_move_with_it_and_are_settled_where_its_attempt_ends() -> None:
    two = Two(bad=True)
    for epoch, ends in enumerate([False, True]):
        attempt = Parts(two, 0, epoch)
        attempt.send(1, 13)
        two.serve()
        two.move(1)
        if ends:
            attempt.end()
    assert [k for part in attempt.of for k in part.kinds()][-1] == ANSWER
    letters = [Letter.decode(body) for s in two.slots for body in s.durable.letters[DEAD].values()]
    assert [(x.epoch, x.attempt) for x in letters] == [(0, 1)], "that of the attempt that ENDed"
    assert not any(s.durable.letters[PENDING] for s in two.slots)
    assert not any(str(n) for s in (two.slots[1 - two.places[1]],) for n in s.durable.letters[DEAD]), "it is where its group is"


def test_the_checkpoint_before_a_cut_leaves_folding_to_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events wait for it, and the other slot, which has read the base ahead, would have to read the new one."""
    monkeypatch.setattr(content, "FOLD_BYTES", 0)
    two, bases = Two(), list[str]()

    def base() -> str:
        return two.slots[0].durable.session("q").groups[2].place.piece

    for epoch in range(6):
        attempt = Parts(two, epoch, 1)
        attempt.send(2)
        two.serve()
        if epoch > 2:  # the bases before that are of an empty group
            before = base()
            two.slots[0].tell(Header(lane="move", number=2, kind=PREPARE))
            two.serve()
            assert base() == before
        attempt.end()
        bases.append(base())
    assert len(set(bases)) > 2, "the END's folds"


@pytest.mark.parametrize("kind", [HANDOVER, ADOPT, PREPARE])
def test_a_frame_that_asks_for_a_move_and_is_not_the_node_managers_gets_an_error_and_nothing_moves(kind: int) -> None:
    two = Two()
    first = Parts(two, 0, 1)
    first.send(2, 3)
    first.end()
    two.move(2)
    two.move(2)  # both slots still know the node manager's last frames
    for s in two.slots:
        forged = [Header(lane="forger", number=n, kind=kind, groups=[0, 1, 2, 3]) for n in (2, 3, 4)]
        for header in [*forged, *([Header(lane="move", number=3, kind=HANDOVER, groups=[2])] if kind == HANDOVER else [])]:
            s.push(encode(header))
            s.serve()
            answer = s.answers[header.lane][-1].header
            assert answer.kind == ERROR and "which alone moves key groups" in answer.failure.message
        assert not s.durable.handed_over
    again = Parts(two, 1, 1)
    again.send(2, 3)
    again.end()
    assert again.answers() == [(2, 2), (3, 2)]


OTHER = bytes(encode(Header(lane="move", number=2, kind=HANDOVER, groups=[0, 1, 2]))[0])


@pytest.mark.parametrize("damaged", [b"UDOF...", OTHER], ids=["garbled", "other groups"])
def test_a_handover_that_is_damaged_in_the_log_loses_nothing_and_is_told_again(damaged: bytes) -> None:
    two = Two()
    first = Parts(two, 0, 1)
    first.send(0, 2)
    first.end()
    before = two.state()
    two.slots[0].tell(Header(lane="move", number=2, kind=HANDOVER, groups=[2]), damaged=damaged)
    two.serve()
    assert not two.slots[0].durable.handed_over and two.state() == before
    two.move(2)  # as the node manager does when the frame is answered and nothing is handed over
    again = Parts(two, 1, 1)
    again.send(0, 2)
    again.end()
    assert again.answers() == [(0, 2), (2, 2)]


def test_a_slot_that_has_never_seen_the_query_goes_on_with_its_epochs_and_watermark() -> None:
    two = Two()
    two.places = dict.fromkeys(GROUPS, 0)
    only = two.slots[0]
    for epoch in range(3):
        attempt = Parts(two, epoch, 1)
        attempt.of = attempt.of[:1]
        attempt.send(2, 3)
        attempt.end()
    two.slots[1] = fresh = slot()
    two.move(2)
    assert isinstance(only, MemorySlot) and fresh.durable.records["q"].last_ended == 2
    attempt = Parts(two, 3, 1)
    attempt.send(2, 3)
    attempt.end()
    told = sorted(a for part in attempt.of for a in part.answers())
    assert told == [(2, 4), (2, 1004), (3, 4), (3, 1004)], "the timers of second 2 are due by the events of second 2, in both slots"
