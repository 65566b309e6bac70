"""Acknowledged epochs are on disk: the state server's settings, the calls that wait for its disk, and the state after kill -9."""

from __future__ import annotations

import contextlib
import os
import re
import signal

from node_manager.servers import access
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon
from tests.support.attempt import Attempt
from tests.support.keyed_node import COUNT, KEYED


def _waits(daemon: Daemon) -> int:
    """Return how often the state server was asked whether all writes are on the disk."""
    with contextlib.closing(access.connect(daemon.home, "state")) as state:
        found = re.search(r"cmdstat_waitaof:calls=(\d+)", bytes(state.call("INFO", "commandstats")).decode())
        return int(found[1]) if found else 0


def _kill_servers(daemon: Daemon) -> None:
    before = {s.role: s.pid for s in daemon.api.status().servers}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(s.pid not in (0, before[s.role]) for s in daemon.api.status().servers), 30, "both servers to be replaced")
    wait_until(lambda: daemon.slot().state == "owner", 30, "an owner")


def test_an_acknowledged_epoch_was_synced_to_the_disk_and_survives_the_kill_of_both_servers(home_daemon: Daemon) -> None:
    home_daemon.start("--session-idle-s", "0")
    home_daemon.deploy(COUNT, **KEYED)
    with contextlib.closing(access.connect(home_daemon.home, "state")) as state:
        told = dict(zip(*[iter(map(bytes, state.call("CONFIG", "GET", "append*")))] * 2, strict=True))
    assert (told[b"appendonly"], told[b"appendfsync"]) == (b"yes", b"always")
    for epoch in range(3):
        before = _waits(home_daemon)
        assert Attempt.at_node(home_daemon.api, "d", "q", epoch, epoch + 1).run([1, 2, 3]) == [epoch + 1] * 3
        assert _waits(home_daemon) > before, f"epoch {epoch} was acknowledged, and nobody asked whether it is on the disk"
    _kill_servers(home_daemon)
    assert Attempt.at_node(home_daemon.api, "d", "q", 3, 4).run([1, 2, 3]) == [4] * 3
