"""Dead letters of real operator processes on real servers: none is lost or doubled, whatever dies between storing one and the answer."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from udo_runtime.durable.ledger import Ledger
from udo_runtime.engine.content import LetterChanges

from tests.conftest import Servers, bound, wait_until
from tests.runtime.conftest import P, Process
from tests.support.attempt import GROUPS, group_of
from tests.support.counters import COUNT, an_attempt
from tests.support.letters import counter, events, kills, letters, mark, marks
from tests.support.stateless import collect, lane, send
from udo_protocol.formats.schema import schema_id, to_ipc
from udo_protocol.queue import slot
from udo_protocol.queue.frame import ANSWER, DATA, ERROR, SKIPPED, Header, encode
from udo_protocol.state import checkpoints
from udo_protocol.state.dead_letters import DEAD, PENDING, REPLAY, KeyedName, LaneName, parse_name

Start = Callable[..., Process]
VECTORISED = """
def flag(batch):
    values = batch["a"].to_pylist()
    if 13 in values: raise ValueError("unlucky")
    return {"b": ["x" if v == 17 else v for v in values]}
"""
EACH = """
from udo_runtime import Operator
class flag(Operator):
    def process(self, event, ctx):
        if event["a"] == 13: raise ValueError("unlucky")
        yield {"b": "x" if event["a"] == 17 else event["a"]}
"""


def values(frame: Any) -> list[int]:
    assert frame.header.kind == ANSWER, frame.header.failure.message
    return frame.batch(pa.schema([("b", pa.int64())])).column(0).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("source", [VECTORISED, EACH])
def test_bad_events_become_dead_letters_and_the_others_are_answered_in_order(start: Start, servers: Servers, source: str) -> None:
    start(source, policy="dead-letter")
    end = lane(servers)
    for n, asked in enumerate(([1, 2], [3, 13, 4, 17, 5], [6], [13]), 1):
        send(end, n, asked)
    assert [values(f) for f in collect(end, 4)] == [[1, 2], [3, 4, 5], [6], []]
    found = {(d.number, d.row): d for d in letters(servers).values()}
    assert sorted(found) == [(2, 1), (2, 3), (4, 0)]
    unlucky, text = found[2, 1], found[2, 3]
    assert (unlucky.reason, unlucky.code, json.loads(unlucky.event)) == ("ValueError: unlucky", "operator", {"a": 13})
    assert "op.py" in unlucky.traceback
    assert "udo_runtime" not in unlucky.traceback
    assert (text.code, "expected int64" in text.reason) == ("schema", True)
    assert pa.ipc.open_stream(text.arrow).read_all().to_pylist() == [{"a": 17}]
    assert (unlucky.operator, unlucky.lane) == ("t@1", "l")


@pytest.mark.parametrize("policy", ["fail", "dead-letter"])
def test_a_frame_is_given_again_as_often_as_the_policy_says(start: Start, servers: Servers, policy: str) -> None:
    source = """
calls = []
def flag(batch):
    calls.append(batch.num_rows)
    if batch["a"].to_pylist() == [1, 2] and len(calls) < 3: raise OSError("away")
    if 9 in batch["a"].to_pylist(): raise ValueError("nine")
    print("calls", calls, flush=True)
    return {"b": batch["a"]}
"""
    p = start(source, policy=policy, retries=2)
    end = lane(servers)
    send(end, 1, [1, 2])
    assert values(collect(end, 1)[0]) == [1, 2]
    assert "calls [2, 2, 2]" in p.log.read_text()
    send(end, 2, [8, 9])
    [last] = collect(end, 1)
    if policy == "fail":
        assert (last.header.kind, last.header.failure.message, last.header.failure.event) == (ERROR, "ValueError: nine", '{"a": 9}')
    else:
        assert values(last) == [8]
        assert events(servers) == [{"a": 9}]
    queue = servers.queue()
    wait_until(lambda: slot.read_stats(queue, P, "i0").get("retries") == 4, 10, "publishing of counters")
    assert slot.read_stats(queue, P, "i0")["dead_letters"] == (policy == "dead-letter")


def test_above_the_limit_it_fails_and_says_so_and_goes_on_when_there_is_room(start: Start, servers: Servers) -> None:
    start(VECTORISED, policy="dead-letter", dead_letters=2)
    assert answer_in(servers, "one", [13, 1, 13]) == [1]
    end = lane(servers, "two")
    for n, asked in enumerate(([13, 5], [6]), 1):
        send(end, n, asked)
    full, later = collect(end, 2)
    assert (full.header.kind, later.header.kind) == (ERROR, SKIPPED)
    assert "unlucky" in full.header.failure.message
    assert "may keep 2" in full.header.failure.message
    assert "udo dead drop t" in full.header.failure.message
    assert len(letters(servers)) == 2
    servers.state().call("HDEL", f"{P}{DEAD}", next(iter(letters(servers))))
    assert answer_in(servers, "three", [13, 5]) == [5]


def test_above_the_limit_of_bytes_it_fails_too(start: Start, servers: Servers) -> None:
    start(VECTORISED, policy="dead-letter", dead_letter_bytes=3000)
    for name in ("one", "two"):
        assert answer_in(servers, name, [13, 1]) == [1]
    end = lane(servers, "three")
    send(end, 1, [13])
    send(end, 2, [13])
    assert ERROR in [f.header.kind for f in collect(end, 2)]


def answer_in(servers: Servers, name: str, asked: list[int]) -> list[int]:
    end = lane(servers, name)
    send(end, 1, asked)
    [frame] = collect(end, 1)
    end.close()
    return values(frame)


def test_a_strict_frame_is_answered_with_its_error_under_every_policy(start: Start, servers: Servers) -> None:
    start(VECTORISED, policy="dead-letter")
    end = lane(servers)
    schema = pa.schema([("a", pa.int64())])
    header = Header(lane="l", number=1, kind=DATA, schema=schema_id(to_ipc(schema)), strict=True)
    end.push(1, 0, encode(header, pa.record_batch([pa.array([13])], schema=schema)))
    [frame] = collect(end, 1)
    assert (frame.header.kind, frame.header.failure.message) == (ERROR, "ValueError: unlucky")
    assert letters(servers) == {}


def test_a_process_killed_between_a_durable_dead_letter_and_the_answer_leaves_one_letter_and_one_answer(
    start: Start, servers: Servers, tmp_path: Path
) -> None:
    died = tmp_path / "died"
    patch = kills(died, "from udo_runtime.durable import letters", "letters.StatelessLetters.keep")
    first = start(patch + VECTORISED, policy="dead-letter")
    end = lane(servers)
    send(end, 1, [1, 13])
    assert first.process.wait(bound(20)) == -signal.SIGKILL
    assert [parse_name(n) for n in letters(servers)] == [LaneName("l", servers.queue().run_id, 1, 1, 1)]
    assert slot.slot_stats(servers.queue(), P).emitted == 0
    start(VECTORISED, policy="dead-letter")
    assert values(collect(end, 1)[0]) == [1]
    assert [d.operator for d in letters(servers).values()] == ["t@2"]


def test_an_event_that_the_next_owner_answers_is_no_dead_letter_any_more(start: Start, servers: Servers, tmp_path: Path) -> None:
    died = tmp_path / "died"
    patch = kills(died, "from udo_runtime.durable import letters", "letters.StatelessLetters.keep", when="args[0] == 2")
    first = start(patch + VECTORISED, policy="dead-letter")
    end = lane(servers)
    send(end, 1, [13])
    assert values(collect(end, 1)[0]) == []
    send(end, 2, [13])
    assert first.process.wait(bound(20)) == -signal.SIGKILL
    assert len(letters(servers)) == 2
    start("def flag(batch): return {'b': batch['a']}\n", policy="dead-letter")
    assert values(collect(end, 1)[0]) == [13]
    assert [d.number for d in letters(servers).values()] == [1]


def test_a_former_owner_writes_no_dead_letter(start: Start, servers: Servers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = f"import pathlib, time\ngate = pathlib.Path({str(gate)!r})\n" + VECTORISED.replace(
        "    values", "    while not gate.exists(): time.sleep(0.005)\n    values", 1
    )
    first = start(waits, policy="dead-letter")
    end = lane(servers)
    send(end, 1, [1, 13])
    second = start("def flag(batch): return {'b': batch['a']}\n", policy="dead-letter")
    assert values(collect(end, 1)[0]) == [1, 13]
    gate.touch()
    assert first.process.wait(bound(20)) == 0
    assert letters(servers) == {}
    assert second.process.poll() is None


# -- keyed ---------------------------------------------------------------------------------------------------------------

TIMERS = """
import datetime as dt
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.timer(event["t"] + dt.timedelta(seconds=10))
        if event["k"] == "boom": raise ValueError("boom")
    def on_timer(self, key, at, ctx):
        n = ctx.state.pop("n", 0)
        if key == "late": raise ValueError("too late")
        yield {"k": key, "n": n}
"""


@pytest.fixture
def count(start: Start) -> Iterator[Process]:
    yield counter(start)


def test_a_bad_keyed_event_leaves_no_trace_and_counts_once_it_has_ended(count: Process, servers: Servers) -> None:
    attempt = an_attempt(servers, 0, 1)
    attempt.send(["a", "boom", "a", "b"])
    attempt.frames()
    assert (letters(servers), letters(servers, PENDING)) == ({}, {})
    attempt.end()
    attempt.frames()
    assert letters(servers, PENDING) == {}
    [(name, letter)] = letters(servers).items()
    assert parse_name(name) == KeyedName("q", 0, group_of("boom"), 1, 1, 1, 1)
    assert (letter.session, letter.epoch, letter.partition, letter.reason) == ("q", 0, 0, "ValueError: boom")
    assert an_attempt(servers, 1, 2).run(["a", "boom"]) == [("a", 3)]
    assert [d["k"] for d in events(servers)] == ["boom", "boom"]


def test_of_a_retried_epoch_only_the_attempt_that_counts_leaves_dead_letters(count: Process, servers: Servers) -> None:
    lost = an_attempt(servers, 0, 1)
    lost.send(["boom", "boom"])  # dies without an END
    assert an_attempt(servers, 0, 2).run(["boom"]) == []
    assert [d.attempt for d in letters(servers).values()] == [2]
    assert an_attempt(servers, 0, 3).run(["a", "boom"]) == [("a", 1)]  # the same epoch again, after its END
    assert [(d.attempt, d.row) for d in letters(servers).values()] == [(3, 1)]
    lost.send(["boom"])  # the attempt lives on as a zombie
    lost.end()
    lost.frames()
    assert [d.attempt for d in letters(servers).values()] == [3]


def test_a_restarted_query_with_another_number_of_partitions_leaves_each_dead_letter_once(count: Process, servers: Servers) -> None:
    # Given: two partitions, the second with the groups of "boom".
    mine = [group_of("boom")]
    rest = [g for g in GROUPS if g not in mine]
    for partition, keys, groups in ((0, [], rest), (1, ["boom"], mine)):
        attempt = an_attempt(servers, 0, partition + 1, partition=partition)
        if keys:
            attempt.send(keys)
        attempt.end(groups)
        attempt.frames()
    # When: the next run replays the epoch with one partition.
    assert an_attempt(servers, 0, 1, run=2).run(["boom", "a"]) == [("a", 1)]
    # Then
    assert [(d.partition, d.epoch) for d in letters(servers).values()] == [(0, 0)]


def test_a_void_end_leaves_no_dead_letters_but_those_of_the_attempt_before_it(count: Process, servers: Servers) -> None:
    an_attempt(servers, 0, 1).run(["boom"])
    cut = an_attempt(servers, 0, 2)
    cut.send(["boom", "boom"])
    cut.end(void=True)
    cut.frames()
    assert [d.attempt for d in letters(servers).values()] == [1]
    fresh = an_attempt(servers, 1, 3)
    fresh.send(["boom"])
    fresh.end(void=True)
    fresh.frames()
    assert [d.epoch for d in letters(servers).values()] == [0]


def test_dead_letters_of_an_attempt_that_a_checkpoint_covered_wait_for_its_end(start: Start, servers: Servers) -> None:
    counter(start, retained_bytes=4)  # each frame is followed by a checkpoint
    lost = an_attempt(servers, 0, 1)
    lost.send(["boom"])
    lost.frames()
    wait_until(lambda: len(letters(servers, PENDING)) == 1, 10, "checkpoint")
    assert letters(servers) == {}
    attempt = an_attempt(servers, 0, 2)
    attempt.send(["boom", "a"])
    attempt.frames()
    wait_until(lambda: len(letters(servers, PENDING)) == 2, 10, "checkpoint")
    attempt.end()
    attempt.frames()
    assert letters(servers, PENDING) == {}
    assert [d.attempt for d in letters(servers).values()] == [2]


def test_unfinished_dead_letters_of_an_epoch_that_is_over_go(start: Start, servers: Servers) -> None:
    counter(start, retained_bytes=4)
    an_attempt(servers, 0, 1).run(["a"])
    lost = an_attempt(servers, 0, 2)
    lost.send(["boom"])
    lost.frames()
    wait_until(lambda: len(letters(servers, PENDING)) == 1, 10, "checkpoint")
    an_attempt(servers, 1, 3).run(["a"])
    assert (letters(servers), letters(servers, PENDING)) == ({}, {})


@pytest.mark.parametrize(
    ("module_import", "target", "before"),
    [
        ("from udo_runtime.durable.sessions import Durable", "Durable.save", True),  # the letters are in memory only
        ("from udo_runtime.durable.sessions import Durable", "Durable.save", False),  # durable, END not answered
        ("from udo_runtime.drivers.keyed_owner import KeyedOwner", "KeyedOwner.send", True),  # no frame answered
        ("from udo_runtime.drivers.keyed_owner import KeyedOwner", "KeyedOwner.send", False),  # frames answered, no checkpoint
    ],
)
def test_a_keyed_process_killed_at_any_step_leaves_each_dead_letter_once(
    start: Start, servers: Servers, tmp_path: Path, module_import: str, target: str, before: bool
) -> None:
    # Only when there is something to send or to save.
    first = counter(start, kills(tmp_path / "died", module_import, target, "args[0]", before=before) + COUNT)
    attempt = an_attempt(servers, 0, 1)
    attempt.send(["a", "boom", "b"])
    attempt.send(["boom", "a"])
    attempt.end()
    assert first.process.wait(bound(20)) == -signal.SIGKILL
    counter(start)
    assert attempt.answers() == [("a", 1), ("b", 1), ("a", 2)]
    assert [(d.number, d.row) for d in sorted(letters(servers).values(), key=lambda d: d.number)] == [(1, 1), (2, 0)]
    assert letters(servers, PENDING) == {}


def test_timers_that_fail_become_dead_letters_of_key_and_time(start: Start, servers: Servers) -> None:
    counter(start, TIMERS, time_column="t")
    assert an_attempt(servers, 0, 1).run(["a", "late", "boom"], 0) == []
    assert an_attempt(servers, 1, 2).run(["b"], 20) == []
    assert an_attempt(servers, 2, 3).run([], 20) == [("a", 1)]
    by_kind = {d.timer: d for d in letters(servers).values()}
    assert json.loads(by_kind[True].event) == {"key": "late", "at": "2020-01-01 00:00:10+00:00"}
    assert (by_kind[True].epoch, by_kind[True].reason, by_kind[True].arrow) == (2, "on_timer: ValueError: too late", b"")
    assert json.loads(by_kind[False].event)["k"] == "boom"


def test_a_bad_event_does_not_move_the_watermark(start: Start, servers: Servers) -> None:
    counter(start, TIMERS, time_column="t")
    assert an_attempt(servers, 0, 1).run(["a"], 0) == []
    assert an_attempt(servers, 1, 2).run(["boom"], 1000) == []
    assert an_attempt(servers, 2, 3).run([], 0) == []  # a watermark from the bad event would have fired a's timer


def test_above_the_limit_a_keyed_attempt_fails_and_leaves_nothing(start: Start, servers: Servers) -> None:
    counter(start, dead_letters=1)
    attempt = an_attempt(servers, 0, 1)
    attempt.send(["a", "boom", "boom"])
    attempt.end()
    failed, end = attempt.frames()
    assert (failed.header.kind, end.header.kind) == (ERROR, SKIPPED)
    assert "may keep 1" in failed.header.failure.message
    assert an_attempt(servers, 0, 2).run(["a", "boom"]) == [("a", 1)]
    assert len(letters(servers)) == 1


@pytest.mark.parametrize("commit", ["epoch", "frame"])
def test_an_update_in_the_middle_of_an_epoch_leaves_each_dead_letter_once(start: Start, servers: Servers, commit: str) -> None:
    counter(start, commit=commit)
    assert an_attempt(servers, 0, 1).run(["a", "boom"]) == [("a", 1)]
    follower = counter(start, commit=commit, follow="owner")
    assert an_attempt(servers, 1, 2).run(["boom"]) == []
    attempt = an_attempt(servers, 2, 3)
    attempt.send(["boom", "a"])
    assert attempt.answers() == [("a", 2)]
    slot.promote(servers.state(), servers.queue(), P, follower.token)
    attempt.send(["boom"])
    attempt.end()
    assert attempt.answers() == []
    assert sorted((d.epoch, d.number, d.row) for d in letters(servers).values()) == [(0, 1, 1), (1, 1, 0), (2, 1, 0), (2, 2, 0)]
    assert letters(servers, PENDING) == {}


def test_with_a_checkpoint_for_each_frame_letters_count_and_are_sent_again_as_ever(start: Start, servers: Servers) -> None:
    counter(start, commit="frame")
    assert an_attempt(servers, 0, 1).run(["a", "boom"]) == [("a", 1)]
    counter(start, MENDED, commit="frame")
    mark(servers)
    attempts = [an_attempt(servers, 1, partition + 2, partition=partition) for partition in GROUPS]
    for partition, attempt in enumerate(attempts):  # one checkpoint may cover all their ENDs
        attempt.end([partition])
    assert [a for attempt in attempts for a in attempt.answers()] == [("boom", 1)]
    assert an_attempt(servers, 2, 9).run(["boom"]) == [("boom", 2)]
    assert (letters(servers), marks(servers)) == ({}, [])


def test_a_batch_jobs_dead_letters_outlive_its_state(count: Process, servers: Servers) -> None:
    assert an_attempt(servers, 0, 1, session="job", job=True).run(["a", "boom"]) == [("a", 1)]
    assert servers.state().call("HLEN", f"{P}sessions") == 0
    assert [d.session for d in letters(servers).values()] == ["job"]
    assert an_attempt(servers, 0, 2, session="job", job=True).run(["a", "boom"]) == [("a", 1)]  # its stage ran again
    assert [d.attempt for d in letters(servers).values()] == [2]
    assert checkpoints.load_checkpoint(servers.state(), P).seq > 0


# -- sent again ----------------------------------------------------------------------------------------------------------

# Does not fail on "boom". It runs as the second process, which is a later version.
MENDED = COUNT.replace('event["k"] == "boom"', "False")


def test_letters_sent_again_take_part_in_the_next_epoch_and_go_with_the_one_after_it(start: Start, servers: Servers) -> None:
    counter(start)
    assert an_attempt(servers, 0, 1).run(["a", "boom", "boom"]) == [("a", 1)]
    counter(start, MENDED)
    mark(servers)
    # They are replayed only in a later epoch: another attempt at their own epoch makes them anew, or none.
    assert an_attempt(servers, 1, 2).run(["a"]) == [("a", 2), ("boom", 1), ("boom", 2)]
    assert (len(letters(servers)), marks(servers)) == (2, ["1", "1"])
    assert an_attempt(servers, 2, 3).run(["boom"]) == [("boom", 3)]
    assert (letters(servers), marks(servers)) == ({}, [])


def test_another_attempt_at_the_epoch_sees_the_same_letters_again_and_no_others(start: Start, servers: Servers) -> None:
    counter(start)
    assert an_attempt(servers, 0, 1).run(["boom"]) == []
    assert an_attempt(servers, 1, 2).run(["boom", "a"]) == [("a", 1)]
    [first, second] = sorted(letters(servers))
    counter(start, MENDED)
    state = servers.state()
    state.call("HSET", f"{P}{REPLAY}", first, "")
    lost = an_attempt(servers, 2, 3)
    lost.send(["a"])  # dies without an END
    assert an_attempt(servers, 2, 4).run(["a"]) == [("a", 2), ("boom", 1)]
    state.call("HSET", f"{P}{REPLAY}", second, "")
    assert an_attempt(servers, 2, 5).run(["a"]) == [("a", 2), ("boom", 1)]
    assert an_attempt(servers, 2, 1, run=2).run(["a"]) == [("a", 2), ("boom", 1)]
    assert an_attempt(servers, 3, 2, run=2).run([]) == [("boom", 2)]
    assert an_attempt(servers, 4, 3, run=2).run(["boom"]) == [("boom", 3)]
    assert (letters(servers), marks(servers)) == ({}, [])


def test_a_letter_that_fails_again_stays_with_the_new_reason_and_leaves_no_trace(start: Start, servers: Servers) -> None:
    counter(start)
    assert an_attempt(servers, 0, 1).run(["boom"]) == []
    counter(start, COUNT.replace('ValueError("boom")', 'OSError("still")'))
    mark(servers)
    assert an_attempt(servers, 1, 2).run(["a"]) == [("a", 1)]
    [letter] = letters(servers).values()
    assert (letter.reason, letter.replays, letter.epoch, marks(servers)) == ("OSError: still", 1, 0, [])
    counter(start, MENDED)
    assert an_attempt(servers, 2, 3).run(["boom"]) == [("boom", 1)]


def test_each_partition_processes_the_letters_of_its_own_groups(start: Start, servers: Servers) -> None:
    counter(start)
    assert an_attempt(servers, 0, 1).run(["boom"]) == []
    counter(start, MENDED)
    mark(servers)
    mine = [group_of("boom")]
    rest = [g for g in GROUPS if g not in mine]
    found = []
    for partition, groups in ((0, rest), (1, mine)):  # the partition without the letter's group ENDs first
        attempt = an_attempt(servers, 1, partition + 2, partition=partition)
        attempt.end(groups)
        found.append(attempt.answers())
    assert found == [[], [("boom", 1)]]


def test_a_void_end_processes_no_letter(start: Start, servers: Servers) -> None:
    counter(start)
    assert an_attempt(servers, 0, 1).run(["boom"]) == []
    counter(start, MENDED)
    mark(servers)
    cut = an_attempt(servers, 1, 2)
    cut.end(void=True)
    assert cut.answers() == []
    assert an_attempt(servers, 2, 3).run([]) == [("boom", 1)]


@pytest.mark.parametrize("before", [True, False])
def test_a_process_killed_around_the_checkpoint_of_a_replay_sends_each_letter_once(
    start: Start, servers: Servers, tmp_path: Path, before: bool
) -> None:
    counter(start)
    assert an_attempt(servers, 0, 1).run(["boom"]) == []
    patch = kills(tmp_path / "died", "from udo_runtime.durable.sessions import Durable", "Durable.save", before=before)
    dies = counter(start, patch + MENDED)
    mark(servers)
    attempt = an_attempt(servers, 1, 2)
    attempt.send(["a"])
    attempt.end()
    assert dies.process.wait(bound(20)) == -signal.SIGKILL
    counter(start, MENDED)
    assert attempt.answers() == [("a", 1), ("boom", 1)]
    assert an_attempt(servers, 2, 3).run(["boom"]) == [("boom", 2)]
    assert (letters(servers), marks(servers)) == ({}, [])


def test_a_letter_sent_again_sets_timers_and_moves_the_watermark_as_any_event(start: Start, servers: Servers) -> None:
    counter(start, TIMERS, time_column="t")
    assert an_attempt(servers, 0, 1).run(["boom"], 100) == []
    assert an_attempt(servers, 1, 2).run(["a"], 0) == []
    counter(start, TIMERS.replace('event["k"] == "boom"', "False"), time_column="t")
    mark(servers)
    assert an_attempt(servers, 2, 3).run([]) == []
    assert an_attempt(servers, 3, 4).run([], 0) == [("a", 1)]  # the watermark is now at 100 s
    assert an_attempt(servers, 4, 5).run(["a"], 200) == []
    assert an_attempt(servers, 5, 6).run([], 0) == [("boom", 1)]


def test_a_letter_that_is_dropped_while_it_fails_again_stays_dropped(servers: Servers) -> None:
    conn, dropped, kept = servers.state(), KeyedName("q", 0, 1, 1, 0, 1, 0), KeyedName("q", 0, 1, 1, 0, 1, 1)
    conn.call("HSET", P.dead, str(kept), b"old")
    changes = LetterChanges(failed={dropped: b"new", kept: b"new"}, marks={dropped: None, kept: None})
    conn.transaction(Ledger(conn, P).commands(changes))
    assert conn.call("HGETALL", P.dead) == [str(kept).encode(), b"new"]
