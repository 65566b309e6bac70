"""A rollback to a version that cannot read the newer one's state: from the kept state, and the input since."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
from udo_runtime.durable.sessions import load_session
from udo_runtime.durable.standby import StandbyState
from udo_runtime.state.codec import unpack
from udo_runtime.state.session import Session

from tests.conftest import Servers, bound, wait_until
from tests.runtime.conftest import P, Process
from tests.support.counters import an_attempt
from tests.support.going_back import kept_keys, update
from tests.support.seeds import seeds
from tests.support.standbys import cents, counter
from udo_protocol.errors import Conflict
from udo_protocol.queue import slot
from udo_protocol.state import rewinding

pytestmark = pytest.mark.long

Start = Callable[..., Process]


def rollback(start: Start, servers: Servers, **more: int) -> Process:
    former = counter(start, follow="kept", **more)
    assert former.report is not None and former.report["ok"], former.report
    slot.promote(servers.state(), servers.queue(), P, former.token)
    return former


def replace(start: Start, servers: Servers) -> Process:
    """Replace a dead owner of the former version, as the node manager does."""
    if not rewinding.pending(servers.state(), P, "former"):
        return counter(start)
    return rollback(start, servers)


def test_the_state_is_that_of_who_comes_back_before_it_has_the_log_and_what_is_answered_meanwhile_counts(
    start: Start, servers: Servers
) -> None:
    """Otherwise a loss of the queue server could leave the former version as owner, without the input that it still has to replay."""
    queue, state = servers.queue(), servers.state()
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    update(servers, cents(start))
    assert an_attempt(servers, 1, 1).run(["a"]) == [("a", 2)]
    former, under_way = counter(start, follow="kept"), an_attempt(servers, 2, 2)

    def meanwhile() -> None:
        wait_until(lambda: rewinding.kept(state, P) is None, 20, "the state to be what it was")
        under_way.send(["a", "b"])
        assert under_way.answers() == [("a", 3), ("b", 1)]  # answers of the newer version
        assert slot.slot_stats(queue, P).owner != former.token

    slot.promote(state, queue, P, former.token, meanwhile)
    under_way.send(["b"])
    under_way.end()
    assert under_way.answers() == [("b", 2)]
    assert an_attempt(servers, 3, 3).run(["a", "b"]) == [("a", 4), ("b", 3)]
    assert kept_keys(servers) == []


@pytest.mark.short
def test_the_former_version_goes_on_as_if_it_had_answered_all_along(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a", "b"])
    mid = an_attempt(servers, 1, 1)
    mid.send(["a"])
    assert mid.answers() == [("a", 2)]
    update(servers, cents(start))
    mid.send(["b"])
    mid.end()
    assert mid.answers() == [("b", 2)]
    assert an_attempt(servers, 2, 2).run(["a", "c"]) == [("a", 3), ("c", 1)]
    late = an_attempt(servers, 3, 3)
    late.send(["c"])
    assert late.answers() == [("c", 2)]
    former = rollback(start, servers)
    late.send(["a"])
    late.end()
    assert late.answers() == [("a", 4)]
    assert kept_keys(servers) == []
    former.process.kill()
    former.process.wait()
    counter(start)
    assert an_attempt(servers, 4, 4).run(["a", "b", "c"]) == [("a", 5), ("b", 3), ("c", 3)]


def test_who_follows_the_newer_version_is_told_that_what_comes_does_not_go_on_from_its_state(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    update(servers, cents(start))
    an_attempt(servers, 1, 1).run(["a"])
    state = StandbyState(servers.state(), P, "standby", servers.queue().run_id)
    state.load()
    rollback(start, servers)
    an_attempt(servers, 2, 2).run(["a"])
    state.read()
    assert "rolled back to an older state" in state.gone


def test_a_crash_right_after_the_rollback_loses_nothing(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    update(servers, cents(start))
    an_attempt(servers, 1, 1).run(["a"])
    former = rollback(start, servers)
    former.process.kill()
    former.process.wait()
    replace(start, servers)
    assert an_attempt(servers, 2, 2).run(["a"]) == [("a", 3)]


@pytest.mark.parametrize("dies", ["before", "behind"])
def test_who_dies_between_the_halves_leaves_the_newer_version_what_it_needs(start: Start, servers: Servers, dies: str) -> None:
    """The state is then the newer version's, or the former one's, which the newer one can read."""
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    newer = cents(start)
    update(servers, newer)
    an_attempt(servers, 1, 1).run(["a"])
    former, under_way = counter(start, follow="kept"), an_attempt(servers, 2, 2)
    if dies == "before":
        os.kill(former.process.pid, signal.SIGSTOP)

    def half() -> None:
        if dies == "behind":
            wait_until(lambda: rewinding.kept(servers.state(), P) is None, 20, "the state to be what it was")
        former.process.kill()
        former.process.wait()
        raise Conflict("it died")

    with pytest.raises(Conflict):
        slot.promote(servers.state(), servers.queue(), P, former.token, half)
    under_way.send(["a"])
    assert under_way.answers() == [("a", 3)]
    under_way.end()  # the newer version can make no checkpoint of it any more
    assert newer.process.wait(bound(20)) == 0
    cents(start, follow="", promote=True)
    assert under_way.answers() == []
    assert an_attempt(servers, 3, 3).run(["a"]) == [("a", 4)]


def test_what_was_answered_stays_durable_all_the_way_back(start: Start, servers: Servers) -> None:
    """The queue server, and with it the input since the update, may be lost at any moment of the rollback."""
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    update(servers, cents(start))
    an_attempt(servers, 1, 1).run(["a"])
    newer = load_session(servers.state(), P, "q")
    former = counter(start, follow="kept")
    os.kill(former.process.pid, signal.SIGSTOP)
    slot.promote(servers.state(), servers.queue(), P, former.token)
    assert (now := load_session(servers.state(), P, "q")).last_ended == newer.last_ended == 1
    assert values(now) == values(newer) == {"a": {"cents": 200}}
    os.kill(former.process.pid, signal.SIGCONT)
    wait_until(lambda: not kept_keys(servers), 10, "the former version to have taken over")  # without a new frame
    assert (now := load_session(servers.state(), P, "q")).last_ended == 1
    assert values(now) == {"a": {"n": 2}}


def test_who_dies_between_its_first_checkpoint_and_the_release_of_the_input_leaves_none_behind(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    update(servers, cents(start))
    an_attempt(servers, 1, 1).run(["a"])
    former = rollback(start, servers)
    wait_until(lambda: not kept_keys(servers), 10, "the former version to have taken over")
    former.process.kill()
    former.process.wait()
    servers.queue().call("FCALL", "udo_pin", 1, P.prefix, rewinding.SAVEPOINT, 1, 60_000)
    replace(start, servers)
    assert an_attempt(servers, 2, 2).run(["a"]) == [("a", 3)]
    assert kept_keys(servers) == []


def test_what_was_kept_is_needed_only_if_the_newer_version_has_made_a_checkpoint(start: Start, servers: Servers) -> None:
    """An update that fails between its two halves leaves the former version's own state, which is loaded as after any crash."""
    first = counter(start)
    an_attempt(servers, 0, 0).run(["a"])
    rewinding.keep(servers.state(), servers.queue(), P, "former", 0, 60_000)
    assert not rewinding.pending(servers.state(), P, "former")
    first.process.kill()
    first.process.wait()
    replace(start, servers)
    update(servers, cents(start))
    assert not rewinding.pending(servers.state(), P, "former")
    an_attempt(servers, 1, 1).run(["a"])
    assert rewinding.pending(servers.state(), P, "former")
    assert not rewinding.pending(servers.state(), P, "newer")
    rollback(start, servers)
    wait_until(lambda: not rewinding.pending(servers.state(), P, "former"), 10, "the former version to have taken over")
    assert an_attempt(servers, 2, 2).run(["a"]) == [("a", 3)]


def test_who_follows_while_the_state_is_rewound_leaves_and_loads_it_again(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a", "b"])
    update(servers, cents(start))
    an_attempt(servers, 1, 1).run(["a"])
    former = counter(start, follow="kept")
    late = cents(start)
    slot.promote(servers.state(), servers.queue(), P, former.token)
    wait_until(lambda: not kept_keys(servers), 10, "the former version to have taken over")
    wait_until(lambda: late.process.poll() is not None, 10, "the standby of the newer version to leave")
    update(servers, cents(start))
    assert an_attempt(servers, 2, 2).run(["a", "b"]) == [("a", 3), ("b", 2)]


def values(session: Session) -> dict[str, Any]:
    return {key: unpack(raw) for group in session.groups.values() for key, raw in group.values.items() if isinstance(key, str)}


def test_when_the_input_since_is_not_in_the_log_any_more_it_is_too_late(start: Start, servers: Servers) -> None:
    counter(start, retained_bytes=20_000)
    an_attempt(servers, 0, 0).run(["a"])
    newer = cents(start, retained_bytes=20_000)
    update(servers, newer)
    for epoch in range(1, 12):  # more than half of the bound
        an_attempt(servers, epoch, epoch).run(["a"] * 100)
    report = counter(start, follow="kept", retained_bytes=20_000).report
    assert report is not None and not report["ok"]
    assert "too late to roll back" in report["error"]["message"]
    assert an_attempt(servers, 12, 12).run(["a"]) == [("a", 1102)]


def test_a_version_that_was_ready_to_go_back_leaves_when_the_input_since_goes(start: Start, servers: Servers) -> None:
    """It has processed that input, but would need it again after a crash."""
    counter(start, retained_bytes=20_000)
    an_attempt(servers, 0, 0).run(["a"])
    update(servers, cents(start, retained_bytes=20_000))
    former = counter(start, follow="kept", retained_bytes=20_000)
    assert former.report is not None and former.report["ok"]
    for epoch in range(1, 12):
        an_attempt(servers, epoch, epoch).run(["a"] * 100)
    assert former.process.wait(bound(20)) == 0
    assert an_attempt(servers, 12, 12).run(["a"]) == [("a", 1102)]


def test_given_up_nothing_is_left(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a", "b"])
    update(servers, cents(start))
    an_attempt(servers, 1, 1).run(["a"])
    rewinding.forget(servers.state(), servers.queue(), P)
    assert kept_keys(servers) == []
    assert an_attempt(servers, 2, 2).run(["a"]) == [("a", 3)]


@pytest.mark.parametrize("seed", seeds(3))
def test_updates_and_rollbacks_between_any_epochs_count_like_one_process(start: Start, servers: Servers, seed: int) -> None:
    """The state is large enough for the new version to write new bases while the former ones are kept."""
    dice, counts = random.Random(seed), {}
    former = counter(start)
    newer: Process | None = None
    for epoch in range(10):
        attempt, expected = an_attempt(servers, epoch, epoch), []
        for _ in range(dice.randint(1, 3)):
            keys = [f"k{dice.randrange(400)}" for _ in range(200)]
            for k in keys:
                counts[k] = counts.get(k, 0) + 1
                expected.append((k, counts[k]))
            attempt.send(keys)
        got = attempt.answers() if dice.random() < 0.5 else []
        if dice.random() < 0.5:
            if newer is None:
                newer = cents(start)
                update(servers, newer)
            else:
                former, newer = rollback(start, servers), None
        elif dice.random() < 0.3:
            (newer or former).process.kill()
            (newer or former).process.wait()
            if newer is None:
                former = replace(start, servers)
            else:
                newer = cents(start, follow="", promote=True)
        attempt.end()
        assert got + attempt.answers() == expected, f"epoch {epoch}"
