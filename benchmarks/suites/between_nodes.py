"""Moves of key groups between two nodes under load: the pause of their events, and the length of the move.

Two node managers on this host, each as if it were on a host of its own: with a state server each, over TLS. An open-loop client beside
the first one sends events of all key groups all the while; the groups move away and come back. `direct`: the state crosses after the
handover; `cpal`: most of it crosses before, and what changes meanwhile after it.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from benchmarks.harness.bringup import OPERATORS, say, wait_until
from benchmarks.harness.tables import Section
from benchmarks.loads.changes import Changes, Moved, Seen
from benchmarks.loads.keyed_load import KeyedLoad, rows_of_frame
from benchmarks.suites import update
from benchmarks.suites.migration import EVENTS, MOST_MB, QUICK_SIZES_MB, SIZES_MB, STRATEGIES
from tests.support.nodes import Nodes, nodes
from udo_protocol.errors import UdoError, UsageError
from udo_protocol.limits import KEY_GROUPS

NODES = ("a", "b")
# The number of moves there and back of each strategy, after a first one that is dropped.
COUNT, QUICK_COUNT = 5, 1
_STUCK_S = 120.0

_COUNT_HELP = f"Of each kind of move, there and back (default: {COUNT}, quick: {QUICK_COUNT})."
OPTIONS = [MOST_MB, click.option("--count", type=click.IntRange(1), default=None, help=_COUNT_HELP), EVENTS]


@dataclass(frozen=True)
class Figures:
    """By strategy and MB of state."""

    direct: dict[str, Moved]
    cpal: dict[str, Moved]
    normal_p99_ms: float
    moves: int
    events: int
    lost: int
    duplicated: int
    reordered: int
    rate: int
    driver: str


class OverNodes(Changes):
    """A deployment with a slot on each node and `mb` MB of state, all of it on the first node, and its load there."""

    def __init__(self, cluster: Nodes, mb: int, rate: int, seed: int) -> None:
        self.name, self._cluster, self._at = f"hoard{mb}", cluster, NODES[0]
        cluster.client.deploy(self.name, update.KEYED, "1", slots=len(NODES), over_nodes=True)
        wait_until(self._answering, _STUCK_S, "both nodes to answer")
        cards = max(mb * 1_000_000 // update.BLOB_BYTES, 1)
        super().__init__(KeyedLoad(cluster.address(NODES[0]), self.name, cards, update.BLOB_BYTES, rate, cluster.tls), seed)
        self.move("direct")
        say(f"filling {mb} MB of state")
        self.load.fill()

    def _answering(self) -> bool:
        there = self._cluster.client.deployment(self.name)["nodes"]
        return {n["node"] for n in there if n["state"] == "answering"} == set(NODES)

    def move(self, strategy: str) -> None:
        """Move all groups to the slot of the node `_at`; return when they are there."""
        api = self._cluster.daemons[self._at].api
        slot = next(s.slot for s in api.status().slots if s.deployment == self.name)
        for _ in api.move_groups(self.name, range(KEY_GROUPS), slot, strategy, _STUCK_S, self._at):
            pass

    def to_other(self, strategy: str) -> None:
        """Move all groups from the node that they are on to the other one."""
        self._at = NODES[1 - NODES.index(self._at)]
        self.move(strategy)

    def remove(self) -> None:
        """Remove the deployment, to make room for the next one."""
        self._cluster.client.undeploy(self.name, drop_state=True)

        def gone() -> bool:
            with suppress(UdoError):
                slots = (s for d in self._cluster.daemons.values() for s in d.api.status().slots)
                return all(s.deployment != self.name for s in slots)
            return False

        wait_until(gone, _STUCK_S, f"the end of {self.name}")


def run(*, quick: bool, driver: str, seed: int, most_mb: int | None = None, count: int | None = None, rate: int = update.RATE) -> Figures:
    """Run the whole suite; the seed determines the events. UsageError with a driver other than that of its nodes."""
    if driver != "process":
        raise UsageError(f"--driver {driver}: the nodes of this benchmark run their instances as processes")
    rows_of_frame(rate)
    count = count or (QUICK_COUNT if quick else COUNT)
    found: dict[str, dict[str, list[Seen]]] = {strategy: {} for strategy in STRATEGIES}
    events = 0
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    try:
        with nodes(top, *NODES, listening=NODES) as cluster:
            push(cluster)
            for mb in (mb for mb in (QUICK_SIZES_MB if quick else SIZES_MB) if mb <= (most_mb or mb)):
                deployed = OverNodes(cluster, mb, rate, seed)
                for at in range(count + 1):  # the first one warms up
                    for strategy in STRATEGIES:
                        both = [deployed.during(partial(deployed.to_other, strategy)) for _ in NODES]
                        if at:
                            found[strategy].setdefault(str(mb), []).extend(both)
                say(f"{mb} MB: {count} moves of each kind, there and back")
                deployed.judge()
                events += deployed.load.sent
                deployed.remove()
    finally:
        shutil.rmtree(top, ignore_errors=True)
    every = [s for cells in found.values() for of in cells.values() for s in of]
    return Figures(
        **{strategy: {mb: Moved.of(seen) for mb, seen in cells.items()} for strategy, cells in found.items()},
        normal_p99_ms=round(statistics.median(s.normal_p99_ms for s in every), 2),
        moves=len(every),
        events=events,
        lost=0,
        duplicated=0,
        reordered=0,
        rate=rate,
        driver=driver,
    )


def push(cluster: Nodes) -> None:
    """Push the operator with state of a given size."""
    directory = OPERATORS / update.KEYED
    manifest = tomllib.loads((directory / "operator.toml").read_text("utf-8"))
    source = (directory / f"{update.KEYED}.py").read_text("utf-8")
    more = {"entry": f"op:{manifest['entry'].partition(':')[2]}", "key": [manifest["key"]]}
    cluster.push(update.KEYED, "1", source, **{n: manifest[n] for n in ("input", "output", "limits")}, **more)


def sections(f: Figures) -> list[Section]:
    """The table of a run."""
    head = ("", *(f"{strategy}: {what}" for strategy in STRATEGIES for what in ("pause p50", "longest", "whole move p50")))
    rows = [
        [
            f"{int(mb):,} MB",
            *(f"{ms:.1f}" for m in (f.direct[mb], f.cpal[mb]) for ms in (m.pause_ms.p50, m.pause_ms.max, m.completion_ms.p50)),
        ]
        for mb in f.cpal
    ]
    remark = (
        f"{f.moves} moves of all key groups under {f.rate:,} events/s: {f.events:,} events, {f.lost} lost, {f.duplicated} duplicated, "
        f"{f.reordered} reordered. The 99th percentile of the latency before a move: {f.normal_p99_ms:.1f} ms."
    )
    return [Section("Pause of key groups that move to another node, by state (ms)", head, rows, remark)]
