"""Dead letters at a real node: kept, listed, dropped, counted; only the owner writes them, and they disappear only on request."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from node_manager.servers import access
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane, put_image
from tests.support.attempt import Attempt
from tests.support.keyed_node import imported
from udo_protocol.errors import Conflict, NotFound, UsageError
from udo_protocol.queue import access as rules
from udo_protocol.queue.keys import SlotKeys

pytestmark = pytest.mark.long

Open = Callable[..., Lane]
PICKY = """
from udo_runtime import operator
@operator
def run(batch):
    values = batch.column("a").to_pylist()
    if 13 in values: raise ValueError("unlucky {version}")
    return {{"b": values}}
"""
COUNT = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["a"] == 13: raise ValueError("unlucky")
        yield {"b": ctx.state["n"]}
"""
DEAD = json.dumps({"policy": "dead-letter"})


def picky(version: str = "1") -> str:
    return PICKY.format(version=version)


# Fails in the key's timer, which fires one second after the event.
LATE = COUNT.replace("        if", "        ctx.timer(event['t'] + dt.timedelta(seconds=1))\n        if").replace(
    "from", "import datetime as dt\nfrom", 1
)
LATE += "    def on_timer(self, key, when, ctx): raise ValueError('too late')\n"


@pytest.fixture
def deployed(daemon: Daemon) -> Daemon:
    daemon.deploy(picky(), config_json=DEAD)
    return daemon


def ask(lane: Lane, values: list[int]) -> list[int]:
    lane.send(values)
    return lane.values(lane.receive())


@pytest.mark.short
def test_dead_letters_are_listed_by_deployment_and_id_and_dropped(deployed: Daemon, lane: Open) -> None:
    assert ask(lane(), [1, 13, 2, 13]) == [1, 2]
    api = deployed.api
    first, second = sorted(api.dead_letters("d", whole=True), key=lambda d: d.row)
    assert (first.row, second.row, first.operator, first.reason) == (1, 3, "t@1", "ValueError: unlucky 1")
    assert (json.loads(first.event), "op.py" in first.traceback, first.keyed) == ({"a": 13}, True, False)
    assert [d.id for d in api.dead_letters("", [second.id[:6]])] == [second.id]
    assert [(d.event, d.arrow) for d in api.dead_letters(ids=[first.id])] == [("", b"")]
    with pytest.raises(NotFound, match="no dead letter 'zz'; there are: "):
        api.drop_dead_letters("d", ["zz"])
    with pytest.raises(UsageError, match="ambiguous id prefix ''"):
        api.drop_dead_letters("d", [""])
    with pytest.raises(UsageError, match="not both"):
        api.drop_dead_letters("d")
    assert api.drop_dead_letters("d", [first.id]) == 1
    assert api.drop_dead_letters("d", everything=True) == 1
    assert list(api.dead_letters()) == []
    with pytest.raises(NotFound):
        list(api.dead_letters("nobody"))


@pytest.mark.short
def test_a_letter_sent_again_in_vain_keeps_the_new_reason(deployed: Daemon, lane: Open) -> None:
    ask(lane(), [13])
    [before] = deployed.api.dead_letters("d", whole=True)
    deployed.api.amend_dead_letter("d", before.id, "operator", "still unlucky", "trace")
    [after] = deployed.api.dead_letters("d", whole=True)
    assert (after.id, after.reason, after.traceback, after.replays, after.event) == (before.id, "still unlucky", "trace", 1, before.event)


def test_status_statistics_and_metrics_count_them(deployed: Daemon, lane: Open) -> None:
    ask(lane(), [1, 13, 13])
    assert (deployed.slot().dead_letters, deployed.slot().policy) == (2, "dead-letter")
    wait_until(lambda: deployed.api.stats("d").slots[0].dead_letters == 2, 10, "counters")
    with urllib.request.urlopen(deployed.api.status().metrics_address, timeout=bound(10)) as reply:
        assert 'udo_dead_letters_total{deployment="d",slot="0"} 2.0' in reply.read().decode()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"policy": "shrug"}, "expected 'fail' or 'dead-letter', got 'shrug'"),
        ({"limits": {"retries": 11}}, "expected 0 to 10, got 11"),
        ({"limits": {"retries": -1}}, "expected 0 to 10, got -1"),
    ],
)
def test_a_bad_policy_is_refused_at_deployment(daemon: Daemon, config: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        daemon.deploy(picky(), config_json=json.dumps(config))
    assert list(daemon.api.status().slots) == []


@pytest.mark.short
def test_an_update_keeps_the_policy_and_the_letters(deployed: Daemon, lane: Open) -> None:
    caller = lane()
    ask(caller, [13])
    assert list(deployed.api.update("d", "2", put_image(deployed.home, picky("2"), version="2")))[-1].phase == "done"
    assert ask(caller, [13, 5]) == [5]
    assert sorted(d.operator for d in deployed.api.dead_letters("d")) == ["t@1", "t@2"]


@pytest.mark.parametrize("keyed", [False, True])
def test_undeploying_is_refused_while_there_are_dead_letters(daemon: Daemon, lane: Open, keyed: bool) -> None:
    if keyed:
        daemon.deploy(COUNT, config_json=DEAD, key=["a"])
        assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 13]) == [1]
    else:
        daemon.deploy(picky(), config_json=DEAD)
        ask(lane(), [13])
    with pytest.raises(Conflict, match="holds 1 dead letters on node n1"):
        daemon.api.undeploy("d")
    daemon.api.undeploy("d", drop_state=True)
    with contextlib.closing(access.connect(daemon.home, "state")) as state:
        assert state.call("KEYS", "udo:d:*") == []


def test_letters_of_a_pinned_version_stay_when_its_slot_is_retired(home_daemon: Daemon) -> None:
    daemon = home_daemon.start("--pinned-idle-s", "0.5")
    daemon.deploy(picky(), config_json=DEAD)
    pinned = Lane(daemon.api, "d@1")
    for _ in range(3):
        ask(pinned, [13])
    assert {d.slot for d in daemon.api.dead_letters("d")} == {1000}
    pinned.end.close()
    pinned.conn.close()
    wait_until(lambda: not any(s.pinned for s in daemon.api.status().slots), 20, "pinned slot to be retired")
    wait_until(lambda: {d.slot for d in daemon.api.dead_letters("d")} == {0}, 20, "letters to be moved")
    os.kill(daemon.slot().pid, signal.SIGKILL)  # the next owner discards letters without an answer in its own log, but not these
    caller = Lane(daemon.api, "d")
    assert ask(caller, [5]) == [5]
    caller.conn.close()
    assert len(list(daemon.api.dead_letters("d"))) == 3


def test_only_under_this_policy_a_stateless_instance_gets_on_the_state_server_and_only_to_its_letters(daemon: Daemon) -> None:
    daemon.deploy(picky(), config_json=DEAD)
    put_image(daemon.home, picky("2"), version="2")
    daemon.api.deploy("e", "t", "2")
    with contextlib.closing(access.connect(daemon.home, "state")) as state:
        users = {bytes(u).decode() for u in state.call("ACL", "USERS")}
        assert daemon.slot("d").instance in users
        assert daemon.slot("e").instance not in users
        flat = state.call("ACL", "GETUSER", daemon.slot("d").instance)
        found = {bytes(k).decode(): v for k, v in zip(flat[::2], flat[1::2], strict=True)}
    assert bytes(found["keys"]).decode() == "~udo:d:0:dead %R~udo:d:0:owner %R~udo:d:0:reading %R~udo:d:0:replicas"
    assert set(rules.letters(SlotKeys("d", 0))) >= {"-@all", "~udo:d:0:dead", "%R~udo:d:0:owner"}


def test_a_pending_letter_is_shown_apart(daemon: Daemon) -> None:
    config = json.dumps({"policy": "dead-letter", "limits": {"retained_bytes": 4}})
    daemon.deploy(COUNT, config_json=config, key=["a"])
    attempt = Attempt.at_node(daemon.api, "d", "s", 0, 1)
    attempt.send([13])
    attempt.frames()
    wait_until(lambda: [d.unfinished for d in daemon.api.dead_letters("d", unfinished=True)] == [True], 10, "checkpoint")
    assert list(daemon.api.dead_letters("d")) == []
    attempt.end()
    attempt.frames()
    [letter] = daemon.api.dead_letters("d")
    assert (letter.keyed, letter.session, letter.epoch, letter.attempt, letter.unfinished) == (True, "s", 0, 1, False)
    attempt.close()


def test_a_letter_answered_in_an_epoch_that_an_import_takes_back_is_answered_again(home_daemon: Daemon) -> None:
    daemon = home_daemon.start("--session-idle-s", "0")
    daemon.deploy(COUNT, config_json=DEAD, key=["a"])
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 13]) == [1]
    mended = put_image(daemon.home, COUNT.replace("== 13", "== 0"), version="2", key=["a"])
    assert list(daemon.api.update("d", "2", mended))[-1].phase == "done"
    daemon.api.replay_dead_letters("d", everything=True)
    assert Attempt.at_node(daemon.api, "d", "s", 1, 2).run([1]) == [2, 1]
    assert [d.replay for d in daemon.api.dead_letters("d")] == ["answered in epoch 1"]
    imported(daemon, "s", {1: 1}, 0, replace=True)
    assert Attempt.at_node(daemon.api, "d", "s", 1, 3, run="r2").run([1]) == [2, 1]
    assert Attempt.at_node(daemon.api, "d", "s", 2, 4, run="r2").run([13]) == [2]
    assert list(daemon.api.dead_letters("d")) == []


def test_letters_of_timers_and_of_batch_jobs_are_not_sent_again(daemon: Daemon) -> None:
    timed = {"input": {"a": "int64", "t": "timestamp[us]"}, "event_time": {"column": "t"}}
    daemon.deploy(LATE, config_json=DEAD, key=["a"], **timed)
    for epoch in range(2):
        Attempt.at_node(daemon.api, "d", "s", epoch, epoch + 1).run([1], 10.0 * epoch)
    Attempt.at_node(daemon.api, "d", "s", 2, 3).run([])
    [timers] = daemon.api.dead_letters("d", whole=True)
    assert json.loads(timers.event)["key"] == 1
    with pytest.raises(Conflict, match="is a timer's: its time has come and gone, so it cannot be sent again"):
        daemon.api.replay_dead_letters("d", [timers.id])
    reply = daemon.api.replay_dead_letters("d", everything=True)
    assert (reply.waiting, reply.timers) == (0, 1), "of all, timers are left out"

    assert Attempt.at_node(daemon.api, "d", "job", 0, 1, job=True).run([1, 13], 0.0) == [1]
    [jobs] = (d for d in daemon.api.dead_letters("d") if d.session == "job")
    with pytest.raises(Conflict, match="belongs to session job, which is over"):
        daemon.api.replay_dead_letters("d", [jobs.id])


# Version 2, with another form of state: accepts 13, and fails on 17.
NEWER = COUNT.replace('"n"', '"m"').replace("== 13", "== 17") + "    def migrate(self, old, from_version): return {'m': old['n']}\n"


class Updated:
    """Version 1 has left a dead letter, event 13 of epoch 0; version 2 has taken over and can still be rolled back."""

    def __init__(self, daemon: Daemon, policy: str = "dead-letter") -> None:
        self._daemon, self._epoch = daemon, 0
        self.former = daemon.deploy(COUNT, config_json=json.dumps({"policy": policy}), key=["a"])
        self.run([1, 13] if policy == "dead-letter" else [1])
        newer = put_image(daemon.home, NEWER, version="2", key=["a"], state_version=1, migrates_from=[0])
        assert list(daemon.api.update("d", "2", newer))[-1].phase == "done"

    def run(self, events: list[int]) -> list[int]:
        self._epoch += 1
        return Attempt.at_node(self._daemon.api, "d", "s", self._epoch - 1, self._epoch).run(events)

    def rollback(self) -> Any:
        """Roll back; return the last step."""
        return list(self._daemon.api.update("d", "1", self.former))[-1]

    def letters(self) -> list[tuple[int, int]]:
        """Return (epoch, event) of all dead letters."""
        return sorted((d.epoch, json.loads(d.event)["a"]) for d in self._daemon.api.dead_letters("d", whole=True))


def test_a_dropped_letter_does_not_come_back_with_the_version_that_made_it(daemon: Daemon) -> None:
    updated = Updated(daemon)
    assert updated.run([1, 13, 17]) == [2, 1]
    assert updated.letters() == [(0, 13), (1, 17)]
    with pytest.raises(Conflict, match="can still be rolled back"):
        daemon.api.replay_dead_letters("d", everything=True)
    assert daemon.api.drop_dead_letters("d", everything=True) == 2
    assert updated.rollback().phase == "done"
    assert updated.run([13, 17]) == [2]
    assert updated.letters() == [(1, 13), (2, 13)]  # from the events that the former version has processed since


def test_an_answered_letter_that_is_dropped_within_the_window_stays_in_the_state_of_the_version_that_comes_back(daemon: Daemon) -> None:
    mended = COUNT.replace("== 13", "== 0")
    former = daemon.deploy(COUNT, config_json=DEAD, key=["a"])
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 13]) == [1]
    former = put_image(daemon.home, mended, version="1b", key=["a"])
    assert list(daemon.api.update("d", "1b", former))[-1].phase == "done"
    daemon.api.replay_dead_letters("d", everything=True)
    newer = put_image(daemon.home, NEWER, version="2", key=["a"], state_version=1, migrates_from=[0])
    assert list(daemon.api.update("d", "2", newer))[-1].phase == "done"
    assert Attempt.at_node(daemon.api, "d", "s", 1, 2).run([1]) == [2, 1]
    assert [d.replay for d in daemon.api.dead_letters("d")] == ["answered in epoch 1"]
    daemon.api.drop_dead_letters("d", everything=True)
    assert list(daemon.api.update("d", "1b", former))[-1].phase == "done"
    assert Attempt.at_node(daemon.api, "d", "s", 2, 3).run([13]) == [2]
    assert list(daemon.api.dead_letters("d")) == []


def test_a_rollback_to_a_version_that_fails_on_what_was_answered_is_refused_with_the_event(daemon: Daemon) -> None:
    updated = Updated(daemon, "fail")
    assert updated.run([1, 13]) == [2, 1]
    refused = updated.rollback()
    assert refused.phase == "failed"
    assert "t@1 fails on events that have been answered since the update, in epoch 1 of session s" in refused.detail
    assert "ValueError: unlucky" in refused.detail
    assert updated.run([1, 13]) == [3, 2]
    assert daemon.slot().version == "2"


def test_a_large_event_travels_whole(daemon: Daemon, lane: Open) -> None:
    source = "from udo_runtime import operator\n@operator\ndef run(batch): raise ValueError('always')\n"
    daemon.deploy(source, config_json=DEAD, input={"a": "string"})
    caller = lane()
    caller.send(["x" * (5 << 20)])  # type: ignore[list-item]
    caller.receive()
    [letter] = daemon.api.dead_letters("d", whole=True)
    assert len(letter.arrow) > 5 << 20
