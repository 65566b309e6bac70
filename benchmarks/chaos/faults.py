"""Breaks the platform under running queries: a fault is drawn by the seed, happens beside it, and is counted if it took place."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, Semaphore

from benchmarks.chaos import canaries
from benchmarks.chaos.inside import POINTS
from benchmarks.chaos.node import ChaosNode
from benchmarks.rules import InvalidRun
from udo_protocol.connection import ReplyError
from udo_protocol.errors import UdoError

KILL, KILL_AT, UPDATE, FORMER = "instance killed", "instance killed at", "live update", "former owner resumed"
MIGRATE, BACK = "live update to another form of state", "rollback to the former form of state"
CANARY = "canary"
QUEUE, STATE, MANAGER = "queue server killed", "state server killed", "node manager killed"
WEIGHTS = {KILL: 3.0, KILL_AT: 8.0, UPDATE: 2.0, MIGRATE: 2.0, BACK: 2.0, FORMER: 4.0, CANARY: 4.0, QUEUE: 1.0, STATE: 1.0, MANAGER: 0.4}
# Faults that hit the whole node happen one at a time, and leave it this long to recover.
_NODE_WIDE = {QUEUE, STATE, MANAGER}
_RECOVER_S = 1.0
_AT_ONCE = 4


class Faults:
    """Shared by all queries of a node. `happened` is (seconds since start, who drew it, what, took place)."""

    def __init__(self, node: ChaosNode, weights: dict[str, float] = WEIGHTS) -> None:
        self._node, self._weights = node, weights
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fault")
        self._free, self._node_wide, self._counting = Semaphore(_AT_ONCE), Lock(), Lock()
        self._started = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.happened: list[tuple[float, str, str, bool]] = []

    def draw(self, deployment: str, who: str, rng: random.Random) -> None:
        """One fault, beside the caller; none if too many are under way. Draws the same from `rng` in either case."""
        [kind] = rng.choices(list(self._weights), list(self._weights.values()))
        point, pause_s, then_kill = rng.choice(POINTS), rng.random() * 2, rng.random() < 0.5
        if not self._free.acquire(blocking=False):
            return
        self._pool.submit(self._run, deployment, who, kind, point, pause_s, then_kill)

    def close(self) -> None:
        """Wait for those under way."""
        self._pool.shutdown()

    def _run(self, deployment: str, who: str, kind: str, point: str, pause_s: float, then_kill: bool) -> None:
        took, at = False, time.monotonic() - self._started
        name = f"{kind} {point}" if kind == KILL_AT else kind
        error = ""
        try:
            with self._node_wide if kind in _NODE_WIDE else contextlib.nullcontext():
                took = self._step(deployment, kind, point, pause_s)
                if kind in _NODE_WIDE:
                    time.sleep(_RECOVER_S)
            if took and kind == FORMER and then_kill:
                self._node.kill_instance(deployment)
        except (UdoError, ReplyError, InvalidRun, OSError) as e:  # the node is down for another reason
            error = f" ({type(e).__name__})"
        finally:
            self._free.release()
            self.happened.append((at, who, f"{name} on {deployment}{error}", took))
            if took:
                self.counts[name] += 1

    def _step(self, deployment: str, kind: str, point: str, pause_s: float) -> bool:
        node = self._node
        steps: dict[str, Callable[[], bool]] = {
            KILL: lambda: node.kill_instance(deployment),
            KILL_AT: lambda: bool(node.arm(deployment, point, "kill")),
            UPDATE: lambda: node.update(deployment),
            MIGRATE: lambda: node.migrate(deployment),
            BACK: lambda: node.go_back(deployment),
            CANARY: lambda: self._canary(deployment, pause_s),
            FORMER: lambda: node.stop_promote_resume(deployment, point, pause_s),
            QUEUE: lambda: node.kill_server("queue"),
            STATE: lambda: node.kill_server("state"),
            MANAGER: node.kill_manager,
        }
        return steps[kind]()

    def _canary(self, deployment: str, pause_s: float) -> bool:
        """Of an equal version or one of the other form of state; it ends, or the update goes through."""
        node, other, through = self._node, pause_s % 0.02 < 0.01, pause_s % 0.2 < 0.1
        serving = next(s.version for s in node.api.status().slots if s.deployment == deployment and not s.pinned)
        found = canaries.try_out(node.chaos, deployment, canaries.CANDIDATES[serving][other], 100 if pause_s > 1 else 10, pause_s)
        if found is None:
            return False
        with self._counting:
            self.counts["canary frames compared"] += int(found["compared"])
            self.counts["canary frames different"] += int(found["different"])
        if through:
            node.migrate(deployment) if other else node.update(deployment)
        return True
