"""A deployment is scaled up and down at random and its owners are killed while clients come and go; an oracle checks every answer."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.node_manager.conftest import add
from tests.support import cluster
from tests.support.callers import Callers
from tests.support.cluster import Cluster
from udo_interface import connect

STEPS = 6
CLIENTS = 3
EVENTS = 60  # for each client, in frames of at most 8


@pytest.fixture
def idle_soon(home: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose node removes a slot half a second after its last use."""
    with cluster.running(home, tmp_path / "registry", "--pinned-idle-s", "0.5") as c:
        yield c


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_scaled_at_random_while_owners_die_every_lane_is_answered_once_in_order(idle_soon: Cluster, seed: int) -> None:
    c, orders = idle_soon, random.Random(seed)
    c.deploy(add(1), slots=2)
    done = []
    told: list[tuple[list[int], list[int]]] = []

    def once(thread: int, turn: int) -> int:
        first = thread * 1_000_000 + turn * EVENTS
        sent, came = list(range(first, first + EVENTS)), list[int]()
        with connect("d", node=str(c.node.home / "node.sock"), batch_events=8) as client:
            client.add_listener(lambda answer: came.append(answer["b"]))
            for a in sent:
                client.send({"a": a})
        told.append((sent, came))
        return EVENTS

    with Callers(CLIENTS, once) as load:
        for _ in range(STEPS):
            if (slots := orders.randint(1, 4)) and orders.random() < 0.6:
                c.client.scale("d", slots)
                done.append(slots)
            else:
                pids = [s.pid for s in c.node.api.status().slots if s.pid]
                if pids:
                    with contextlib.suppress(ProcessLookupError):  # its slot is already gone
                        os.kill(orders.choice(pids), signal.SIGKILL)
                done.append(0)
            load.more(2 * EVENTS - 1, "two more clients to be answered")
    assert not load.failures, load.failures
    assert 0 in done and any(done), done
    for sent, came in told:
        assert came == [a + 1 for a in sent], f"after {done}"
    c.client.scale("d", 1)
    wait_until(lambda: [s.slot for s in c.node.api.status().slots] == [0], 30, "the slots that are too many to go")
