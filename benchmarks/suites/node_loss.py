"""The time from the loss of one of three nodes to the next answer of a keyed query whose slots have replicas, and lost or doubled events.

A node is killed with its disk in the middle of an epoch, or stopped between two epochs as if cut off: a task that begins then finds the
node silent. (A task already under way would fail only when its wait for an answer ends, after 75 s, like Spark's own time-outs.) Each
time the epoch is retried, as by Spark, until it is complete; then the node comes back, empty or not, and becomes a replica.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.bringup import say
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from tests.conftest import wait_until
from tests.support.node_query import COUNT, KEYED, Query
from tests.support.nodes import Nodes, nodes
from udo_protocol.errors import UdoError, UsageError

NODES = "abc"
SLOTS = 3
KILLED, CUT_OFF = "kill_to_answer_ms", "partition_to_answer_ms"
_TEXTS = {KILLED: "killed with its disk in the middle of an epoch", CUT_OFF: "cut off between two epochs"}
_STUCK_S = 120.0


@dataclass(frozen=True)
class Times:
    """ms of an epoch with a loss."""

    p50: float
    max: float


@dataclass(frozen=True)
class Median:
    """ms of an epoch without one."""

    p50: float


@dataclass(frozen=True)
class Figures:
    """All losses; `runs` counts them."""

    kill_to_answer_ms: Times
    partition_to_answer_ms: Times
    runs: int
    lost: int
    duplicated: int
    epochs: int
    epoch_ms: Median
    driver: str


class Loss:
    """One query, and the nodes that it loses."""

    def __init__(self, cluster: Nodes, seed: int) -> None:
        self._cluster, self._query = cluster, Query(cluster, f"node loss {seed}")
        self.wrong = Counter[str]()
        self.epochs = 0

    def settled(self) -> None:
        """Wait until each slot has a replica again."""

        def whole() -> bool:
            copies = self._cluster.client.deployment("count")["placement"]["replication"]
            return all(len(held) == 1 for held in copies["counted"])

        wait_until(whole, _STUCK_S, "all slots to have a replica")
        for node in NODES:
            wait_until(partial(self._cluster.offers, node, "count"), _STUCK_S, f"node {node} to know where the slots are")

    def epoch(self, asks: str, lose: Any = None) -> float:
        """Run an epoch by tasks that ask node `asks`; call `lose` after its first events. Return the seconds from then to its answers."""
        batches, expected = self._query.drawn()
        job, since = self._query.job, time.perf_counter()
        job.node, job.wait_s = self._cluster.address(asks), 60

        def events() -> Iterator[list[int]]:
            nonlocal lose, since
            for batch in batches:
                yield batch
                if lose is not None:
                    lost, lose, since = lose, None, time.perf_counter()
                    lost()

        answers = None
        while answers is None:
            try:
                answers = job.epoch(self.epochs, events())
            except UdoError as e:
                if not e.retry or time.perf_counter() - since > _STUCK_S:
                    raise InvalidRun(f"epoch {self.epochs}: {type(e).__name__}: {e}") from e
        took_s = time.perf_counter() - since
        self.epochs += 1
        for answer, count in zip((b % 1000 for b in answers), expected, strict=True):
            self.wrong["lost"] += max(count - answer, 0)
            self.wrong["duplicated"] += max(answer - count, 0)
        return took_s

    def killed(self, node: str, asks: str) -> float:
        """Kill the node with its disk in the middle of an epoch, then start an empty one in its place."""
        took_s = self.epoch(asks, lambda: self._cluster.lose(node, disk=True))
        self._cluster.start(node)
        return took_s

    def cut_off(self, node: str, asks: str) -> float:
        """Stop all processes of the node during an epoch, then resume them."""
        daemon = self._cluster.daemons[node]
        assert daemon.process is not None
        there = [daemon.process.pid, *(p.pid for p in daemon.processes())]
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            return self.epoch(asks)
        finally:
            for pid in reversed(there):
                with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                    os.kill(pid, signal.SIGCONT)


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the whole suite; each time the node of another slot is lost. UsageError with a driver other than that of its nodes."""
    if driver != "process":
        raise UsageError(f"--driver {driver}: the nodes of this benchmark run their instances as processes")
    times = 1 if quick else 10
    found: dict[str, list[float]] = {KILLED: [], CUT_OFF: []}
    normal: list[float] = []
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    try:
        with nodes(top, *NODES, listening=NODES) as cluster:
            cluster.deploy("count", COUNT.format(version=1), slots=SLOTS, replicas=1, **KEYED)
            loss = Loss(cluster, seed)
            for turn in range(times):
                for kind, lose in ((KILLED, loss.killed), (CUT_OFF, loss.cut_off)):
                    loss.settled()
                    normal += [loss.epoch(node) for node in NODES]
                    node = cluster.client.deployment("count")["placement"]["nodes"][turn % SLOTS]  # one that has a slot
                    asks = next(other for other in NODES if other != node)
                    found[kind].append(lose(node, asks))
                    say(f"{turn + 1} of {times}: node {node} {_TEXTS[kind]}, {found[kind][-1]:.2f} s to the epoch's answers")
            loss.settled()
            loss.epoch("a")
    finally:
        shutil.rmtree(top, ignore_errors=True)
    if sum(loss.wrong.values()):
        raise InvalidRun(f"events were lost or counted twice: {dict(loss.wrong)}")
    killed, cut_off = (Times(_ms(statistics.median(found[kind])), _ms(max(found[kind]))) for kind in (KILLED, CUT_OFF))
    usual = Median(_ms(statistics.median(normal)))
    return Figures(killed, cut_off, 2 * times, loss.wrong["lost"], loss.wrong["duplicated"], loss.epochs, usual, driver)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    losses = {KILLED: f.kill_to_answer_ms, CUT_OFF: f.partition_to_answer_ms}
    rows = [[_TEXTS[kind], f"{ms.p50 / 1000:.2f}", f"{ms.max / 1000:.2f}"] for kind, ms in losses.items()]
    remark = (
        f"Three nodes on one machine, {SLOTS} slots with a replica each; {f.runs} losses in {f.epochs} epochs, events "
        f"lost: {f.lost}, counted twice: {f.duplicated}. An epoch without a loss: {f.epoch_ms.p50:.0f} ms. A "
        "node is suspected 2 s after its last heartbeat."
    )
    return [Section("Loss of a node", ("a node is", "to the epoch's answers, median, s", "longest, s"), rows, remark)]
