"""The usage of deployments is counted once, across former owners, restarts of the node manager, and queries."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner

from node_manager.control import metering
from node_manager.control.metering import Meter
from node_manager.control.monitor import Monitor
from node_manager.manager import Manager
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from tests.support.keyed_node import COUNT, KEYED, imported
from udo_cli.commands.usage import summed
from udo_cli.exits import ExitCode
from udo_cli.main import cli
from udo_protocol.node.api import NodeClient
from udo_protocol.registry.wanted import WantedDeployment

Open = Callable[..., Lane]


def counted(events: float, cpu_s: float = 0.0) -> dict[str, float]:
    return {"events_in": events, "events_out": 2 * events, "bytes_in": 100 * events, "bytes_out": 50 * events, "cpu_s": cpu_s}


def test_what_an_instance_counts_is_added_once_whoever_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    meter = Meter(path)
    for events, cpu_s in ((10, 1.0), (10, 1.0), (25, 1.5)):
        meter.count("d", 0, "i", counted(events, cpu_s), at=1000.0)
    meter.save(0.0)
    meter.count("d", 0, "i", counted(30, 2.0), at=1001.0)  # not saved any more

    again = Meter(path)
    again.load()
    again.count("d", 0, "i", counted(40, 2.5), at=1002.0)  # the instance was adopted
    again.count("d", 0, "j", counted(5, 0.5), at=1003.0)
    assert again.former("d", 0, "j") == ["i"] and again.former("d", 0, "i") == ["j"] and again.former("d", 1, "j") == []
    again.count_former("i", counted(42), at=1004.0)  # its last counts; its processor time is no longer known

    used = again.usage()["d"]
    assert (used.events_in, used.events_out, used.bytes_in, used.bytes_out, used.cpu_s) == (47, 94, 4700, 2350, 3.0)
    assert (used.since, used.until) == (1000.0, 1004.0)


def test_a_former_owner_is_read_for_a_while_and_one_of_a_slot_that_has_gone_is_not(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "usage.json")
    for instance in ("i", "j"):
        meter.count("d", 0, instance, counted(1), at=0.0)
    meter.count("e", 0, "k", counted(1), at=0.0)
    for _ in range(metering.FORMER_LOOKS):
        assert meter.former("d", 0, "j") == ["i"]
        meter.count_former("i", {}, at=0.0)
    assert meter.former("d", 0, "j") == []
    meter.gone([("d", 0)])
    assert meter.former("e", 0, "") == [] and set(meter.usage()) == {"d", "e"}


def test_state_counts_for_as_long_as_it_was_seen_by_query(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "usage.json")
    assert meter.state_due_s(100.0) == 0.0, "nothing is known of the time before"
    assert meter.state_due_s(110.0) is None
    assert meter.state_due_s(136.0) == 36.0
    assert meter.state_due_s(10_000.0) == 60.0, "the node manager stood still"
    meter.hold("d", {"q": 7200, "r": 0}, 30.0, at=0.0)
    meter.hold("d", {"q": 7200, "r": 3600}, 60.0, at=0.0)
    used = meter.usage()["d"]
    assert used.queries == {"q": 180.0, "r": 60.0} and used.state_byte_hours == 240.0


def test_the_state_of_real_sessions_is_metered(manager: Manager, api: NodeClient, tmp_path: Path) -> None:
    manager.deploy(WantedDeployment("d", "t", "1", put_image(manager.settings.home, COUNT, **KEYED)), 30)
    imported(SimpleNamespace(api=api), "q", {1: 5, 2: 7}, 0, keys=2, bytes=4096)  # type: ignore[arg-type]
    [session] = api.sessions("d").sessions
    meter = Meter(tmp_path / "usage.json")
    monitor = Monitor(manager.servers, manager.driver, manager.deployments, meter, 10.0)
    for at_s in (0.0, 36.0, 72.0):
        monitor.look(at_s)
    monitor.stop()
    assert session.bytes == 4096
    assert meter.usage()["d"].queries == {"q": session.bytes * 72 / 3600}


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(metering, "KEPT_DEPLOYMENTS", 3)
    monkeypatch.setattr(metering, "KEPT_QUERIES", 2)
    meter = Meter(tmp_path / "usage.json")
    for i in range(5):
        meter.count(f"d{i}", 0, f"i{i}", counted(1), at=float(i))
    assert set(meter.usage()) == {"d2", "d3", "d4"}
    for i in range(5):
        meter.hold("d4", {f"q{i}": 3600}, 1.0, at=9.0)
    used = meter.usage()["d4"]
    assert len(used.queries) == 2 and "q4" in used.queries and used.state_byte_hours == 5.0


def test_sums_over_nodes() -> None:
    figures = {"events_in": 1, "events_out": 2, "bytes_in": 3, "bytes_out": 4, "cpu_s": 0.5, "state_byte_hours": 6.0}
    told = [
        {"deployment": "d", "node": node, "since": since, "until": since + 1, **figures, "queries": {"q": 6.0}}
        for node, since in (("a", 5.0), ("b", 3.0))
    ]
    [found] = summed(told)
    assert (found["since"], found["until"], found["events_in"], found["cpu_s"]) == (3.0, 6.0, 2, 1.0)
    assert found["queries"] == [{"session": "q", "state_byte_hours": 12.0}] and [n["node"] for n in found["nodes"]] == ["a", "b"]


def test_a_deployments_usage_is_exact_over_a_dead_owner_and_a_restart_and_outlives_it(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(add(1))
    caller = lane()

    def used() -> Any:
        return next((d for d in daemon.api.usage("d").deployments), None)

    def ask(times: int) -> None:
        for _ in range(times):
            caller.send([1, 2, 3])
            caller.receive()

    def counts(events: int) -> None:
        wait_until(lambda: bool(used()) and used().events_in == events, 30, f"{events} events to be metered")

    ask(10)
    counts(30)
    os.kill(daemon.slot().pid, signal.SIGKILL)
    wait_until(lambda: daemon.slot().restarts == 1 and daemon.slot().state == "owner", 30, "the next owner")
    ask(5)
    counts(45)
    daemon.kill()
    ask(5)  # while there is no node manager
    daemon.start()
    counts(60)
    assert used().events_out == 60 and used().bytes_in > 60 * 8 and used().bytes_out > 60 * 8
    assert 0 < used().cpu_s < 600 and 0 < used().since <= used().until

    daemon.api.undeploy("d")
    node = ["--node", str(daemon.home / "node.sock")]
    [row] = json.loads(CliRunner().invoke(cli, ["usage", "d", "--json", *node]).output)["deployments"]
    assert (row["events_in"], row["nodes"][0]["node"]) == (60, "n1")
    shown = CliRunner().invoke(cli, ["usage", *node])
    assert shown.exit_code == ExitCode.OK and "60" in shown.output
    gone = CliRunner().invoke(cli, ["usage", "nothing", *node])
    assert gone.exit_code == ExitCode.NOT_FOUND
