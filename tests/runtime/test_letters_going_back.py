"""Dead letters and errors within a rollback window: each event that the former version reprocesses is in its state or a dead letter.

The newer version's answers stand, whatever the former one makes of the same events.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Servers, wait_until
from tests.runtime.conftest import P, Process
from tests.support.attempt import GROUPS, group_of
from tests.support.counters import an_attempt
from tests.support.going_back import kept_keys, update
from tests.support.letters import letters, mark, marks
from tests.support.letters_going_back import crash, former, keys, newer
from tests.support.seeds import seeds
from udo_protocol.queue import slot
from udo_protocol.queue.frame import ERROR, SKIPPED
from udo_protocol.state import rewinding
from udo_protocol.state.dead_letters import PENDING

pytestmark = pytest.mark.long

Start = Callable[..., Process]


def promote(servers: Servers, back: Process) -> Process:
    assert back.report is not None and back.report["ok"], back.report
    slot.promote(servers.state(), servers.queue(), P, back.token)
    return back


def rollback(start: Start, servers: Servers, **more: Any) -> Process:
    return promote(servers, former(start, follow="kept", **more))


def replace(start: Start, servers: Servers) -> None:
    """Replace a dead former version as the node manager does: before its first checkpoint the next one starts from the kept state."""
    if rewinding.kept(servers.state(), P) is None:
        former(start)
    else:
        rollback(start, servers)


@pytest.mark.short
@pytest.mark.parametrize("dies", [False, True])
def test_each_event_is_in_the_state_or_a_dead_letter_of_the_version_that_came_back(start: Start, servers: Servers, dies: bool) -> None:
    former(start)
    assert an_attempt(servers, 0, 0).run(["one", "two", "a"]) == [("two", 1), ("a", 1)]
    update(servers, newer(start))
    assert an_attempt(servers, 1, 1).run(["one", "two", "a"]) == [("one", 1), ("a", 2)]
    assert an_attempt(servers, 2, 2).run(["two", "one"]) == [("one", 2)]
    assert keys(servers) == ["one", "two", "two"]
    back = rollback(start, servers)
    if dies:  # before its first checkpoint: its successor processes everything again
        crash(back)
        replace(start, servers)
    assert an_attempt(servers, 3, 3).run(["two", "one", "a"]) == [("two", 4), ("a", 3)]
    assert keys(servers) == ["one"] * 4
    assert [(d.epoch, d.operator) for d in letters(servers).values() if d.epoch == 0] == [(0, "t@1")]
    assert (letters(servers, PENDING), kept_keys(servers)) == ({}, [])


def test_an_attempt_that_spans_update_and_rollback_leaves_the_letters_of_the_version_that_ends_it(start: Start, servers: Servers) -> None:
    former(start, retained_bytes=4)  # a checkpoint after each frame: its letters are durable as pending
    attempt = an_attempt(servers, 0, 0)
    attempt.send(["one", "two"])
    assert attempt.answers() == [("two", 1)]
    update(servers, newer(start))
    attempt.send(["two", "one"])
    assert attempt.answers() == [("one", 1)]
    rollback(start, servers)
    attempt.send(["two"])
    attempt.end()
    assert attempt.answers() == [("two", 3)]
    assert (keys(servers), letters(servers, PENDING)) == (["one", "one"], {})


def test_letters_that_the_update_found_pending_count_when_the_newer_version_has_ended_their_attempt(start: Start, servers: Servers) -> None:
    former(start, retained_bytes=4)
    attempt = an_attempt(servers, 0, 0)
    attempt.send(["one", "a"])
    assert attempt.answers() == [("a", 1)]
    wait_until(lambda: keys(servers, PENDING) == ["one"], 10, "the checkpoint")
    update(servers, newer(start))
    attempt.end()
    assert attempt.answers() == []
    assert (keys(servers), keys(servers, PENDING)) == (["one"], [])
    rollback(start, servers)
    assert an_attempt(servers, 1, 1).run(["a"]) == [("a", 2)]
    assert (keys(servers), keys(servers, PENDING)) == (["one"], [])


def test_an_attempt_taken_back_within_the_window_leaves_nothing(start: Start, servers: Servers) -> None:
    """After the rollback the letters are those of the retry under the newer version, not those that the update found."""
    former(start)
    an_attempt(servers, 0, 0).run(["one", "a"])
    assert keys(servers) == ["one"]
    update(servers, newer(start))
    assert an_attempt(servers, 0, 1).run(["one", "a"]) == [("one", 1), ("a", 1)]
    assert keys(servers) == []
    rollback(start, servers)
    assert an_attempt(servers, 1, 2).run(["a", "two"]) == [("a", 2), ("two", 1)]
    assert [(d.epoch, d.attempt) for d in letters(servers).values()] == [(0, 1)]


def test_letters_sent_again_within_the_window_are_in_the_state_that_comes_back(start: Start, servers: Servers) -> None:
    former(start, bad="boom")
    an_attempt(servers, 0, 0).run(["boom", "boom", "a"])
    former(start, bad="")  # a corrected version that reads the same state
    mark(servers)
    update(servers, newer(start, bad=""))
    assert an_attempt(servers, 1, 1).run(["a"]) == [("a", 2), ("boom", 1), ("boom", 2)]
    assert an_attempt(servers, 2, 2).run(["boom"]) == [("boom", 3)]
    assert (letters(servers), marks(servers)) == ({}, [])
    rollback(start, servers, bad="")
    assert an_attempt(servers, 3, 3).run(["boom"]) == [("boom", 4)]
    assert (letters(servers), marks(servers)) == ({}, [])


def test_a_letter_sent_again_that_only_the_newer_version_bore_is_a_letter_again(start: Start, servers: Servers) -> None:
    former(start, bad="boom")
    an_attempt(servers, 0, 0).run(["boom", "a"])
    mark(servers)
    update(servers, newer(start, bad=""))
    assert an_attempt(servers, 1, 1).run(["a"]) == [("a", 2), ("boom", 1)]
    assert an_attempt(servers, 2, 2).run(["a"]) == [("a", 3)]
    assert letters(servers) == {}
    rollback(start, servers, bad="boom")
    assert an_attempt(servers, 3, 3).run(["a", "boom"]) == [("a", 4)]
    assert [(d.epoch, d.replays) for d in sorted(letters(servers).values(), key=lambda d: d.epoch)] == [(0, 1), (3, 0)]
    assert marks(servers) == []


def test_a_letter_that_the_newer_version_failed_on_again_and_the_former_bears_is_no_letter(start: Start, servers: Servers) -> None:
    former(start, bad="boom")
    an_attempt(servers, 0, 0).run(["boom", "a"])
    former(start, bad="")
    mark(servers)
    update(servers, newer(start, bad="boom"))
    assert an_attempt(servers, 1, 1).run(["a"]) == [("a", 2)]
    assert [d.replays for d in letters(servers).values()] == [1]
    rollback(start, servers, bad="")
    assert an_attempt(servers, 2, 2).run(["boom"]) == [("boom", 2)]
    assert (letters(servers), marks(servers)) == ({}, [])


def test_a_letter_waiting_for_its_epoch_is_processed_once_by_the_version_that_comes_back(start: Start, servers: Servers) -> None:
    former(start, bad="boom")
    an_attempt(servers, 0, 0).run(["boom", "a"])
    former(start, bad="")
    mark(servers)
    update(servers, newer(start))
    rollback(start, servers, bad="")
    assert an_attempt(servers, 1, 1).run(["a"]) == [("a", 2), ("boom", 1)]
    assert an_attempt(servers, 2, 2).run(["boom"]) == [("boom", 2)]
    assert letters(servers) == {}


@pytest.mark.short
@pytest.mark.parametrize("policy", ["fail", "dead-letter"])
def test_a_version_that_fails_on_what_was_answered_and_cannot_put_it_aside_does_not_come_back(
    start: Start, servers: Servers, policy: str
) -> None:
    """Under `dead-letter` their limit is reached. There are two partitions, and the other one completes the epoch."""
    former(start, bad="x", policy=policy, dead_letters=1)
    an_attempt(servers, 0, 0).run(["a"])
    update(servers, newer(start, policy=policy))
    mine = [group_of("boom")]
    for partition, sent, groups in ((1, ["boom", "boom"], mine), (0, ["b"], [g for g in GROUPS if g not in mine])):
        attempt = an_attempt(servers, 1, partition + 1, partition=partition)
        attempt.send(sent)
        attempt.end(groups)
        assert len(attempt.answers()) == len(sent)
    report = former(start, bad="boom", policy=policy, follow="kept", dead_letters=1).report
    assert report is not None and not report["ok"]
    assert "t@3 fails on events that have been answered since the update, in epoch 1 of session q" in report["error"]["message"]
    assert "not this one" in report["error"]["message"]
    assert ("op.py" in report["error"]["traceback"]) == (policy == "fail" or bool(report["error"]["traceback"]))
    # Nothing has changed: the newer version goes on, and a former version that does not fail on the event may still come back.
    assert an_attempt(servers, 2, 3).run(["boom"]) == [("boom", 3)]
    rollback(start, servers, bad="", policy=policy)
    assert an_attempt(servers, 3, 4).run(["boom", "b"]) == [("boom", 4), ("b", 2)]


def test_an_attempt_that_both_versions_failed_does_not_hinder_a_rollback(start: Start, servers: Servers) -> None:
    former(start, bad="boom", policy="fail")
    an_attempt(servers, 0, 0).run(["a"])
    update(servers, newer(start, bad="boom", policy="fail"))
    lost = an_attempt(servers, 1, 1)
    lost.send(["a", "boom"])
    lost.end()  # already sent when the error was seen
    assert [f.header.kind for f in lost.frames()] == [ERROR, SKIPPED]
    crash(former(start, bad="boom", policy="fail", follow="kept"))  # no checkpoint yet records that the newer version failed
    assert an_attempt(servers, 1, 2).run(["a"]) == [("a", 2)]  # the source was corrected
    rollback(start, servers, bad="boom", policy="fail")
    assert an_attempt(servers, 2, 3).run(["a"]) == [("a", 3)]


def test_the_version_that_comes_back_completes_what_the_newer_one_failed_on(start: Start, servers: Servers) -> None:
    former(start, bad="", policy="fail")
    an_attempt(servers, 0, 0).run(["a"])
    update(servers, newer(start, bad="boom", policy="fail"))
    lost = an_attempt(servers, 1, 1)
    lost.send(["a", "boom"])
    lost.end()
    assert [f.header.kind for f in lost.frames()] == [ERROR, SKIPPED]
    rollback(start, servers, bad="", policy="fail")
    assert an_attempt(servers, 1, 2).run(["a", "boom"]) == [("a", 2), ("boom", 1)]


def test_the_input_stays_until_the_log_belongs_to_the_version_that_goes_back(start: Start, servers: Servers) -> None:
    """The newer version trims the log up to a checkpoint that it made just before the rollback."""
    former(start)
    an_attempt(servers, 0, 0).run(["a"])
    serving = newer(start)
    update(servers, serving)
    an_attempt(servers, 1, 1).run(["a"])
    back = former(start, follow="kept")
    state, queue = servers.state(), servers.queue()

    def between() -> None:
        queue.call("FCALL", "udo_trim", 1, P.prefix, serving.token, slot.slot_stats(queue, P).emitted, 1 << 20)

    slot.promote(state, queue, P, back.token, between)
    crash(back)
    replace(start, servers)
    assert an_attempt(servers, 2, 2).run(["a"]) == [("a", 3)]


def test_given_up_no_letters_are_kept(start: Start, servers: Servers) -> None:
    former(start)
    an_attempt(servers, 0, 0).run(["one"])
    mark(servers)
    update(servers, newer(start))
    kept = P.savepoint(rewinding.SAVEPOINT)
    assert sorted(k for k in map(bytes, kept_keys(servers)) if k.startswith(kept.prefix.encode()))[:1] == [kept.dead.encode()]
    assert servers.state().call("HLEN", kept.replay) == 1
    rewinding.forget(servers.state(), servers.queue(), P)
    assert kept_keys(servers) == []
    assert [json.loads(d.event)["k"] for d in letters(servers).values()] == ["one"]


@pytest.mark.parametrize("seed", seeds(4))
def test_whatever_happens_each_event_is_in_the_state_or_a_dead_letter_once(start: Start, servers: Servers, seed: int) -> None:
    """Updates, rollbacks, kills and retries come at any time; each version fails on another key."""
    dice, sent = random.Random(seed), Counter[str]()
    small: dict[str, Any] = {"retained_bytes": 200_000} if seed % 2 else {}
    serving, is_newer, attempts = former(start, **small), False, 0
    for epoch in range(8):
        for last in (False, True) if dice.random() < 0.4 else (True,):
            attempts += 1
            attempt, mine = an_attempt(servers, epoch, attempts), Counter[str]()
            for _ in range(dice.randint(1, 3)):
                some = dice.choices(["one", "two", "a", "b"], k=dice.randint(1, 4))
                attempt.send(some)
                mine.update(some)
                what = dice.choice(["nothing", "wait", "change", "kill"])
                if what == "wait":
                    attempt.frames()
                elif what == "change":
                    if is_newer:
                        serving = rollback(start, servers, **small)
                    else:
                        serving = newer(start, **small)
                        update(servers, serving)
                    is_newer = not is_newer
                elif what == "kill":
                    crash(serving)
                    serving = newer(start, follow="", **small) if is_newer else former(start, **small)
            if last or dice.random() < 0.3:
                attempt.end()
            attempt.frames()
        sent += mine
    crash(serving)
    newer(start, bad="", follow="") if is_newer else former(start, bad="")
    counted = dict(an_attempt(servers, 8, 100).run(["one", "two", "a", "b"]))
    put_aside = Counter(keys(servers))
    assert {k: counted[k] - 1 + put_aside[k] for k in counted} == {k: sent[k] for k in counted}
    assert letters(servers, PENDING) == {}
