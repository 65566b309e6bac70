"""A node that follows a registry of two processes, one of which is stopped for a time before the other one is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane, add
from tests.registry.conftest import image
from tests.support.cluster import SCHEMAS
from tests.support.registry_pair import Pair

pytestmark = pytest.mark.long


def test_a_node_goes_on_with_the_other_process_and_updates_reach_it(tmp_path: Path, postgresql: Callable[[str], str]) -> None:
    pair = Pair(tmp_path, postgresql("followed"))
    node, client = Daemon(tmp_path / "home"), pair.client(0, 1)
    node.start("--registry", ",".join(pair.urls), "--token-file", str(pair.shared / "token"))
    answers, over = list[int](), threading.Event()
    first, second = (_processes(pair, name) for name in "ab")
    try:
        for version, plus in (("1", 1), ("2", 100)):
            image("t", version, add(plus), **SCHEMAS).push(client, tmp_path)
        client.deploy("d", "t", "1")
        wait_until(lambda: [n["state"] for n in client.deployment("d")["nodes"]] == ["answering"], 30, "version 1 to answer")
        lane = Lane(node.api, "d", "events")
        answers.append(lane.ask(0))
        asking = threading.Thread(target=lambda: [answers.append(lane.ask(0)) for _ in iter(over.is_set, True)])
        asking.start()
        try:
            _signal(first, signal.SIGSTOP)
            other = pair.client(1)
            assert list(other.update("d", "2", timeout_s=bound(60)))[-1]["phase"] == "done"
            assert [n["live"] for n in other.nodes()] == [True]
            wait_until(lambda: answers[-1] == 100, 30, "version 2's answers")
            _signal(first, signal.SIGCONT)
            _signal(second, signal.SIGKILL)
            wait_until(lambda: not any(map(psutil.pid_exists, second[1:])), 30, "the end of the other process's worker")
            pair.running["b"].process.wait(bound(30))
            assert list(pair.client(1, 0).rollback("d", timeout_s=bound(60)))[-1]["phase"] == "done"
            wait_until(lambda: answers[-1] == 1, 30, "version 1's answers")
        finally:
            over.set()
            asking.join(bound(30))
        changes = [now for before, now in zip(answers, answers[1:], strict=False) if before != now]
        assert answers[0] == 1 and changes == [100, 1]
        lane.conn.close()
    finally:
        _signal(first, signal.SIGCONT)
        node.stop()
        pair.stop()


def _processes(pair: Pair, name: str) -> list[int]:
    """Return the process ids of the registry's master and its worker."""
    master = psutil.Process(pair.running[name].process.pid)
    return [master.pid, *(child.pid for child in master.children())]


def _signal(pids: list[int], what: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)
