"""Measures the delays to the registry's other nodes, by small calls between node managers, and remembers how busy they last were, and the
load of the key groups of deployments over nodes.

A delay is the round trip of gRPC's health check on an open connection, the shortest of a few: the cost of a call apart from its work. Nodes
that do not listen for other hosts, or do not answer, are no neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from math import inf
from threading import Event
from typing import Any

from elasticity.scaling.model import Host
from node_manager.deployments.across import Across
from udo_protocol import supervised
from udo_protocol.errors import NodeAway

EVERY_S = 10.0
# The same while no neighbour is known: the registry gives addresses a moment after the start.
_FIRST_S = 1.0
_TRIES = 3
_TIMEOUT_S = 1.0
_DIGITS = 3
# Loads of key groups count for this long: the registry sends them every few seconds.
_LOADS_S = 10.0


class Neighbours:
    """See the module. Methods may be called from any thread."""

    def __init__(self, across: Across, every_s: float = EVERY_S) -> None:
        self._across, self._every_s = across, every_s
        self._over = Event()
        self._delays_ms: dict[str, float] = {}
        self._hosts: dict[str, tuple[float, int]] = {}  # as the registry last said: use, room
        self._loads: tuple[float, Mapping[str, Any]] = (-inf, {})  # when the registry last said it; deployment -> {nodes, events}

    def start(self) -> None:
        """Start to measure."""
        supervised.keep("neighbours", self._run, self._over)

    def stop(self) -> None:
        """End."""
        self._over.set()

    @property
    def delays_ms(self) -> Mapping[str, float]:
        """Round trip to each node that answers."""
        return dict(self._delays_ms)

    def told(self, hosts: Mapping[str, Mapping[str, float]], loads: Mapping[str, Any]) -> None:
        """Remember the registry's figures of all nodes: {use, room}; and of deployments over nodes: {nodes, events}."""
        self._hosts = {name: (float(h["use"]), int(h["room"])) for name, h in hosts.items()}
        self._loads = time.monotonic(), loads

    def events(self, deployment: str, nodes: Collection[str]) -> tuple[int, ...] | None:
        """The events of each key group lately, over all these nodes; None if they are not known of each."""
        at_s, loads = self._loads
        found = loads.get(deployment)
        if found is None or time.monotonic() - at_s > _LOADS_S or not set(nodes) <= set(found["nodes"]):
            return None
        return tuple(map(int, found["events"]))

    def around(self, host: Host) -> tuple[Host, ...]:
        """`host`, this node, with its delays, followed by the neighbours whose delay and figures are both known."""
        delays = {name: ms for name, ms in self._delays_ms.items() if name in self._hosts}
        others = (Host(name, *self._hosts[name], {}) for name in sorted(delays))
        return (Host(host.name, host.use, host.room, delays), *others)

    def measure(self) -> None:
        """Measure all nodes whose address the registry knows."""
        found = {}
        for node in self._across.peers():
            if self._over.is_set():
                return
            if (ms := self._delay_ms(node)) is not None:
                found[node] = ms
        self._delays_ms = found

    def _delay_ms(self, node: str) -> float | None:
        try:
            client = self._across.connect(node)
        except NodeAway:
            return None
        if not client.healthy(_TIMEOUT_S):  # the first call also connects
            return None
        took = []
        for _ in range(_TRIES):
            began = time.perf_counter()
            if not client.healthy(_TIMEOUT_S):
                return None
            took.append(1000 * (time.perf_counter() - began))
        return round(min(took), _DIGITS)

    def _run(self) -> None:
        while not self._over.is_set():
            self.measure()
            self._over.wait(self._every_s if self._delays_ms else min(self._every_s, _FIRST_S))
