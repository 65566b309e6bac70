"""The keyed engine alone, without servers or clock: whenever a process dies, answers and state equal those of one process."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.state.codec import TIMERS, unpack

from tests.support.attempt import T0, Attempt
from tests.support.counted import PARTITIONS, SCRIPT, Epochs, Plans, an_attempt, oracle, play
from tests.support.counting_slot import COUNTS, EVENTS, SENT, slot
from tests.support.memory_slot import MemorySlot
from tests.support.seeds import examples
from tests.support.selection import long
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.frame import ANSWER, DATA, ERROR, SKIPPED, STALE
from udo_protocol.state.dead_letters import DEAD, PENDING, Letter
from udo_protocol.state.session_record import SessionRecord


def test_an_undisturbed_engine_counts_like_one_process() -> None:
    s = slot()
    assert [a.answers() for a in play(s, SCRIPT, broken_off=[2])] == oracle(SCRIPT)
    assert s.durable.records["q"].last_ended == len(SCRIPT) - 1


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ([0, None], "expected int32 key groups without nulls, got int32 with 1 nulls"),
        ([0, 128], "expected key groups 0 to 127, got 0 to 128"),
        ([-1, 0], "expected key groups 0 to 127, got -1 to 0"),
    ],
)
def test_events_without_a_valid_key_group_get_an_error_and_the_slot_goes_on(groups: list[int | None], problem: str) -> None:
    s = slot()
    wrong = an_attempt(s, 0, 0, partition=0)
    wrong.push(DATA, pa.record_batch([[0, 2], [T0, T0], pa.array(groups, pa.int32())], schema=SENT), rows=2)
    s.serve()
    [frame] = wrong.frames()
    assert frame.header.kind == ERROR and frame.header.failure.code == "protocol" and problem in frame.header.failure.message
    assert [a.answers() for a in play(s, SCRIPT)] == oracle(SCRIPT)


@pytest.mark.parametrize("commit", ["epoch", long("frame")])
def test_whatever_effect_a_process_dies_at_the_next_goes_on_as_if_nothing_had_happened(commit: str) -> None:
    undisturbed = slot(commit=commit)
    play(undisturbed, SCRIPT, broken_off=[1])
    for moment in range(undisturbed.moments):
        s = slot(commit=commit, dies=frozenset({moment}))
        assert [a.answers() for a in play(s, SCRIPT, broken_off=[1])] == oracle(SCRIPT), f"dies at moment {moment}"
        assert s.deaths == 1


def test_partitions_of_a_batch_job_that_have_ended_leave_the_others_their_state() -> None:
    s = slot()

    def attempt(partition: int) -> Attempt:
        header = {"session": "j", "partition": partition, "label": Label(run=1, epoch=0, attempt=partition), "job": True}
        return Attempt(s.lane(f"j.{partition}"), (EVENTS, COUNTS), groups=[partition], **header)

    job = [attempt(partition) for partition in range(3)]
    for partition, each in enumerate(job):
        each.send([partition], 0)
    s.serve()
    for each in job[:2]:
        each.end()
        s.serve()
    s.die()
    job[2].send([2], 0)
    job[2].end()
    s.serve()
    assert [each.answers() for each in job] == [[(0, 1)], [(1, 1)], [(2, 1), (2, 2)]]
    assert not s.durable.records and not s.durable.groups


def test_an_attempt_whose_lane_is_closed_is_skipped_and_the_next_counts_as_if_it_had_never_been() -> None:
    """A cancelled task's frames and END are in the log while its lane is closed, and a process dies at any effect around them."""
    epochs: Epochs = [[[0, 2], [1]], [[0, 2], [3]]]

    def run(dies: frozenset[int], commit: str) -> MemorySlot:
        s = slot(commit=commit, dies=dies)
        first = [a.answers() for a in play(s, epochs[:1])]
        cancelled = an_attempt(s, 1, 0, 0)
        cancelled.send([0], 51)
        s.serve()
        cancelled.send([2], 51)
        cancelled.end()
        s.closed.add(cancelled.lane.lane)
        s.serve()
        assert cancelled.kinds() == [ANSWER, SKIPPED, SKIPPED]
        again = [an_attempt(s, 1, 1, p) for p in range(PARTITIONS)]
        for attempt, keys in zip(again, epochs[1], strict=True):
            attempt.send(keys, 1)
            attempt.end()
        s.serve()
        assert [*first, *(a.answers() for a in again)] == oracle(epochs), f"dies at {dies}"
        return s

    for commit in ("epoch", "frame"):
        for moment in range(run(frozenset(), commit).moments):
            assert run(frozenset({moment}), commit).deaths == 1


def test_two_deaths_one_soon_behind_the_other_change_nothing() -> None:
    undisturbed = slot()
    play(undisturbed, SCRIPT[:2])
    pairs = [p for p in combinations(range(undisturbed.moments + 20), 2) if p[1] - p[0] <= 20]
    for pair in random.Random(1).sample(pairs, 60):
        s = slot(dies=frozenset(pair))
        assert [a.answers() for a in play(s, SCRIPT[:2])] == oracle(SCRIPT[:2]), f"dies at moments {pair}"


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(Plans, st.lists(st.integers(0, 4), max_size=2), st.frozensets(st.integers(0, 150), max_size=3), st.integers(1, 16), st.booleans())
def test_any_epochs_attempts_deaths_and_reads_count_like_one_process(
    epochs: Epochs, broken_off: list[int], dies: frozenset[int], read: int, by_frame: bool
) -> None:
    s = slot(commit="frame" if by_frame else "epoch", dies=dies)
    assert [a.answers() for a in play(s, epochs, broken_off, read)] == oracle(epochs)


@settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(st.frozensets(st.integers(0, 120), max_size=3), st.integers(1, 16))
def test_bad_events_are_dead_letters_once_whatever_dies(dies: frozenset[int], read: int) -> None:
    epochs = [[[0, 2], [1, 13]], [[0], [13, 1, 13]], [[0], [1]]]
    s = slot(policy=Policy(dead_letter=True), dies=dies)
    assert [a.answers() for a in play(s, epochs, [2], read)] == oracle(epochs, bad=(13,))
    letters = [Letter.decode(body) for body in s.durable.letters[DEAD].values()]
    assert sorted((x.epoch, x.attempt, x.row) for x in letters) == [(0, 100, 0), (1, 100, 0), (1, 100, 1)]
    assert not s.durable.letters[PENDING]


Rows = Sequence[tuple[int, int]]  # (key, event time in seconds)


def told(slots: Sequence[MemorySlot], epoch: int, rows: Sequence[Rows], *, says: bool = True) -> list[tuple[int, int]]:
    """Run an epoch of one partition, each slot with its own events, and return all answers; `says`: END has their highest event time."""
    parts = [an_attempt(s, epoch, 1, 0) for s in slots]
    times, answers = list[int](), list[tuple[int, int]]()
    for s, part, of_slot in zip(slots, parts, rows, strict=True):
        for k, second in of_slot:
            part.send([k], second)
        s.serve()
        frames = part.frames()
        times += [f.header.highest_us for f in frames if f.header.HasField("highest_us")]
        answers += [tuple(row.values()) for f in frames for row in f.batch(COUNTS).to_pylist()]  # type: ignore[misc]
    for s, part in zip(slots, parts, strict=True):
        part.end(highest_us=max(times, default=None) if says else None)
        s.serve()
        answers += part.answers()
    return sorted(answers)


Timed = st.lists(st.lists(st.tuples(st.sampled_from([0, 2, 4, 13]), st.integers(-20, 20)), max_size=5), min_size=1, max_size=5)


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(Timed)
def test_what_end_says_of_event_time_changes_nothing_where_one_slot_has_all_events(epochs: list[Rows]) -> None:
    def run(*, says: bool) -> list[list[tuple[int, int]]]:
        only = slot(policy=Policy(dead_letter=True))  # bad events, those of key 13, do not count for event time
        return [told([only], epoch, [rows], says=says) for epoch, rows in enumerate(epochs)]

    assert run(says=True) == run(says=False)


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(Timed)
def test_a_slot_goes_by_the_time_of_events_that_another_slot_got(epochs: list[Rows]) -> None:
    two, one = [slot(policy=Policy(dead_letter=True)) for _ in range(2)], slot(policy=Policy(dead_letter=True))
    for epoch, rows in enumerate([*epochs, []]):
        split = [[row for row in rows if row[0] % 4 == 2 * half] for half in range(2)]
        bad = [row for row in rows if row[0] == 13]
        assert told(two, epoch, [split[0] + bad, split[1]]) == told([one], epoch, [rows])


def test_a_timer_is_due_by_an_event_that_another_slot_got() -> None:
    two = [slot(), slot()]
    assert told(two, 0, [[(0, 0)], [(2, 50)]]) == [(0, 1), (2, 1)]
    assert told(two, 1, [[], []]) == [(0, 1001)], "its timer is of second 2; the highest event time, 50, was the other slot's"


def test_behind_a_frame_that_failed_an_attempt_is_skipped_and_the_next_one_counts() -> None:
    s = slot()
    play(s, SCRIPT[:1])
    failed = an_attempt(s, 1, 1, 1)
    failed.send([1, 13], 1)
    failed.send([1], 1)
    failed.end()
    s.serve()
    assert failed.kinds() == [ERROR, SKIPPED, SKIPPED]
    s.die()
    again = an_attempt(s, 1, 2, 1)
    again.send([1], 1)
    again.end()
    s.serve()
    assert again.answers() == [(1, 2)]


def test_an_older_attempt_that_still_sends_is_stale_also_for_the_next_process() -> None:
    s = slot()
    old, new = an_attempt(s, 0, 1, 0), an_attempt(s, 0, 2, 0)
    old.send([0], 0)
    new.send([0, 0], 0)
    s.serve()
    s.die()
    old.send([0], 0)
    old.end()
    new.end()
    s.serve()
    assert old.kinds() == [ANSWER, STALE, STALE]
    assert new.answers() == [(0, 1), (0, 2)]


def test_state_in_another_number_of_key_groups_is_told_from_what_the_deployment_has() -> None:
    s = slot()
    play(s, SCRIPT[:1])
    assert s.durable.records["q"].key_groups == 128
    s.die()
    s.durable.records["q"] = replace(s.durable.records["q"], key_groups=64)
    attempt = an_attempt(s, 1, 0, 0)
    attempt.send([0], 1)
    s.serve()
    [frame] = attempt.frames()
    assert "keeps its state in 64 key groups, and the deployment has 128" in frame.header.failure.message
    s.die()
    document = s.durable.records["q"].document()
    del document["key_groups"]  # as written by a release that had no other number
    s.durable.records["q"] = SessionRecord.of(document)
    attempt = an_attempt(s, 1, 1, 0)
    attempt.send([0], 1)
    s.serve()
    assert attempt.kinds() == [ANSWER]


def test_the_state_that_is_durable_is_that_of_the_answers() -> None:
    s = slot()
    play(s, SCRIPT, broken_off=[2])
    groups = s.durable.session("q").groups
    kept = {k: unpack(v)["n"] for n, g in groups.items() if n >= 0 for k, v in g.values.items() if k != TIMERS}
    assert kept == dict(Counter(k for epoch in SCRIPT for keys in epoch for k in keys))
