"""A diff of a keyed operator: every micro-batch is answered from the serving version's state before it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from node_manager.servers import access
from tests.conftest import patience, wait_until
from tests.node_manager.conftest import Daemon, put_image
from tests.support.attempt import Attempt
from tests.support.diffs import Running, traces
from tests.support.keyed_node import COUNT, KEYED
from tests.support.migrated import MIGRATED

pytestmark = pytest.mark.long

# Counts as the first version does, but counts key 3 twice and fails on key 13.
ODD = COUNT.replace("+ 1\n", "+ 1 + (event['a'] == 3)\n        if event['a'] == 13: raise ValueError('unlucky')\n")


@pytest.fixture
def daemon(home_daemon: Daemon) -> Iterator[Daemon]:
    """A node manager with a keyed deployment `d`; at the end no diff may have left a key on either server."""
    home_daemon.start("--session-idle-s", "0")
    home_daemon.deploy(COUNT, **KEYED)
    yield home_daemon
    for role in ("queue", "state"):
        with contextlib.closing(access.connect(home_daemon.home, role)) as conn:
            assert not traces(conn)


def run(daemon: Daemon, epoch: int, keys: list[int]) -> list[int]:
    return Attempt.at_node(daemon.api, "d", "q", epoch, epoch + 1).run(keys)


def test_equal_code_is_equal_over_epochs_also_in_the_middle_of_one(daemon: Daemon) -> None:
    run(daemon, 0, [1, 2, 3])
    begun = Attempt.at_node(daemon.api, "d", "q", 1, 2)
    begun.send([1, 1])
    begun.answers()
    diff = Running(daemon, put_image(daemon.home, COUNT + "# another text\n", version="2", **KEYED), for_s=4 * patience()).begun()
    begun.send([1, 2])
    begun.end()
    assert begun.answers()[-2:] == [4, 2]
    begun.close()
    for epoch in range(2, 12):
        run(daemon, epoch, [1, 2, 3, epoch])
    report = diff.seen(22).end()
    assert (report["outcome"], report["different"], report["missed"]) == ("equal", 0, 0)
    assert report["frames"] == 22  # 11 frames of events, 11 ENDs


@pytest.mark.short
def test_each_epoch_differs_by_what_the_new_version_makes_of_it_alone(daemon: Daemon) -> None:
    run(daemon, 0, [1, 3])
    diff = Running(daemon, put_image(daemon.home, ODD, version="2", **KEYED), for_s=4 * patience()).begun()
    assert run(daemon, 1, [1, 3]) == [2, 2]
    assert run(daemon, 2, [1, 3, 3]) == [3, 3, 4]
    assert run(daemon, 3, [13, 1]) == [1, 4]
    report = diff.seen(6).end()
    told = [(e["event"], e["served"], e["new"]) for e in diff.examples if e["columns"]]
    assert told == [({"a": 3}, {"b": 2}, {"b": 3}), ({"a": 3}, {"b": 3}, {"b": 4}), ({"a": 3}, {"b": 4}, {"b": 6})]
    assert report["errors_new"] == 1 and "unlucky" in report["first_error"]["traceback"]
    assert run(daemon, 4, [1, 3]) == [5, 5]


def test_another_form_of_state_is_migrated_for_the_diff(daemon: Daemon) -> None:
    run(daemon, 0, [1, 2])
    new = put_image(daemon.home, MIGRATED, version="2", **KEYED, state_version=1, migrates_from=[0])
    diff = Running(daemon, new, for_s=3 * patience()).begun()
    run(daemon, 1, [1, 2, 2])
    report = diff.seen(2).end()
    assert (report["outcome"], report["frames"]) == ("equal", 2)
    assert run(daemon, 2, [1]) == [3]


def test_a_diff_goes_on_while_the_serving_version_is_replaced_by_one_whose_state_it_can_read(daemon: Daemon) -> None:
    run(daemon, 0, [1, 3])
    diffs = [Running(daemon, put_image(daemon.home, code, version=v, **KEYED)).begun() for v, code in (("2", COUNT + "# 2\n"), ("3", ODD))]
    assert run(daemon, 1, [1, 3]) == [2, 2]
    for diff in diffs:
        diff.seen(2)
    digest = put_image(daemon.home, COUNT + "# 4\n", version="4", **KEYED)
    assert [e.phase for e in daemon.api.update("d", "4", digest)][-1] == "done"
    assert run(daemon, 2, [1, 3]) == [3, 3]
    for diff, different in zip(diffs, (0, 4), strict=True):  # two frames and two ENDs, in which the third version differs
        diff.seen(4)
        report = diff.reports[-1]
        assert (report["serving_version"], report["errors_new"]) == ("4", 0)
        assert bool(report["different"]) == bool(different), report
    assert "@2" in daemon.slot().diff and "@3" in daemon.slot().diff
    new = put_image(daemon.home, MIGRATED, version="5", **KEYED, state_version=1, migrates_from=[0])
    assert [e.phase for e in daemon.api.update("d", "5", new)][-1] == "done"  # neither of the two can read its state
    for diff in diffs:
        wait_until(lambda d=diff: bool(d.reports[-1].get("final")) or d.error is not None, 30, "the diff to end")  # type: ignore[misc]
    assert run(daemon, 3, [1, 3]) == [4, 4]


@pytest.mark.parametrize("source", [ODD, COUNT])
def test_with_a_checkpoint_for_each_frame_each_frame_is_answered_from_the_state_before_it(daemon: Daemon, source: str) -> None:
    framewise = {**KEYED, "commit": "frame"}
    daemon.deploy(COUNT, name="f", version="f1", **framewise)
    assert Attempt.at_node(daemon.api, "f", "q", 0, 1).run([1, 3]) == [1, 1]
    diff = Running(daemon, put_image(daemon.home, source + "# 2\n", version="f2", **framewise), for_s=4 * patience(), name="f").begun()
    attempt = Attempt.at_node(daemon.api, "f", "q", 1, 2)
    for n in (2, 3, 4):
        attempt.send([3, 1])
        assert attempt.answers() == [n, n]
    attempt.end()
    attempt.answers()
    attempt.close()
    report = diff.seen(4).end()
    assert report["frames"] == 4
    told = [(e["event"], e["served"], e["new"]) for e in diff.examples]
    assert told == [({"a": 3}, {"b": n}, {"b": n + 1}) for n in (2, 3, 4) if source is ODD]


def test_letters_sent_again_are_compared_with_what_the_new_version_makes_of_them(daemon: Daemon) -> None:
    daemon.deploy(ODD, name="l", version="l1", config_json='{"policy": "dead-letter"}', **KEYED)
    assert Attempt.at_node(daemon.api, "l", "q", 0, 1).run([13, 13, 1]) == [1]
    mended = put_image(daemon.home, COUNT, version="l2", **KEYED)
    assert [e.phase for e in daemon.api.update("l", "l2", mended)][-1] == "done"
    diff = Running(daemon, put_image(daemon.home, COUNT + "# 2\n", version="l3", **KEYED), for_s=4 * patience(), name="l").begun()
    daemon.api.replay_dead_letters("l", everything=True)
    assert Attempt.at_node(daemon.api, "l", "q", 1, 2).run([1]) == [2, 1, 2]
    diff.seen(2)
    assert Attempt.at_node(daemon.api, "l", "q", 2, 3).run([13]) == [3]
    report = diff.seen(4).end()
    assert (report["frames"], report["outcome"]) == (4, "equal"), diff.examples


def test_a_diff_and_an_open_rollback_window_together_leave_half_of_the_log_to_producers(daemon: Daemon) -> None:
    bound = 200_000
    config = {"config_json": f'{{"limits": {{"retained_bytes": {bound}}}}}'}
    former = daemon.deploy(COUNT, name="w", version="w1", **KEYED, **config)
    newer = put_image(daemon.home, MIGRATED, version="w2", **KEYED, state_version=1, migrates_from=[0])
    Attempt.at_node(daemon.api, "w", "q", 0, 1).run([1])
    assert [e.phase for e in daemon.api.update("w", "w2", newer)][-1] == "done"
    third = put_image(daemon.home, MIGRATED + "# 3\n", version="w3", **KEYED, state_version=1, migrates_from=[0])
    diff = Running(daemon, third, for_s=12 * patience(), name="w").begun()
    epoch, sent = 0, 0
    while sent < bound:  # the diff needs the last two epochs
        epoch += 1
        attempt = Attempt.at_node(daemon.api, "w", "q", epoch, epoch + 1)
        for _ in range(2):
            attempt.send([1] * 1000)
            sent += 12_500
        attempt.end()
        assert attempt.answers()[-1] == 1 + 2000 * epoch
        attempt.close()
        diff.seen(3 * epoch)
    report = diff.end()
    assert (report["outcome"], report["frames"], report["missed"]) == ("equal", 3 * epoch, 0)
    refused = list(daemon.api.update("w", "w1", former))[-1]
    assert refused.phase == "failed"
    assert "too late to roll back" in refused.detail
