"""The part over two nodes: keyed queries with a store, whose attempts go to either node while versions change and nodes are lost with their
disks.

Each query must give the oracle's answers, epoch by epoch: state that a node lacks, or has only an older version of, comes from the store.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from threading import Thread

from benchmarks.chaos.attempt import SENT, Rows, batches
from benchmarks.chaos.changes import BACK_DOWN, MIGRATE, UPDATE
from benchmarks.chaos.judge import Mismatch, Stuck, require_answers
from benchmarks.chaos.kinds import ANSWERS, HISTORY
from benchmarks.chaos.moves import STRATEGIES, mapped
from benchmarks.chaos.oracle import Event, Oracle
from benchmarks.chaos.outcome import Outcome
from benchmarks.chaos.pair import OPERATOR, OVER, WIDE, Pair, pair
from benchmarks.chaos.query import events_of, group_of, keys_of
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_interface.lane.split import SplitExchange
from udo_interface.store.spark_partitions import groups_of
from udo_interface.store.store import SessionStore, StoreLocation
from udo_interface.store.store_lane import StoreLane
from udo_protocol.errors import PeerError, ProtocolError, SchemaError, StateElsewhere, StateLost, TwoProducers, UdoError
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.node.api import connect_node
from udo_protocol.queue.connection import ReplyError

AT_ONCE = 3
LOST, KILLED, AGAIN, RESTARTED, MOVED = "node lost with its disk", "worker killed", "task failed after END", "driver killed", "epoch moved"
CUT = "limit beside a full evaluation"
GROUPS, OVER_NODES = "key groups moved", "key groups moved between nodes"
# A lost node takes seconds to come back, so losses are rarer than everything else.
_LOSE, _KILL, _FAIL, _RESTART, _CUT, _MOVE, _CHANGE = 0.02, 0.1, 0.05, 0.1, 0.1, 0.3, 0.05
# A move may wait for an instance that is being started.
_MOVE_S = 20.0
# With fewer frames, all of them may be answered before a limit is noticed.
_CUT_FRAMES = 3
# Errors that a query must never see, whatever happens to the nodes.
_ILLEGAL = (ProtocolError, SchemaError, StateLost, StateElsewhere, TwoProducers)
_STUCK_S = 180.0
# The pause before the next attempt while a node is away, like the time that Spark takes to schedule one.
_AWAY_S = 0.1


class _Killed(Exception):
    """The worker of a task is gone."""


class StoredQuery:
    """One seed's query; `trace` logs what it did."""

    def __init__(self, nodes: Pair, seed: int) -> None:
        self._nodes, self.rng = nodes, random.Random(seed)
        self.session = f"two-nodes-{seed}"
        self.deployment = self.rng.choice((OPERATOR, WIDE, OVER))
        self._moving: Thread | None = None
        self._changing: Thread | None = None
        keys = keys_of(self.rng)
        self._epochs = [events_of(self.rng, e, keys) for e in range(self.rng.randrange(6, 13))]
        self.stored = StoreLocation(str(nodes.store), (("k", "string"),), full_every=self.rng.choice((2, 3, 10)))
        self.trace: list[str] = []
        self.faults: Counter[str] = Counter()
        self.runs = self._attempt = 0
        self._last = ""

    def run(self) -> None:
        """Run all epochs, and judge each when it is complete; Mismatch says what differs."""
        self._started, oracle = time.monotonic(), Oracle(HISTORY)
        self._new_run()
        for epoch, events in enumerate(self._epochs):
            expected = oracle.epoch(events)
            while True:
                rows = [r for p in self.rng.sample(range(self._partitions), self._partitions) for r in self._partition(epoch, p)]
                if not self._chance(_RESTART):
                    break
                self._did(RESTARTED, "before its commit")
                self._new_run()
            require_answers(epoch, expected, rows)
            if self._chance(_RESTART):
                self._did(RESTARTED, "after its commit")
                self._new_run()

    def _new_run(self) -> None:
        self.runs += 1
        self._partitions = self.rng.randrange(1, 5)

    def _partition(self, epoch: int, partition: int) -> Rows:
        """Run a task: attempts on either node until one succeeds. While a lost node is away, nothing else happens."""
        away = False
        while True:
            if time.monotonic() - self._started > _STUCK_S:
                raise Stuck(f"stuck in epoch {epoch} for {_STUCK_S:g} s")
            if not away and self._chance(_LOSE) and self._nodes.lose(victim := self.rng.choice("ab")):
                self._did(LOST, victim)
            node = self._nodes.pick(self.rng)
            if self._last and node != self._last:
                self.faults[MOVED] += 1
            self._last = node
            if away:
                time.sleep(_AWAY_S)
            else:
                self._maybe_move(node)
                self._maybe_change()
            try:
                if not away:
                    self._maybe_cut(epoch, partition)
                rows = self._attempt_on(node, epoch, partition)
                self._maybe_cut(epoch, partition)
                away = False
            except _Killed:
                away = False
                continue
            except (UdoError, ReplyError, OSError) as e:
                if isinstance(e, _ILLEGAL):
                    raise Mismatch(f"epoch {epoch}, partition {partition} on {node}: {type(e).__name__}: {e}") from e
                self._log(f"e{epoch} p{partition} failed on {node}: {type(e).__name__}: {str(e)[:200]}")
                away = True
                continue
            if self._chance(_FAIL):
                self._did(AGAIN, f"e{epoch} p{partition} on {node}")
                continue
            return rows

    def _maybe_move(self, node: str) -> None:
        """During the attempt, move some key groups to another slot: on that node, or, for a deployment over both nodes, on either."""
        if self.deployment == OPERATOR or not self._chance(_MOVE) or (self._moving is not None and self._moving.is_alive()):
            return
        groups = self.rng.sample(range(KEY_GROUPS), self.rng.choice((1, 32, KEY_GROUPS)))
        at, strategy = self.rng.random(), self.rng.choice(STRATEGIES)
        to = self.rng.choice("ab") if self.deployment == OVER else ""

        def move() -> None:
            with contextlib.suppress(UdoError):  # a node is lost, or other key groups move
                there = mapped(connect_node(str(self._nodes.socket(to or node))), self.deployment)
                if not there:
                    return
                api, slot = connect_node(str(self._nodes.socket(node))), there[int(at * len(there))]
                list(api.move_groups(self.deployment, groups, slot, "" if to else strategy, _MOVE_S, to))
                self._did(OVER_NODES if to else GROUPS, f"{len(groups)} {f'to {to}' if to else f'on {node}, {strategy}'}")

        self._moving = Thread(target=move, daemon=True)
        self._moving.start()

    def _maybe_change(self) -> None:
        """During the attempt, update the deployment on both nodes."""
        if not self._chance(_CHANGE) or (self._changing is not None and self._changing.is_alive()):
            return
        kind = self.rng.choice((UPDATE, MIGRATE, BACK_DOWN))

        def change() -> None:
            took, why = self._nodes.changes.run(self.deployment, kind)
            for step in took:
                self._did(step)
            if why:
                self._log(f"{kind} of {self.deployment} did not take place: {why[:300]}")

        self._changing = Thread(target=change, daemon=True)
        self._changing.start()

    def _maybe_cut(self, epoch: int, partition: int) -> None:
        """Perhaps evaluate the epoch once more, on either node, cut short by a limit: it must leave no trace."""
        if self._chance(_CUT) and len(self._frames(epoch, groups_of(partition, self._partitions))) >= _CUT_FRAMES:
            self._did(CUT)
            self._attempt_on(self._nodes.pick(self.rng), epoch, partition, cut=True)

    def _attempt_on(self, node: str, epoch: int, partition: int, *, cut: bool = False) -> Rows:
        self._attempt += 1
        self._log(f"e{epoch} p{partition} of {self._partitions} on {node}, attempt {self._attempt} of run {self.runs}")
        groups = tuple(groups_of(partition, self._partitions))
        keyed = KeyedCall(f"{self.session}-r{self.runs}", "c", groups, plan=self.runs, stored=True)
        request = Request(self.deployment, self.session, partition, self._attempt, epoch, keyed=keyed)
        dies_after = self.rng.randrange(4) if not cut and self._chance(_KILL) else None
        rows = Rows()
        with conversations(str(self._nodes.socket(node)), request, SENT, ANSWERS, tls=self._nodes.tls) as (lanes, opened):
            split, stamp = SplitExchange(lanes, opened.group_slots or (0,), 2, open_lane=opened.open_lane), opened.stamp
            assert stamp is not None
            store = SessionStore(self.stored, self.deployment, self.session)
            lane = StoreLane(store, split, opened.place, stamp, self._partitions, self.runs)
            answers = lane.around(split.run(batches(self._frames(epoch, groups))))
            for count, (_, answer) in enumerate(answers):
                if count == dies_after:
                    self._did(KILLED, f"after {count} answers")
                    for sender, _ in lanes:
                        sender._end.conn.close()  # abruptly, as a killed worker does
                    with contextlib.suppress(PeerError):
                        answers.close()  # type: ignore[attr-defined]
                    raise _Killed
                rows += answer.to_pylist()
                if cut:
                    answers.close()  # type: ignore[attr-defined]
                    break
        return rows

    def _frames(self, epoch: int, groups: Sequence[int]) -> list[list[tuple[Event, int]]]:
        events = [(e, g) for e in self._epochs[epoch] if (g := group_of(e["k"])) in groups]
        return [events[i : i + 5] for i in range(0, len(events), 5)]

    def _chance(self, p: float) -> bool:
        return self.rng.random() < p

    def _did(self, kind: str, detail: str = "") -> None:
        self.faults[kind] += 1
        self._log(f"{kind} {detail}".rstrip())

    def _log(self, text: str) -> None:
        self.trace.append(f"{time.monotonic() - self._started:7.3f} {text}")


def run(seeds: Iterable[int], *, deadline_s: float = float("inf"), done: Callable[[int], None] = lambda seed: None) -> Outcome:
    """Run all seeds, several at once, on one pair of nodes; none is started after `deadline_s`."""
    outcome, started = Outcome(), time.monotonic()
    with pair() as nodes:

        def query_of(seed: int) -> StoredQuery | None:
            return StoredQuery(nodes, seed) if time.monotonic() - started <= deadline_s else None

        def report(seed: int, query: StoredQuery, error: str) -> str:
            return "\n".join([f"seed {seed} over two nodes: MISMATCH", error, *query.trace])

        outcome.play(seeds, AT_ONCE, query_of, report, done)
    return outcome
