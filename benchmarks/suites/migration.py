"""Moves of key groups between two slots under load: the pause of their events, and the length of the move.

An open-loop client sends events of all key groups all the while. `direct`: the target slot reads the state after the handover; `cpal`: it
reads it ahead. Both are measured over sizes of the moved state, and over numbers of events since the source's last checkpoint. The paper's
CPA has no row of its own: within a node both slots can read a checkpoint, so that `direct` is CPA there. Also measured: the pause of live
updates for comparison, and a rebalance of half the groups, all at once against in rounds.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import click
import numpy as np

from benchmarks.harness.bringup import Platform, platform, say, wait_until
from benchmarks.harness.quantiles import Quantiles, quantiles
from benchmarks.harness.tables import Section
from benchmarks.loads.changes import SETTLE_S, Changes, Moved, Seen
from benchmarks.loads.keyed_load import KeyedLoad, rows_of_frame
from benchmarks.suites import update
from udo_cli.platform import plans
from udo_cli.platform.plans import SlotName
from udo_protocol.errors import UdoError
from udo_protocol.limits import KEY_GROUPS

STRATEGIES = ("direct", "cpal")
SIZES_MB, QUICK_SIZES_MB = (1, 10, 100, 1000), (1, 10)
REPLAYS, QUICK_REPLAYS = (10_000, 100_000, 1_000_000), (10_000,)
# The size of state at which the replays, the updates and the rebalance are measured.
BASE_MB = 10
# The number of moves of each strategy, after a first one that is dropped.
COUNT, QUICK_COUNT = 20, 2
REBALANCES, QUICK_REBALANCES = 5, 1
ROUND_GROUPS = 8
_MOVE_S = 120.0
# A row of a strategy's table: (MB moved, events since the checkpoint).
Cell = tuple[int, int]

MOST_MB = click.option("--most-mb", type=click.IntRange(1), default=None, help="Leave out states larger than this.")
EVENTS = click.option("--rate", type=click.IntRange(200), default=update.RATE, show_default=True, help="Events/s.")
OPTIONS = [
    MOST_MB,
    click.option("--count", type=click.IntRange(1), default=None, help=f"Of each kind of move (default: {COUNT}, quick: {QUICK_COUNT})."),
    EVENTS,
]


@dataclass(frozen=True)
class Strategy(Moved):
    """The moves by one strategy: at the usual size, by MB of state, and by events since the checkpoint."""

    by_state_mb: dict[str, Moved]
    by_replay_events: dict[str, Moved]


@dataclass(frozen=True)
class Rebalance:
    """A rebalance of half the groups, medians of the repetitions."""

    p99_ms: float
    worst_ms: float
    pause_ms: float
    seconds: float


@dataclass(frozen=True)
class Updates:
    """Live updates in the same run: the longest pause between answers, as of a move."""

    pause_ms: Quantiles
    updates: int


@dataclass(frozen=True)
class Figures:
    """By strategy, and a rebalance by how many groups move at a time."""

    direct: Strategy
    cpal: Strategy
    rebalance: dict[str, Rebalance]
    update: Updates
    normal_p99_ms: float
    moves: int
    events: int
    lost: int
    duplicated: int
    reordered: int
    rate: int
    driver: str


class Deployed(Changes):
    """A deployment with two slots on one node and `mb` MB of state, and its load."""

    def __init__(self, p: Platform, mb: int, rate: int, seed: int) -> None:
        self.name, self._p = f"hoard{mb}", p
        p.deploy(self.name, update.KEYED, slots=2)
        self.first, self.second = plans.where(p.node(), self.name, {})
        self.move(range(KEY_GROUPS), self.first, "direct")
        cards = max(mb * 1_000_000 // update.BLOB_BYTES, 1)
        super().__init__(KeyedLoad(p.node_socket, self.name, cards, update.BLOB_BYTES, rate), seed)
        say(f"filling {mb} MB of state")
        self.load.fill()

    def move(self, groups: Iterable[int], to: SlotName, strategy: str) -> None:
        """Move the groups; return when they are in the slot `to`."""
        for _ in self._p.node().move_groups(self.name, groups, int(to), strategy, _MOVE_S):
            pass

    def there_and_back(self, strategy: str) -> None:
        """Move all groups from the slot that they are in to the other one."""
        now = plans.where(self._p.node(), self.name, {})
        to = self.second if len(now[self.first]) == KEY_GROUPS else self.first
        self.move(range(KEY_GROUPS), to, strategy)

    def rebalance(self, under_way: int) -> None:
        """Move every second group to the second slot, at most `under_way` at a time."""
        node = self._p.node()
        planned = plans.rounds(dict.fromkeys(range(0, KEY_GROUPS, 2), self.second), plans.where(node, self.name, {}), under_way)
        for _ in plans.carry_out(node, self.name, planned, "cpal", _MOVE_S):
            pass

    def remove(self) -> None:
        """Remove the deployment, to make room for the next one."""
        with self._p.registry() as registry:
            registry.undeploy(self.name, drop_state=True)

        def gone() -> bool:
            with suppress(UdoError):
                return self.name not in {s.deployment for s in self._p.node().status().slots}
            return False

        wait_until(gone, _MOVE_S, f"the end of {self.name}")


def run(*, quick: bool, driver: str, seed: int, most_mb: int | None = None, count: int | None = None, rate: int = update.RATE) -> Figures:
    """Run the whole suite; the seed determines the events."""
    rows_of_frame(rate)
    count = count or (QUICK_COUNT if quick else COUNT)
    sizes = [mb for mb in (QUICK_SIZES_MB if quick else SIZES_MB) if mb <= (most_mb or mb)]
    moves: dict[str, dict[Cell, list[Seen]]] = {strategy: defaultdict(list) for strategy in STRATEGIES}
    updates: list[Seen] = []
    rebalances: dict[str, list[Seen]] = {"at_once": [], "rounds": []}
    events = 0
    with platform(driver) as p:
        for version in update.VERSIONS:
            p.push(update.KEYED, version)
        for mb in sizes:
            deployed = Deployed(p, mb, rate, seed)
            cells: list[Cell] = [(mb, 0)]
            if mb == BASE_MB or len(sizes) == 1:
                cells += [(mb, replay) for replay in (QUICK_REPLAYS if quick else REPLAYS)]
            for cell in cells:
                for at in range(count + 1):
                    for strategy in STRATEGIES:
                        seen = deployed.during(partial(deployed.there_and_back, strategy), cell[1])
                        if at:
                            moves[strategy][cell].append(seen)
                say(f"{mb} MB, {cell[1]:,} events since the checkpoint: {count} moves of each kind")
            if len(cells) > 1:
                updates = _updates(p, deployed, count)
                rebalances = _rebalances(deployed, QUICK_REBALANCES if quick else REBALANCES)
            deployed.judge()
            events += deployed.load.sent
            deployed.remove()
    return Figures(
        **{strategy: _told(cells, min(BASE_MB, sizes[-1])) for strategy, cells in moves.items()},
        rebalance={how: _rebalance(seen) for how, seen in rebalances.items()},
        update=Updates(quantiles([s.pause_ms for s in updates]), len(updates)),
        normal_p99_ms=round(float(np.median([s.normal_p99_ms for cells in moves.values() for of in cells.values() for s in of])), 2),
        moves=sum(len(of) for cells in moves.values() for of in cells.values()),
        events=events,
        lost=0,
        duplicated=0,
        reordered=0,
        rate=rate,
        driver=driver,
    )


def _updates(p: Platform, deployed: Deployed, count: int) -> list[Seen]:
    """Measure live updates of the same deployment, for comparison with moves; the first one is dropped."""
    found: list[Seen] = []
    for i in range(count + 1):
        served = {q.pid for q in p.processes()["instance"]}
        time.sleep(SETTLE_S)
        found.append(deployed.during(lambda i=i: update.one(p, update.VERSIONS[(i + 1) % 2], deployed.name)))  # type: ignore[misc]
        wait_until(lambda served=served: not served & _pids(p), update.WARM_TIMEOUT_S, "the end of the former instances")  # type: ignore[misc]
    return found[1:]


def _pids(p: Platform) -> set[int]:
    """The pids of all instances, including warm ones."""
    return {q.pid for part in ("instance", "warm") for q in p.processes().get(part, [])}


def _rebalances(deployed: Deployed, count: int) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {"at_once": [], "rounds": []}
    for _ in range(count):
        for how, under_way in (("at_once", KEY_GROUPS), ("rounds", ROUND_GROUPS)):
            deployed.move(range(KEY_GROUPS), deployed.first, "cpal")
            found[how].append(deployed.during(partial(deployed.rebalance, under_way)))
    return found


def _told(cells: dict[Cell, list[Seen]], base_mb: int) -> Strategy:
    """The figures of one strategy."""
    by_cell = {cell: Moved.of(seen) for cell, seen in cells.items()}
    return Strategy(
        **vars(by_cell[base_mb, 0]),
        by_state_mb={str(mb): told for (mb, replay), told in by_cell.items() if not replay},
        by_replay_events={str(replay): told for (mb, replay), told in by_cell.items() if mb == base_mb},
    )


def _rebalance(seen: list[Seen]) -> Rebalance:
    """The medians of the repetitions."""
    return Rebalance(
        p99_ms=round(float(np.median([s.p99_ms for s in seen])), 2),
        worst_ms=round(float(np.median([s.worst_ms for s in seen])), 2),
        pause_ms=round(float(np.median([s.pause_ms for s in seen])), 2),
        seconds=round(float(np.median([s.completion_ms for s in seen])) / 1000, 3),
    )


def sections(f: Figures) -> list[Section]:
    """The tables of the curves and of the rebalance."""
    head = ("", *(f"{strategy}: {what}" for strategy in STRATEGIES for what in ("pause p50", "p99", "whole move p50")))
    found = []
    for title, direct, cpal, unit in (
        ("Pause of moved key groups by state", f.direct.by_state_mb, f.cpal.by_state_mb, "MB"),
        ("Pause of moved key groups by events since the last checkpoint", f.direct.by_replay_events, f.cpal.by_replay_events, "events"),
    ):
        rows = [
            [
                f"{int(at):,} {unit}",
                *(f"{ms:.1f}" for m in (direct[at], cpal[at]) for ms in (m.pause_ms.p50, m.pause_ms.p99, m.completion_ms.p50)),
            ]
            for at in cpal
        ]
        found.append(Section(f"{title} (ms)", head, rows))
    pause = f.update.pause_ms
    found[-1] = Section(
        found[-1].title,
        head,
        found[-1].rows,
        f"{f.moves} moves of all key groups under {f.rate:,} events/s: {f.events:,} events, {f.lost} lost, "
        f"{f.duplicated} duplicated, {f.reordered} reordered. A live update in the same run: pause {pause.p50:.1f} ms (p50), "
        f"{pause.p99:.1f} ms (p99). The 99th percentile of the latency before a move: {f.normal_p99_ms:.1f} ms.",
    )
    names = {"at_once": "all at once", "rounds": f"in rounds of {ROUND_GROUPS} groups"}
    rows = [
        [names[how], *(f"{ms:.1f}" for ms in (told.p99_ms, told.worst_ms, told.pause_ms)), f"{told.seconds:.2f}"]
        for how, told in f.rebalance.items()
    ]
    head = ("half of the groups move", "p99 (ms)", "worst (ms)", "longest gap (ms)", "seconds")
    return [*found, Section("A rebalance: latency of events that were due while it ran", head, rows)]
