"""A few seeds of the chaos suite, whose faults must have taken place. For many seeds: python -m benchmarks exactly_once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from benchmarks.chaos import lanes, two_nodes
from benchmarks.chaos.carried import CARRIED, DROPPED
from benchmarks.chaos.changes import CHANGES
from benchmarks.chaos.controlled import BALANCED, SCALED_IN, SCALED_OUT
from benchmarks.chaos.faults import KILL, KILL_AT, WEIGHTS, weights_of
from benchmarks.chaos.kinds import CHAIN, HISTORY
from benchmarks.chaos.moves import SCALE, STRATEGIES, told
from benchmarks.chaos.node import NodeSetup
from benchmarks.chaos.runtimes import in_processes
from benchmarks.chaos.stops import INSTANCE, MANAGER, QUEUE, STATE, STOPPED
from node_manager.servers.binaries import find_server
from tests.conftest import bound, require
from tests.support.netns import Missing, network
from tests.support.under_fire import require_right_while_processes_change
from udo_interface.java import java_home
from udo_protocol.errors import Unavailable


@pytest.fixture(autouse=True)
def server() -> Iterator[None]:
    try:
        find_server(os.environ.get("UDO_SERVER"))
    except Unavailable as e:
        require("queue server", str(e))
    yield


def test_queries_under_fire_come_out_as_one_plain_process_says() -> None:
    befallen = {  # rarer faults need many seeds (python -m benchmarks exactly_once)
        "an instance killed": (KILL, KILL_AT),
        "a version changed": CHANGES,
        "a task lost": ("worker killed", "two attempts alive", "task failed after END"),
    }

    def missing(faults: Counter[str]) -> list[str]:
        return [what for what, kinds in befallen.items() if not any(faults[at] for at in faults if at.startswith(tuple(kinds)))]

    until = lanes.Until(10, lambda seeds, faults: seeds >= 2 and not missing(faults))
    outcome = lanes.run(range(40), NodeSetup(lanes.KINDS), until)
    assert not outcome.reports, "\n\n".join(outcome.reports.values())
    assert outcome.seeds >= 2
    assert not missing(outcome.faults), outcome.faults


@pytest.mark.long
def test_queries_under_fire_whose_operator_changes_its_process_come_out_as_one_plain_process_says(monkeypatch: pytest.MonkeyPatch) -> None:
    require_right_while_processes_change([in_processes(kind) for kind in (HISTORY, CHAIN)], monkeypatch)


@pytest.mark.long
def test_queries_whose_key_groups_move_under_fire_come_out_as_one_plain_process_says() -> None:
    befallen = [(told(strategy),) for strategy in STRATEGIES] + [(SCALE,), (CARRIED, DROPPED)]

    def missing(faults: Counter[str]) -> list[str]:
        return [kinds[0] for kinds in befallen if not any(faults[kind] for kind in kinds)]

    until = lanes.Until(25, lambda seeds, faults: seeds >= 3 and not missing(faults))
    outcome = lanes.run(range(60), NodeSetup(lanes.KINDS, slots=2), until, weights=weights_of(2, WEIGHTS) | {SCALE: 6.0})
    assert not outcome.reports, "\n\n".join(outcome.reports.values())
    assert outcome.seeds >= 3
    assert not missing(outcome.faults), outcome.faults


@pytest.mark.long
def test_queries_whose_deployments_are_balanced_and_scaled_all_the_time_by_themselves_come_out_as_one_plain_process_says() -> None:
    """The controllers' decisions must replay, too: one that does not is among the reports."""
    befallen = (BALANCED, SCALED_OUT, SCALED_IN)
    outcome = lanes.run(
        range(200),
        NodeSetup(lanes.KINDS, slots=2, auto=True),
        lanes.Until(12, lambda seeds, faults: seeds >= 3 and all(faults[kind] for kind in befallen)),
        weights={KILL: 3.0, KILL_AT: 3.0, **dict.fromkeys(CHANGES[:2], 2.0)},
    )
    assert not outcome.reports, "\n\n".join(outcome.reports.values())
    assert outcome.seeds >= 3
    assert all(outcome.faults[kind] for kind in befallen), outcome.faults


@pytest.mark.long
def test_queries_whose_platform_stands_still_come_out_as_one_plain_process_says() -> None:
    """Parts are stopped for 5 to 90 s; these times, and all time-outs, are scaled to a fifteenth."""

    def stops(faults: Counter[str]) -> int:
        return sum(faults[f"{part} {STOPPED}"] for part in (INSTANCE, QUEUE, STATE, MANAGER))

    until = lanes.Until(8, lambda _, faults: stops(faults) >= 3)
    outcome = lanes.run(range(40), NodeSetup(lanes.KINDS, scale=1 / 15), until, weights=WEIGHTS | {STOPPED: 20.0})
    assert not outcome.reports, "\n\n".join(outcome.reports.values())
    assert stops(outcome.faults) >= 3, outcome.faults


@pytest.mark.long
def test_queries_with_a_store_over_two_nodes_that_are_lost_with_their_disks_come_out_as_one_plain_process_says() -> None:
    try:
        with network("a"):
            pass
    except Missing as e:
        require("network namespaces", str(e))
    outcome = two_nodes.run(range(2), deadline_s=150)  # 10 s on a quiet machine
    assert not outcome.reports, "\n\n".join(outcome.reports.values())
    assert outcome.seeds == 2
    assert outcome.faults[two_nodes.MOVED], outcome.faults


@pytest.mark.long
def test_streaming_queries_under_fire_come_out_as_one_plain_process_says() -> None:
    """Run in a process of its own: it starts and stops a Spark application."""
    try:
        java_home()
    except Unavailable as e:
        require("java", str(e))
    seeds = ["--from", "0", "--seeds", "0", "--spark-seeds", "2", "--two-nodes-seeds", "0", "--stops", "0"]
    command = [sys.executable, "-m", "benchmarks", "exactly_once", *seeds, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=bound(500))
    assert done.returncode == 0, done.stderr[-20_000:]
    assert json.loads(done.stdout.splitlines()[-1])["on_spark"]["seeds"] == 2
