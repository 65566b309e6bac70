"""A deployment is scaled up and down at random and its owners are killed while clients come and go; an oracle checks every answer."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.node_manager.conftest import add
from tests.support import cluster
from tests.support.cluster import Cluster
from udo_interface import connect

STEPS = 6
CLIENTS = 3
EVENTS = 60  # of a client, in frames of at most 8


class Load:
    """Clients one after the other in threads of their own, each with a lane; what each one sent and got."""

    def __init__(self, node: str) -> None:
        self.told: list[tuple[list[int], list[int]]] = []
        self.failures: list[Exception] = []
        self._node, self._stop = node, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _run(self, number: int) -> None:
        try:
            for first in itertools.count(number * 1_000_000, EVENTS):
                if self._stop.is_set():
                    return
                came: list[int] = []
                with connect("d", node=self._node, batch_events=8) as client:
                    client.add_listener(lambda answer, came=came: came.append(answer["b"]))  # type: ignore[misc]
                    for a in range(first, first + EVENTS):
                        client.send({"a": a})
                self.told.append((list(range(first, first + EVENTS)), came))
        except Exception as e:
            self.failures.append(e)

    def progress(self, clients: int) -> None:
        """Wait until so many more clients have got all their answers."""
        wanted = len(self.told) + clients
        wait_until(lambda: len(self.told) >= wanted or bool(self.failures), 60, f"{clients} more clients to be answered")
        assert not self.failures, self.failures


@pytest.fixture
def idle_soon(home: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose node removes a slot that nobody uses after half a second."""
    with cluster.running(home, tmp_path / "registry", "--pinned-idle-s", "0.5") as c:
        yield c


@pytest.mark.parametrize("seed", [1, 2])
def test_scaled_at_random_while_owners_die_every_lane_is_answered_once_in_order(idle_soon: Cluster, seed: int) -> None:
    c, orders = idle_soon, random.Random(seed)
    c.deploy(add(1), slots=2)
    done = []
    with Load(str(c.node.home / "node.sock")) as load:
        for _ in range(STEPS):
            if (slots := orders.randint(1, 4)) and orders.random() < 0.6:
                c.client.scale("d", slots)
                done.append(slots)
            else:
                pids = [s.pid for s in c.node.api.status().slots if s.pid]
                if pids:
                    with contextlib.suppress(ProcessLookupError):  # its slot has just gone
                        os.kill(orders.choice(pids), signal.SIGKILL)
                done.append(0)
            load.progress(2)
    assert not load.failures, load.failures
    assert 0 in done and any(done), done
    for sent, came in load.told:
        assert came == [a + 1 for a in sent], f"after {done}"
    c.client.scale("d", 1)
    wait_until(lambda: [s.slot for s in c.node.api.status().slots] == [0], 30, "the slots that are too many to go")
