"""Clients of a deployment that come and go during a disturbance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.conftest import Shell
from tests.support.callers import Callers
from udo_interface import connect

EVENTS = 10


@contextmanager
def traffic(platform: Shell, name: str) -> Iterator[list[tuple[int, int]]]:
    """Clients one after the other, with ten events each; the list of all (event, answer), in order."""
    told: list[tuple[int, int]] = []

    def once(_: int, turn: int) -> int:
        sent, came = [1000 * (EVENTS * turn + i) for i in range(EVENTS)], list[int]()
        with connect(name, node=str(platform.home / "node" / "node.sock")) as client:
            client.add_listener(lambda answer: came.append(answer["b"]))
            for a in sent:
                client.send({"a": a})
        told.extend(zip(sent, came, strict=True))
        return EVENTS

    with Callers(1, once) as clients:
        yield told
    assert not clients.failures, clients.failures
    assert all(b - b % 1000 == a for a, b in told), "lost, doubled or reordered"
