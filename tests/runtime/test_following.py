"""When a follower is promoted it has the owner's state in memory as the owner left it, whatever it tried meanwhile."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from threading import Thread

import pytest
from udo_runtime.durable import standby
from udo_runtime.durable.standby import StandbyState, changelog_entry

from tests.conftest import Servers, bound, wait_until
from tests.runtime.conftest import P, Process
from tests.support.attempt import group_of
from tests.support.counters import COUNTS, EVENTS, TIMERS, an_attempt
from tests.support.seeds import seeds
from tests.support.standbys import CENTS, STEP, cents, counter, promote
from udo_protocol.errors import Fenced, SchemaError
from udo_protocol.queue import slot
from udo_protocol.queue.connection import Connection
from udo_protocol.state import changelog, checkpoints, pieces, turns

Start = Callable[..., Process]


def left_behind(state: Connection) -> list[bytes]:
    kinds = (b"changelog", b"logged", b"readers", b"reading")
    return [k for k in state.call("KEYS", f"{P}*") if bytes(k).split(b":")[3] in kinds]


def test_a_follower_goes_on_where_the_owner_was(start: Start, servers: Servers) -> None:
    counter(start)
    assert an_attempt(servers, 0, 1).run(["a", "b", "a"]) == [("a", 1), ("b", 1), ("a", 2)]
    follower = counter(start, follow="owner")
    assert follower.report is not None and follower.report["state_bytes"] > 0
    assert an_attempt(servers, 1, 2).run(["a", "c"]) == [("a", 3), ("c", 1)]
    promote(servers, follower)
    assert an_attempt(servers, 2, 3).run(["a", "b", "c"]) == [("a", 4), ("b", 2), ("c", 2)]
    assert left_behind(servers.state()) == []


def test_what_the_owner_answered_since_its_checkpoint_is_there_too(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 1).run(["a"])
    follower = counter(start, follow="owner")
    attempt = an_attempt(servers, 1, 2)
    attempt.send(["a", "b"])
    assert attempt.answers() == [("a", 2), ("b", 1)]
    promote(servers, follower)
    attempt.send(["a", "b"])
    attempt.end()
    assert attempt.answers() == [("a", 3), ("b", 2)]


def test_the_state_of_ended_epochs_is_what_the_version_made_of_it_that_answered(start: Start, servers: Servers) -> None:
    counter(start)
    follower = counter(start, step=10, follow="owner")
    for epoch in range(5):
        assert an_attempt(servers, epoch, epoch).run(["a"]) == [("a", epoch + 1)]
    promote(servers, follower)
    assert an_attempt(servers, 5, 5).run(["a"]) == [("a", 15)]


def test_an_answer_that_the_new_version_could_not_give_fails_nothing_that_was_answered_before(start: Start, servers: Servers) -> None:
    """A follower's tentative answers go nowhere: they are not even made."""
    counter(start)
    attempt = an_attempt(servers, 0, 1)
    attempt.send(["a", "b"])
    assert attempt.answers() == [("a", 1), ("b", 1)]
    odd = STEP.format(step=1).replace('"n": n', '"n": n if event["k"] != "b" else "text"')
    follower = start(odd, "op:Count", schemas=(EVENTS, COUNTS), keyed={"columns": ["k"]}, follow="owner", promote=False)
    promote(servers, follower)
    attempt.send(["a"])
    attempt.end()
    assert attempt.answers() == [("a", 2)]
    failing = an_attempt(servers, 1, 2)
    failing.send(["b"])
    assert [f.header.failure.code for f in failing.frames()] == [SchemaError.code]


def test_an_attempt_that_was_taken_back_meanwhile_counts_once(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 1).run(["a"])
    follower = counter(start, follow="owner")
    dead = an_attempt(servers, 1, 2)
    dead.send(["a", "z"])  # never ENDs
    dead.answers()
    assert an_attempt(servers, 1, 3).run(["a"]) == [("a", 2)]
    promote(servers, follower)
    assert an_attempt(servers, 1, 4).run(["a"]) == [("a", 2)]
    assert an_attempt(servers, 2, 5).run(["a", "z"]) == [("a", 3), ("z", 1)]


def test_the_owner_says_when_an_epoch_ends_and_when_the_next_one_has_begun(start: Start, servers: Servers) -> None:
    queue, state = servers.queue(), servers.state()
    counter(start)

    def turning() -> bool:
        return bool(queue.call("EXISTS", f"{P}turning"))

    for epoch in range(3):
        attempt = an_attempt(servers, epoch, epoch)
        attempt.send(["a"])
        attempt.answers()
        wait_until(lambda: not turning(), 10, "the epoch to have begun")
        state.call("CLIENT", "PAUSE", 300, "ALL")  # a slow disk
        attempt.end()
        wait_until(turning, 10, "the epoch to end")
        attempt.answers()
    wait_until(lambda: not turning(), 10, "silence: no other epoch comes")


def test_a_promotion_waits_for_an_epoch_to_turn_but_not_for_ever(servers: Servers) -> None:
    queue = servers.queue()
    turns.await_turn(queue, P)
    queue.call("SET", f"{P}turning", 1)
    turns.await_turn(queue, P)
    assert queue.call("EXISTS", f"{P}turning") == 1
    waiting = Thread(target=turns.await_turn, args=(servers.queue(), P))
    waiting.start()
    turns.turning(queue, P, 0)
    waiting.join(bound(10))
    assert not waiting.is_alive()


def test_a_follower_is_ready_a_little_before_it_has_tried_all_and_says_that_it_is_behind(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 1).run(["a"])
    attempt = an_attempt(servers, 1, 2)
    for _ in range(100):
        attempt.send(["a"])
    assert attempt.answers()[-1] == ("a", 101)
    monitor = servers.queue()
    monitor.call("MONITOR")

    follower = counter(start, follow="owner")

    seen: list[str] = []
    while len(seen) < 4:
        words = bytes(monitor.reply(10)).decode().replace('"', "").split()[3:]
        if words[:2] in ([kind, f"{P}{key}"] for kind, key in (("SET", "behind"), ("RPUSH", "ready:i1"), ("DEL", "behind"))):
            seen.append(words[0])
    assert seen == ["RPUSH", "SET", "RPUSH", "DEL"]  # loaded; then ready, although it is behind
    promote(servers, follower)
    attempt.send(["a"])
    attempt.end()
    assert attempt.answers() == [("a", 102)]


def test_any_number_of_standbys_have_the_state_and_one_that_dies_disturbs_nobody(start: Start, servers: Servers) -> None:
    counter(start)
    others = [counter(start, follow="owner"), counter(start, follow="owner")]
    follower = counter(start, follow="owner")
    others[0].process.kill()
    an_attempt(servers, 0, 1).run(["a"])
    promote(servers, follower)
    assert an_attempt(servers, 1, 2).run(["a"]) == [("a", 2)]
    promote(servers, counter(start, follow="owner"))
    assert an_attempt(servers, 2, 3).run(["a"]) == [("a", 3)]
    servers.state().call(*changelog.leaving(P, "i1"))  # as if the lease of the killed standby had expired
    wait_until(lambda: others[1].process.poll() is not None, 10, "who was overtaken to leave")
    assert left_behind(servers.state()) == []


def test_a_former_follower_that_ends_following_does_not_disturb_the_next_one(start: Start, servers: Servers) -> None:
    """Two updates within one epoch: the second one's follower begins before the first one has made a checkpoint."""
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    first = counter(start, follow="owner")
    promote(servers, first)
    second = counter(start, follow="owner")
    an_attempt(servers, 1, 1).run(["a"])
    assert servers.state().call("HKEYS", f"{P}readers") == [b"i2"]
    promote(servers, second)
    assert an_attempt(servers, 2, 2).run(["a"]) == [("a", 3)]
    assert left_behind(servers.state()) == []


def test_a_follower_that_lost_its_lease_leaves_instead_of_guessing(start: Start, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    counter(start)
    follower = counter(start, follow="owner")
    servers.state().call(*changelog.leaving(P, "i1"))
    wait_until(lambda: follower.process.poll() is not None, 20, "the follower leaves")
    assert an_attempt(servers, 0, 1).run(["a"]) == [("a", 1)]


def test_a_follower_that_stood_still_for_too_long_loads_again(start: Start, servers: Servers) -> None:
    """Its lease has expired meanwhile, and the owner kept no checkpoints for it."""
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    follower = counter(start, follow="owner")
    os.kill(follower.process.pid, signal.SIGSTOP)
    servers.state().call(*changelog.leaving(P, "i1"))
    an_attempt(servers, 1, 1).run(["a", "b"])
    promote(servers, follower)
    os.kill(follower.process.pid, signal.SIGCONT)
    assert an_attempt(servers, 2, 2).run(["a", "b"]) == [("a", 3), ("b", 2)]


def test_who_loses_the_lease_while_it_loads_does_not_take_what_it_has_read_for_one_state(start: Start, servers: Servers) -> None:
    """Checkpoints made meanwhile were not kept for it: some of what it read may be newer than the rest."""

    class Late(StandbyState):
        def _load_all(self) -> None:
            super()._load_all()
            self._state.call(*changelog.leaving(P, "late"))

    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    run_id = servers.queue().run_id
    with pytest.raises(Fenced, match="its lease ran out; it was loading the state"):
        Late(servers.state(), P, "late", run_id).load()
    state = StandbyState(servers.state(), P, "i", run_id)
    state.load()
    servers.state().call(*changelog.leaving(P, "i"))
    state.sync()
    assert "its lease ran out" in state.gone


def test_who_is_too_far_behind_is_given_up_and_told_so_and_others_are_not(
    start: Start, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    run_id = servers.queue().run_id
    slow, quick = (StandbyState(servers.state(), P, name, run_id) for name in ("slow", "quick"))
    slow.load()
    quick.load()
    monkeypatch.setattr(changelog, "CHANGELOG_BYTES", 10)  # the three entries below are larger
    monkeypatch.setattr(standby, "_ADVANCE_S", 0.0)
    an_attempt(servers, 1, 1).run(["a"])
    quick.read()
    quick.keep_lease()
    for seq in (7, 8, 9):
        servers.state().call(*changelog.appending(P, changelog_entry(seq, [], {}, {})))
        quick.read()
        quick.keep_lease()
    slow.read()
    assert "more than" in slow.gone and "behind" in slow.gone and quick.gone == ""
    with pytest.raises(Fenced, match="behind"):
        changelog.hold(servers.state(), P, "slow", 0)
    again = StandbyState(servers.state(), P, "slow", run_id)
    again.load()
    assert again.gone == ""


def test_who_loads_for_longer_than_the_changelog_is_kept_reads_it_meanwhile(
    start: Start, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process loads, the owner writes more than is kept for a reader that is behind."""
    monkeypatch.setattr(standby, "_ADVANCE_S", 0.0)
    monkeypatch.setattr(pieces, "_READ_BYTES", 1)
    monkeypatch.setattr(changelog, "CHANGELOG_BYTES", 10)  # every checkpoint of the owner is larger
    keys = ["a", "b", "c", "d"]  # one in each group
    epochs: list[int] = []

    class Slow(StandbyState):
        def _keep_up(self) -> None:
            super()._keep_up()
            servers.state().call(*changelog.appending(P, changelog_entry(0, [], {}, {})))  # gives up readers that are behind
            epochs.append(len(epochs) + 1)
            an_attempt(servers, epochs[-1], epochs[-1]).run([*keys, f"new{epochs[-1]}"])

    counter(start)
    an_attempt(servers, 0, 0).run(keys)
    run_id = servers.queue().run_id
    slow, quick = Slow(servers.state(), P, "slow", run_id), StandbyState(servers.state(), P, "quick", run_id)
    slow.load()
    assert len(epochs) >= len(keys), "groups are read one by one"
    quick.load()
    now, expected = (s.sessions["q"] for s in (slow, quick))
    assert now.last_ended == expected.last_ended == epochs[-1]
    assert {n: g.values for n, g in now.groups.items()} == {n: g.values for n, g in expected.groups.items()}
    assert slow.gone == "" and sum(len(g.values) for g in now.groups.values()) >= len(keys) + len(epochs)


def test_a_follower_that_is_overtaken_before_it_is_ready_says_why(start: Start, servers: Servers) -> None:
    owner = counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    slot.promote(servers.state(), servers.queue(), P, owner.token + 10)
    late = counter(start, follow="owner")
    assert late.report is not None and not late.report["ok"]
    assert late.report["error"]["code"] == Fenced.code and "was overtaken by" in late.report["error"]["message"]
    wait_until(lambda: late.process.poll() is not None, 10, "it to leave")


def test_a_job_that_ends_while_it_is_followed_leaves_nothing(start: Start, servers: Servers) -> None:
    counter(start)
    job = an_attempt(servers, 0, 1, session="job", job=True)
    job.send(["a"])
    job.answers()
    follower = counter(start, follow="owner")
    job.end()
    job.answers()
    promote(servers, follower)
    assert an_attempt(servers, 0, 2, session="q").run(["a"]) == [("a", 1)]
    assert [k for k in servers.state().call("KEYS", f"{P}*job*")] == []


def test_a_job_of_which_some_partitions_have_ended_is_followed_to_its_end(start: Start, servers: Servers) -> None:
    counter(start)
    job = [an_attempt(servers, 0, 1, partition, session="job", job=True) for partition in range(3)]
    for attempt, key in zip(job, "abc", strict=True):
        attempt.send([key])
        attempt.answers()
    follower = counter(start, follow="owner")
    for attempt, key in zip(job[:2], "ab", strict=True):
        attempt.end([group_of(key)])
        attempt.answers()
    promote(servers, follower)
    job[2].send(["c"])
    job[2].end([group_of("c")])
    assert job[2].answers() == [("c", 2)]
    assert [k for k in servers.state().call("KEYS", f"{P}*job*")] == []


def test_timers_of_the_owner_fire_once(start: Start, servers: Servers) -> None:
    def quiet(follow: str) -> Process:
        keyed = {"columns": ["k"], "time_column": "t"}
        return start(TIMERS, "op:Quiet", schemas=(EVENTS, COUNTS), keyed=keyed, follow=follow, promote=not follow)

    quiet("")
    an_attempt(servers, 0, 1).run(["a", "b"], 0)
    follower = quiet("owner")
    an_attempt(servers, 1, 2).run(["b"], 11)
    promote(servers, follower)
    assert an_attempt(servers, 2, 3).run(["c"], 30) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("seed", seeds(1, deep=3))
def test_any_order_of_epochs_retries_and_promotions_counts_like_one_process(start: Start, servers: Servers, seed: int) -> None:
    """Every promotion is of a follower that was started some frames earlier; a long state is folded meanwhile."""
    dice = random.Random(seed)
    counts: dict[str, int] = {}
    keys = [f"k{i}" for i in range(50)]
    counter(start, retained_bytes=20_000)
    follower = None
    attempt_no = 0
    for epoch in range(12):
        tries = dice.choice([1, 1, 2])
        for last in range(tries):
            attempt_no += 1
            attempt, counted, got = an_attempt(servers, epoch, attempt_no), dict(counts), []
            expected = []
            for _ in range(dice.randint(1, 4)):
                chosen = [dice.choice(keys) for _ in range(dice.randint(1, 40))]
                for k in chosen:
                    counted[k] = counted.get(k, 0) + 1
                    expected.append((k, counted[k]))
                attempt.send(chosen)
                if dice.random() < 0.3:
                    got += attempt.answers()
                if follower is not None and dice.random() < 0.3:
                    promote(servers, follower)
                    follower = None
                elif follower is None and dice.random() < 0.3:
                    follower = counter(start, follow="owner", retained_bytes=20_000)
            if last == tries - 1 or dice.random() < 0.5:
                attempt.end()
                got += attempt.answers()
            else:
                got += attempt.answers() if len(got) < len(expected) else []
            assert got == expected, f"epoch {epoch}, attempt {attempt_no}"
        counts = counted
    state = servers.state()
    assert checkpoints.load_checkpoint(state, P).seq > 0


def test_state_is_migrated_before_the_promotion_and_after_it(start: Start, servers: Servers) -> None:
    """The migrated parts: base, undo, ENDed values, the owner's later writes, and the stored state when the new version dies."""
    counter(start)
    for epoch in range(3):
        an_attempt(servers, epoch, epoch).run(["a", "b", f"only{epoch}"])
    follower = cents(start)
    assert an_attempt(servers, 3, 3).run(["a"]) == [("a", 4)]
    attempt = an_attempt(servers, 4, 4)
    attempt.send(["a"])
    assert attempt.answers() == [("a", 5)]
    promote(servers, follower)
    attempt.send(["b"])
    attempt.end()
    assert attempt.answers() == [("b", 4)]
    assert an_attempt(servers, 4, 5).run(["a", "b"]) == [("a", 5), ("b", 4)]  # a retry: the undo was migrated too
    follower.process.kill()
    follower.process.wait()
    cents(start, follow="", promote=True)
    assert an_attempt(servers, 5, 6).run(["a", "b", "only0"]) == [("a", 6), ("b", 5), ("only0", 2)]


def test_a_crash_before_the_first_checkpoint_of_the_new_version_migrates_again(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    follower = cents(start)
    promote(servers, follower)
    follower.process.kill()
    follower.process.wait()
    cents(start, follow="", promote=True)
    assert an_attempt(servers, 1, 1).run(["a"]) == [("a", 2)]


def test_after_a_crash_state_that_nobody_asks_for_is_written_in_the_new_form_too(start: Start, servers: Servers) -> None:
    """Otherwise a later version that reads only the new form would be refused because of a query that ended long ago."""
    counter(start)
    for session in ("q", "ended"):
        an_attempt(servers, 0, 0, session=session).run(["a", "b"])
    follower = cents(start)
    promote(servers, follower)
    follower.process.kill()
    follower.process.wait()
    cents(start, follow="", promote=True)
    for epoch in range(1, 4):
        assert an_attempt(servers, epoch, epoch).run(["a"]) == [("a", epoch + 1)]
    later = start(CENTS, "op:Count", schemas=(EVENTS, COUNTS), keyed={"columns": ["k"], "state_version": 1}, follow="owner", promote=False)
    assert later.report is not None and later.report["ok"], later.report
    promote(servers, later)
    assert an_attempt(servers, 1, 1, session="ended").run(["a", "b"]) == [("a", 2), ("b", 2)]


def test_state_that_cannot_be_migrated_refuses_the_follower_with_its_traceback(start: Start, servers: Servers) -> None:
    source = STEP.format(step=1).replace("yield", "ctx.state['bad'] = 1\n        yield")
    start(source, "op:Count", schemas=(EVENTS, COUNTS), keyed={"columns": ["k"]})
    an_attempt(servers, 0, 0).run(["a"])
    follower = cents(start)
    assert follower.report is not None and not follower.report["ok"]
    assert "migrate() from state version 0 to 1: ValueError: cannot read this" in follower.report["error"]["message"]
    assert "cannot read this" in follower.report["error"]["traceback"]
    wait_until(lambda: follower.process.poll() is not None, 10, "the follower leaves")
    assert an_attempt(servers, 1, 1).run(["a"]) == [("a", 2)]


def test_state_of_a_version_that_is_not_listed_is_refused(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    keyed = {"columns": ["k"], "state_version": 2, "migrates_from": [1]}
    report = start(CENTS, "op:Count", schemas=(EVENTS, COUNTS), keyed=keyed, follow="owner", promote=False).report
    assert report is not None and "state of version 0 is on the state server, and the operator reads 1, 2" in report["error"]["message"]
