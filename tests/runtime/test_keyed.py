"""A keyed operator as a real process: running counts per key survive kills, retries, replays and new runs."""

from __future__ import annotations

import math

import pyarrow as pa

from tests.conftest import Servers, bound
from tests.runtime.conftest import P
from tests.support.attempt import group_of
from tests.support.counters import COUNT, COUNTS, EVENTS, TIMERS, Start, an_attempt, counter
from udo_protocol.formats.schema import GROUP_COLUMN, to_ipc
from udo_protocol.queue import slot
from udo_protocol.queue.frame import ANSWER, DATA, ERROR, SKIPPED, STALE
from udo_protocol.state import checkpoints

COUNT_LARGE = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.state["blob"] = "x" * 100_000
        yield {"k": str(event["k"]), "n": n}
"""
RENEWED = """
import datetime as dt
from udo_runtime import Operator
class Renewed(Operator):
    def process(self, event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.timer(event["t"] + dt.timedelta(seconds=10))
        ctx.expire(event["t"] + dt.timedelta(seconds=10))
    def on_timer(self, key, at, ctx):
        yield {"k": key, "n": ctx.state.get("n", 0) * 100 + at.second}
"""
SLOW = """
import time
from pathlib import Path
from udo_runtime import Operator
class Slow(Operator):
    def process(self, event, ctx):
        time.sleep(0.01)
        while event["k"] == "hold" and not Path("go").exists(): time.sleep(0.01)
        yield {"k": event["k"], "n": 1}
"""


def test_counts_go_on_over_epochs_and_a_retried_epoch_counts_once(start: Start, servers: Servers) -> None:
    counter(start)
    assert an_attempt(servers, 0, 1).run(["a", "b", "a"]) == [("a", 1), ("b", 1), ("a", 2)]
    an_attempt(servers, 1, 2).send(["a"])  # dies without an END
    assert an_attempt(servers, 1, 3).run(["a"]) == [("a", 3)]
    assert an_attempt(servers, 1, 4).run(["a"]) == [("a", 3)]
    assert an_attempt(servers, 2, 5).run(["a", "b"]) == [("a", 4), ("b", 2)]


def test_a_killed_instance_loses_and_repeats_nothing(start: Start, servers: Servers) -> None:
    first = counter(start)
    an_attempt(servers, 0, 1).run(["a", "b"])
    attempt = an_attempt(servers, 1, 2)
    attempt.send(["a"])
    assert attempt.answers() == [("a", 2)]
    first.process.kill()
    first.process.wait()
    attempt.send(["a", "b"])
    counter(start)
    attempt.end()
    assert attempt.answers() == [("a", 3), ("b", 2)]


def test_nan_is_one_key_also_in_a_group_that_is_too_large_to_come_from_the_server_in_one_piece(start: Start, servers: Servers) -> None:
    events = pa.schema([("k", pa.float64()), ("t", pa.timestamp("us"))])
    sent = events.append(pa.field(GROUP_COLUMN, pa.int32()))
    keyed = {"columns": ["k"]}

    def counted(epoch: int) -> list[tuple[str, int]]:
        attempt = an_attempt(servers, epoch, epoch + 1)
        attempt.lane.open(to_ipc(sent))
        batch = pa.record_batch(
            [pa.array([math.nan, 1.5]), pa.array([None] * 2, pa.timestamp("us")), pa.array([0, 0], pa.int32())], schema=sent
        )
        attempt.push(DATA, batch)
        attempt.end()
        return attempt.answers()

    first = start(COUNT_LARGE, "op:Count", schemas=(events, COUNTS), keyed=keyed)
    assert counted(0) == [("nan", 1), ("1.5", 1)]
    first.process.kill()
    first.process.wait()
    start(COUNT_LARGE, "op:Count", schemas=(events, COUNTS), keyed=keyed)
    assert counted(1) == [("nan", 2), ("1.5", 2)]


def test_an_answer_that_was_durable_but_not_emitted_is_emitted_by_the_next_instance(start: Start, servers: Servers) -> None:
    """The instance dies between its checkpoint at END and its answer."""
    first = counter(start)
    an_attempt(servers, 0, 1).run(["a"])
    attempt = an_attempt(servers, 1, 2)
    attempt.send(["a"])
    attempt.frames()
    queue, state = servers.queue(), servers.state()
    queue.call("SET", f"{P}owner", 10_000)  # from now on its emits are refused, its checkpoints are not
    attempt.end()
    assert first.process.wait(bound(10)) == 0
    assert len(checkpoints.load_checkpoint(state, P).riding) in (0, 1)
    queue.call("SET", f"{P}owner", 1)
    counter(start)
    assert [f.header.number for f in attempt.frames()] == [2]
    assert an_attempt(servers, 2, 3).run(["a"]) == [("a", 3)]


def test_an_answer_does_not_wait_for_the_frames_that_were_read_with_it(start: Start, servers: Servers) -> None:
    """Otherwise a promotion would find many unanswered frames, and the new version would begin with all of them."""
    instance = counter(start, SLOW, "op:Slow", promote=False)
    attempt = an_attempt(servers, 0, 1)
    for keys in (["a"], ["hold"], ["b"]):
        attempt.send(keys)
    slot.promote(servers.state(), servers.queue(), P, instance.token)
    first = attempt.lane.collect(10_000)
    (instance.log.parent / "go").touch()
    assert [f.header.number for f in first] == [1]
    attempt.end()
    while len(first) < 4:
        assert (more := attempt.lane.collect(10_000))
        first += more
    assert [f.header.number for f in first] == [1, 2, 3, 4]


def test_sessions_do_not_see_each_other(start: Start, servers: Servers) -> None:
    counter(start)
    assert an_attempt(servers, 0, 1, session="one").run(["a"]) == [("a", 1)]
    assert an_attempt(servers, 0, 1, session="two").run(["a"]) == [("a", 1)]
    assert an_attempt(servers, 1, 2, session="one").run(["a"]) == [("a", 2)]


def test_a_new_run_replays_the_last_epoch_and_the_old_one_is_stale(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 1).run(["a"])
    zombie = an_attempt(servers, 1, 2)
    zombie.send(["a"])
    zombie.frames()
    assert an_attempt(servers, 1, 1, run=2).run(["a", "a"]) == [("a", 2), ("a", 3)]
    zombie.end()
    assert [f.header.kind for f in zombie.frames()] == [STALE]
    assert an_attempt(servers, 2, 2, run=2).run(["a"]) == [("a", 4)]


def test_missing_epochs_and_two_producers_are_named(start: Start, servers: Servers) -> None:
    counter(start)
    early = an_attempt(servers, 3, 1)
    early.send(["a"])
    [frame] = early.frames()
    assert (frame.header.kind, frame.header.failure.code) == (ERROR, "state_lost")
    assert an_attempt(servers, 3, 2, session="new", start_empty=True).run(["a"]) == [("a", 1)]
    an_attempt(servers, 0, 1).run(["a"])
    other = an_attempt(servers, 0, 2, partition=1)
    other.send(["a"])
    assert other.frames()[0].header.failure.code == "two_producers"


def test_an_attempt_that_raised_leaves_no_trace(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 1).run(["a"])
    bad = an_attempt(servers, 1, 2)
    bad.send(["a", "boom"])
    bad.send(["a"])
    bad.end()
    assert [f.header.kind for f in bad.frames()] == [ERROR, SKIPPED, SKIPPED]
    assert an_attempt(servers, 1, 3).run(["a"]) == [("a", 2)]


def test_an_epoch_cut_short_leaves_no_trace(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 1).run(["a"])
    cut = an_attempt(servers, 1, 2)
    cut.send(["a"])
    cut.end(void=True)
    cut.answers()
    assert an_attempt(servers, 2, 3).run(["a"]) == [("a", 2)]


def test_a_batch_jobs_state_starts_empty_and_is_dropped_at_its_end(start: Start, servers: Servers) -> None:
    counter(start)
    for attempt in (1, 2):
        assert an_attempt(servers, 0, attempt, session="job", job=True).run(["a", "a"]) == [("a", 1), ("a", 2)]
    kept = [k for k in servers.state().call("KEYS", f"{P}*:job*")]
    assert kept == []


def test_timers_fire_at_end_with_the_sessions_own_watermark_and_expired_state_is_gone(start: Start, servers: Servers) -> None:
    counter(start, TIMERS, "op:Quiet", time_column="t", delay_us=2_000_000)
    assert an_attempt(servers, 0, 1).run(["a", "x"], 0) == []
    assert an_attempt(servers, 1, 2).run(["b"], 11) == []  # the watermark of epoch 1: 0 - 2 s
    assert an_attempt(servers, 2, 3).run(["b"], 12) == []  # 9 s: x has expired, a's timer at 10 s is not due
    assert an_attempt(servers, 3, 4).run(["c"], 13) == [("a", 1)]  # 10 s
    assert an_attempt(servers, 3, 5).run(["c"], 13) == [("a", 1)]  # the same on a retry
    assert an_attempt(servers, 4, 6).run(["c"], 30) == []
    assert an_attempt(servers, 5, 7).run(["c"], 31) == [("b", 2), ("c", 3)]


def test_timers_of_a_batch_job_do_not_fire(start: Start, servers: Servers) -> None:
    """As with Spark's transformWithState: timers still waiting at the end of a batch job are dropped with its state."""
    counter(start, TIMERS, "op:Quiet", time_column="t")
    job = an_attempt(servers, 0, 1, session="job", job=True)
    job.send(["a"], 0)
    job.send(["b"], 100)
    job.end()
    assert job.answers() == []
    assert servers.state().call("KEYS", f"{P}*:job*") == []


def test_an_attempt_whose_epoch_another_one_has_followed_is_stale_and_fires_no_timer(start: Start, servers: Servers) -> None:
    """A stage ran again, the epoch was committed without it, and it ENDs after the next epoch has begun elsewhere."""
    counter(start, TIMERS, "op:Quiet", time_column="t")
    for attempt, key, partition in ((1, "a", 0), (2, "b", 1)):
        first = an_attempt(servers, 0, attempt, partition)
        first.send([key], 20 * partition)
        first.end([group_of(key)])
        assert first.answers() == []
    again = an_attempt(servers, 0, 3, partition=0)
    again.send(["a"], 0)
    assert again.answers() == []
    other = an_attempt(servers, 1, 4, partition=1)
    other.send(["b"], 21)
    assert other.answers() == []
    again.end([group_of("a")])
    assert [f.header.kind for f in again.frames()] == [STALE]
    last = an_attempt(servers, 1, 5, partition=0)
    last.send(["a"], 22)
    last.end([group_of("a")])
    assert last.answers() == [("a", 2)]


def test_a_renewed_expiry_calls_no_timer_and_a_timer_of_the_same_time_still_sees_the_state(start: Start, servers: Servers) -> None:
    counter(start, RENEWED, "op:Renewed", time_column="t")
    assert an_attempt(servers, 0, 1).run(["a"], 0) == []
    assert an_attempt(servers, 1, 2).run(["a"], 3) == []
    assert an_attempt(servers, 2, 3).run(["b"], 15) == []
    assert an_attempt(servers, 3, 4).run(["b"], 15) == [("a", 210), ("a", 213)]
    assert an_attempt(servers, 4, 5).run(["a"], 16) == []
    assert an_attempt(servers, 5, 6).run(["b"], 40) == []
    assert sorted(an_attempt(servers, 6, 7).run(["c"], 40)) == [("a", 126), ("b", 325)]


def test_state_that_cannot_be_stored_fails_its_own_attempt_and_no_other(start: Start, servers: Servers) -> None:
    counter(start, COUNT.replace('if event["k"] == "boom": raise ValueError("boom")', 'if event["k"] == "boom": ctx.state["s"] = {1}'))
    bad, other = an_attempt(servers, 0, 1), an_attempt(servers, 0, 1, session="other")
    bad.send(["a", "boom"])
    other.send(["a"])
    other.end()  # the checkpoint at its END meets the open state of `bad`
    assert other.answers() == [("a", 1)]
    bad.end()
    assert [f.header.kind for f in bad.frames()] == [ANSWER, SKIPPED]
    assert an_attempt(servers, 0, 2).run(["a"]) == [("a", 1)]
    alone = an_attempt(servers, 1, 3)
    alone.send(["a", "boom"])
    alone.end()
    assert "state holds a set" in alone.frames()[-1].header.failure.message
    assert an_attempt(servers, 1, 4).run(["a"]) == [("a", 2)]


def test_state_above_its_bound_names_session_and_largest_keys(start: Start, servers: Servers) -> None:
    counter(start, state_bytes=40)
    attempt = an_attempt(servers, 0, 1)
    attempt.send([f"key-{i}" for i in range(20)])
    attempt.end()
    failure = attempt.frames()[-1].header.failure
    assert "session q" in failure.message
    assert "Largest keys: 'key-9' (" in failure.message


def test_a_long_epoch_is_checkpointed_before_the_log_is_full(start: Start, servers: Servers) -> None:
    start(COUNT, "op:Count", schemas=(EVENTS, COUNTS), keyed={"columns": ["k"]}, retained_bytes=8_000)
    attempt = an_attempt(servers, 0, 1)
    for i in range(50):
        attempt.send(["a"] * 20)
        assert attempt.answers()[-1] == ("a", 20 * (i + 1))
    assert slot.slot_stats(servers.queue(), P).retained_bytes < 8_000
    retry = an_attempt(servers, 0, 2)
    assert retry.run(["a"]) == [("a", 1)]


def test_a_function_of_batches_cannot_be_keyed(start: Start) -> None:
    p = start("def flag(batch): return None", "op:flag", schemas=(EVENTS, COUNTS), keyed={"columns": ["k"]})
    assert p.report is not None
    assert "expected an Operator class with process" in p.report["error"]["message"]
