"""Modes off, advise and auto on a real node: a real load scales a deployment up and its end scales it down; the journal says all of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elasticity.scaling import journal
from elasticity.scaling.journal_rows import rows_of
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, add
from tests.support import cluster
from tests.support.callers import Callers, answers
from tests.support.cluster import Cluster
from udo_cli.commands.events import replayed
from udo_cli.exits import ExitCode
from udo_cli.main import cli
from udo_protocol.errors import Conflict, UsageError

SLOW = """
import time
from udo_runtime import operator
@operator
def run(batch):
    time.sleep(0.25)
    return {"b": [a + 1 for a in batch.column("a").to_pylist()]}
"""
WINDOW = 8
# The defaults, except for shorter times.
QUICK = {"confirm": 2, "calm": 3, "settle": 1, "token_s": 1.0, "reverse_s": 4.0}
AUTO = {"mode": "auto", "least": 1, "most": 3, "settings": QUICK}


def callers(daemon: Daemon) -> Callers:
    """Load through one lane after another in each of four threads; a lane sends all its frames at once; every answer is checked."""

    def once(thread: int, turn: int) -> int:
        came = answers(daemon.api, "d", f"load-{thread}-{turn}", list(range(WINDOW)))
        assert came == [[value + 1] for value in range(WINDOW)]
        return WINDOW

    return Callers(4, once)


@pytest.fixture
def quick(home: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose node decides every two seconds, and removes a slot one second after its last use."""
    with cluster.running(home, tmp_path / "registry", "--decide-s", "2", "--pinned-idle-s", "1") as c:
        yield c


def _own(c: Cluster) -> int:
    """Return the number of slots that get new lanes."""
    return len(c.node.api.signals("d").slots)


def _events(c: Cluster) -> list[dict[str, Any]]:
    return list(rows_of(c.node.api.decisions("d"), False))


@pytest.mark.long
def test_a_real_load_scales_up_its_end_scales_down_and_the_journal_replays(quick: Cluster) -> None:
    c = quick
    c.deploy(SLOW, elasticity=AUTO)
    with callers(c.node) as load:
        load.wait(lambda: _own(c) > 1, 60, "a second slot")
        load.more(50, "answers by several slots")
    assert load.failures == []
    assert 2 <= _own(c) <= 3
    wait_until(lambda: _own(c) == 1, 90, "one slot again")
    wait_until(lambda: all(e["result"] != "begun" for e in _events(c)), 20, "the last step to be written down")

    steps = [e for e in _events(c) if e["result"] != "declined"]
    kinds = [e["kind"] for e in steps]
    assert {e["result"] for e in steps} == {"done"} and {e["mode"] for e in steps} == {"auto"}
    assert all(1 <= e["slots"] <= 3 for e in steps) and steps[-1]["slots"] == 1
    assert kinds == sorted(kinds, reverse=True), f"up under load, down afterwards, no turn between: {kinds}"
    found = replayed(c.node.api.decisions("d"))
    assert found["same"] and found["decisions"] > len(steps) and found["segments"] == 1
    assert c.client.deployment("d")["slots"] == 1, "the registry was not needed for it"

    node = ["--node", str(c.node.home / "node.sock")]
    text = CliRunner().invoke(cli, ["events", "d", *node]).output
    assert "scale out from 1 to 2" in text and "done" in text and "load " in text
    shown = CliRunner().invoke(cli, ["events", "--replay", *node])
    assert shown.exit_code == ExitCode.OK and "all come out the same" in shown.output


@pytest.mark.long
def test_whatever_is_decided_and_whoever_dies_every_lane_is_answered_once_in_order(quick: Cluster) -> None:
    """The policy is the one without guards, with its most nervous settings."""
    c, nervous = quick, {"token_s": 0.1, "capacity": 4, "reverse_s": 0}
    c.deploy(SLOW, elasticity={"mode": "auto", "policy": "accept_all", "most": 4, "settings": nervous})
    for cycle in (1, 2):
        with callers(c.node) as load:
            load.wait(lambda: _own(c) > 2, 60, "three slots")  # noqa: B023
            pids = [s.pid for s in c.node.api.status().slots if s.deployment == "d" and s.pid]
            with contextlib.suppress(ProcessLookupError):  # it has just gone
                os.kill(pids[cycle % len(pids)], signal.SIGKILL)
            load.more(40, "answers after a death")
        assert load.failures == [], load.failures
        wait_until(lambda: _own(c) == 1, 90, "one slot again")
    kinds = [e["kind"] for e in _events(c) if e["result"] in ("done", "begun")]
    assert kinds.count("scale_out") >= 4 and kinds.count("scale_in") >= 4
    assert replayed(c.node.api.decisions("d"))["same"]


@pytest.mark.long
def test_a_number_that_was_decided_stays_over_restarts_until_another_one_is_asked_for(quick: Cluster) -> None:
    c = quick
    c.deploy(add(1), elasticity={**AUTO, "least": 2})
    served = lambda: [s.state for s in c.node.api.status().slots if s.deployment == "d"]  # noqa: E731
    wait_until(lambda: served() == ["owner"] * 2, 60, "the least number of slots")
    before = {(s.slot, s.pid) for s in c.node.api.status().slots}
    c.node.kill()
    c.start_node()
    wait_until(lambda: c.state()[0] == "answering", 30, "the node to report")
    # On a busy machine the controller may have added a third slot.
    assert before <= {(s.slot, s.pid) for s in c.node.api.status().slots}, "the registry still says one"

    c.client.scale("d", 3)
    wait_until(lambda: _own(c) == 3, 30, "the number that was asked for")
    c.client.scale("d", elasticity={"mode": "advise"})
    c.client.scale("d", 1)
    wait_until(lambda: _own(c) == 1 and c.state()[0] == "answering", 30, "one slot")
    assert c.client.deployment("d")["elasticity"]["mode"] == "advise"
    assert c.lane().ask(1) == 2


@pytest.mark.long
def test_without_a_mode_decisions_are_recorded_only_and_off_ends_them(quick: Cluster) -> None:
    c = quick
    c.deploy(add(1))
    wait_until(lambda: len(list(rows_of(c.node.api.decisions("d"), True))) > 1, 30, "decisions")
    assert {row["mode"] for row in rows_of(c.node.api.decisions("d"), True)} == {"advise"}
    pid = c.node.slot().pid
    c.client.scale("d", elasticity={"mode": "off"})
    wait_until(lambda: c.state()[0] == "answering", 30, "the node to know")
    count = lambda: sum(len(part.lines) for part in c.node.api.decisions("d"))  # noqa: E731
    seen_s = c.node.api.signals().watched_s
    wait_until(lambda: c.node.api.signals().watched_s > seen_s + 2, 20, "a round that may have been under way to be over")
    there = count()
    c.client.scale("d", 2)
    wait_until(lambda: _own(c) == 2 and not any(s.missing for s in c.node.api.signals("d").slots), 30, "figures of two slots")
    assert count() == there and c.node.slot().pid == pid, "no instance was replaced for it"


def test_a_node_without_a_registry_takes_the_mode_with_the_deployment(home_daemon: Daemon) -> None:
    daemon = home_daemon.start("--decide-s", "1")
    daemon.deploy(add(1), config_json=json.dumps({"elasticity": {"mode": "auto", "least": 3, "most": 3}}))
    wait_until(lambda: len(daemon.api.signals("d").slots) == 3, 30, "three slots")
    with pytest.raises(UsageError, match="expected a policy that comes with the package"):
        daemon.deploy(add(2), name="e", config_json=json.dumps({"elasticity": {"policy": "os:system"}}))
    written = lambda: journal.read_all(next(iter(daemon.api.decisions("d"))).lines)  # noqa: E731
    wait_until(lambda: bool(written()[2]), 30, "what became of the first decision")
    header, entries, done = written()
    assert header.about["deployment"] == "d" and entries[0].decision.granted[0].why == "at least 3"
    assert done[0].error == "" and done[0].replicas == 3
    node = ["--node", str(daemon.home / "node.sock")]
    gone = CliRunner().invoke(cli, ["events", "nothing", *node])
    assert gone.exit_code == ExitCode.NOT_FOUND and "no deployment 'nothing'" in gone.output


@pytest.mark.long
def test_an_edited_journal_is_noticed_by_its_replay(home_daemon: Daemon) -> None:
    daemon = home_daemon.start("--decide-s", "1")
    daemon.deploy(add(1), config_json=json.dumps({"elasticity": {"mode": "auto", "least": 2, "most": 2}}))
    wait_until(lambda: len(daemon.api.signals("d").slots) == 2, 30, "two slots")
    daemon.stop()
    [path] = (daemon.home / "journals" / "d").iterdir()
    path.write_text(path.read_text().replace('"replicas": 2, "gain"', '"replicas": 4, "gain"', 1))
    daemon.start("--decide-s", "1")
    node = ["--node", str(daemon.home / "node.sock")]
    shown = CliRunner().invoke(cli, ["events", "d", "--replay", "--json", *node])
    assert shown.exit_code == ExitCode.DIFFERENT
    found = json.loads(shown.output)
    assert [(d["number"], d["recorded"]["granted"][0]["replicas"], d["now"]["granted"][0]["replicas"]) for d in found["differing"]] == [
        (0, 4, 2)
    ]


@pytest.mark.long
def test_a_mode_is_changed_when_no_update_runs_and_the_audit_trail_names_it(cluster: Cluster) -> None:
    cluster.deploy(add(1))
    cluster.push("2", "import time\ntime.sleep(600)\n")
    events = cluster.client.update("d", "2", timeout_s=5)
    next(events)
    with pytest.raises(Conflict, match="being updated"):
        cluster.client.scale("d", elasticity={"mode": "auto"})
    assert list(events)[-1]["phase"] == "failed"
    cluster.client.scale("d", elasticity={"mode": "auto", "policy": "ds2", "settings": {"target_use": 0.5}})
    cluster.client.scale("d", elasticity={"policy": "fuzzy"})
    wish = cluster.client.deployment("d")["elasticity"]
    assert wish == {"mode": "auto", "policy": "fuzzy", "least": 1, "most": 0, "idle_after_s": 0.0, "settings": {}}
    rows = [row["detail"] for row in cluster.client.audit("d") if row["action"] == "scale"]
    assert rows == ["mode auto, policy fuzzy", "mode auto, policy ds2"]
