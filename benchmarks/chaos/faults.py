"""Breaks the platform under running queries: a fault is drawn from the seed, runs alongside the query, and is counted if it took place."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock, Semaphore

from benchmarks.chaos import stops
from benchmarks.chaos.canaries import CANARY, Canaries
from benchmarks.chaos.changes import BACK_DOWN, BACK_KEPT, CHANGES, MIGRATE, READS_BOTH, UPDATE, Changes
from benchmarks.chaos.inside import CHANGE_POINTS, MOVE_POINTS, POINTS, RESTORED
from benchmarks.chaos.moves import MOVE, SCALE, Moves
from benchmarks.chaos.moves import WEIGHTS as MOVE_WEIGHTS
from benchmarks.chaos.node import ChaosNode
from benchmarks.chaos.stops import STOPPED, Stop, Stops
from benchmarks.harness.rules import InvalidRun
from udo_protocol.errors import UdoError
from udo_protocol.queue.connection import ReplyError

KILL, KILL_AT, FORMER = "instance killed", "instance killed at", "former owner resumed"
# A fault only where operators have processes of their own.
KILL_OPERATOR = "operator's process killed"
QUEUE, STATE, MANAGER = "queue server killed", "state server killed", "node manager killed"
WEIGHTS = {KILL: 3.0, KILL_AT: 8.0, FORMER: 4.0, CANARY: 8.0, QUEUE: 0.6, STATE: 0.6, MANAGER: 0.4}
# Run alongside updates, canaries and one another.
DIFF, RECORDING = "diff", "recording"
# Drawn in place of a fault: an instance that lives for a second has no figures, and without figures controllers do nothing.
NOTHING = "nothing"
WEIGHTS |= {DIFF: 4.0, RECORDING: 4.0, UPDATE: 8.0, MIGRATE: 3.0, BACK_KEPT: 4.0, BACK_DOWN: 2.0}
# Faults that hit the whole node happen one at a time, and leave it this long to recover.
_NODE_WIDE = {QUEUE, STATE, MANAGER}
_PARTS = (stops.INSTANCE, stops.QUEUE, stops.STATE, stops.MANAGER)
_RECOVER_S = 1.0
# Many of them wait: a deployment's changes take place one at a time, and an armed order waits for its instance.
_AT_ONCE = 16
_CANARY_S = 3.0
# The node manager kills a stopped former owner after 10 s: it is resumed well before that.
_WHILE_STOPPED_S = 5.0


def weights_of(slots: int, weights: dict[str, float]) -> dict[str, float]:
    """Return the weights of faults for deployments with `slots` slots: with several, moves are added."""
    return weights if slots == 1 else weights | MOVE_WEIGHTS


@dataclass(frozen=True)
class Drawn:
    """One fault as drawn from the seed."""

    kind: str
    point: str
    change: str
    pause_s: float
    then_kill: bool
    stop: Stop

    def __str__(self) -> str:
        if self.kind == STOPPED:
            return str(self.stop)
        return f"{self.kind} {self.point}" if self.kind == KILL_AT else self.kind


class Faults:
    """The faults of a node, shared by all its queries. `happened`: (seconds since start, who drew it, the fault, what took place)."""

    def __init__(self, node: ChaosNode, weights: dict[str, float], points: Sequence[str] = ()) -> None:
        self._node, self._weights, self.changes = node, weights, Changes(node)
        self._points = points or (POINTS if node.setup.slots == 1 else (*POINTS, *MOVE_POINTS))
        self._moves = Moves(node, node.setup.slots)
        self.canaries = Canaries(node, self.changes, _CANARY_S)
        self.stops = Stops(node.pids, node.well)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fault")
        self._free, self._node_wide, self._counting = Semaphore(_AT_ONCE), Lock(), Lock()
        self._started = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.happened: list[tuple[float, str, str, list[str]]] = []

    def draw(self, deployment: str, who: str, rng: random.Random) -> None:
        """Draw a fault and run it in the background; none if too many are under way. Draws the same from `rng` in either case."""
        [kind] = rng.choices(list(self._weights), list(self._weights.values()))
        drawn = Drawn(
            kind,
            rng.choice(self._points),
            rng.choice(CHANGES),
            rng.random() * 2,
            rng.random() < 0.5,
            Stop.draw(rng, _PARTS, self._node.setup.scale),
        )
        if self._free.acquire(blocking=False):
            self._pool.submit(self._run, deployment, who, drawn)

    def close(self) -> None:
        """Wait for the faults under way."""
        self._pool.shutdown()

    def _run(self, deployment: str, who: str, drawn: Drawn) -> None:
        took, at, why = list[str](), time.monotonic() - self._started, ""
        try:
            with self._node_wide if drawn.kind in _NODE_WIDE else contextlib.nullcontext():
                took, why = self._step(deployment, drawn)
                if drawn.kind in _NODE_WIDE:
                    time.sleep(_RECOVER_S)
        except (UdoError, ReplyError, InvalidRun, OSError) as e:  # the node is down for another reason
            why = f"{type(e).__name__}: {e}"
        finally:
            self._free.release()
            self.happened.append((at, who, f"{drawn} on {deployment}{f' ({why[:300]})' if why else ''}", took))
            with self._counting:
                self.counts = self.counts + Counter(took)  # a new object: others may be iterating over the old one

    def _step(self, deployment: str, drawn: Drawn) -> tuple[list[str], str]:
        """Carry out a fault; return what took place, and why the rest did not."""
        node = self._node
        if drawn.kind == NOTHING:
            return [], ""
        if drawn.kind == STOPPED:
            return self.stops.happen(deployment, drawn.stop), ""
        if drawn.kind in CHANGES:
            return self.changes.run(deployment, drawn.kind, pause_s=drawn.pause_s / 4)
        if drawn.kind in (MOVE, SCALE):
            return self._moves.run(deployment, drawn.kind, random.Random(drawn.pause_s))
        if drawn.kind == CANARY:
            return self.canaries.run(deployment, random.Random(drawn.pause_s))
        if drawn.kind == DIFF:
            return [DIFF], self.canaries.judge_diff(deployment, node.compare(deployment, READS_BOTH, drawn.pause_s * _CANARY_S))
        if drawn.kind == RECORDING:
            return [RECORDING] if node.record(deployment, drawn.pause_s * _CANARY_S) else [], ""
        if drawn.kind == FORMER:
            return self._stop_change_resume(deployment, drawn)
        if drawn.kind == KILL_AT:
            pid, took = self._armed(deployment, drawn, drawn.point, "kill", lambda: self.changes.run(deployment, drawn.change, most=1)[0])
            return [*took, *([str(drawn)] if pid else [])], ""
        steps: dict[str, Callable[[], bool]] = {
            KILL: lambda: node.kill_instance(deployment),
            KILL_OPERATOR: lambda: node.kill_operator(deployment),
            QUEUE: lambda: node.kill_server("queue"),
            STATE: lambda: node.kill_server("state"),
            MANAGER: node.kill_manager,
        }
        return [str(drawn)] if steps[drawn.kind]() else [], ""

    def _armed(self, deployment: str, drawn: Drawn, point: str, action: str, change: Callable[[], list[str]]) -> tuple[int, list[str]]:
        """Arm a point; return the pid of the instance that reached it, or 0, and the steps that led there: a kill, a move, `change`."""

        def bring() -> list[str]:
            if point in CHANGE_POINTS:
                return change()
            with contextlib.suppress(UdoError):  # an instance that reached the point has been stopped, and must be resumed
                if point in MOVE_POINTS:
                    return self._moves.run(deployment, MOVE, random.Random(drawn.pause_s))[0]
                return [KILL] if point == RESTORED and self._node.kill_instance(deployment) else []
            return []

        with ThreadPoolExecutor(1) as beside:
            pid = beside.submit(self._node.arm, deployment, point, action)
            took = bring()
            return pid.result(), took

    def _stop_change_resume(self, deployment: str, drawn: Drawn) -> tuple[list[str], str]:
        """Stop the owner at a point of its loop, change the version, and resume the former owner."""
        # At "loaded" an instance is not an owner yet, and a move would wait for a stopped instance.
        point = {"loaded": "promoted", **dict.fromkeys(MOVE_POINTS, "before_checkpoint")}.get(drawn.point, drawn.point)
        with self.changes.alone(deployment) as alone:
            if not alone:
                return [], "another one is under way"
            pid, before = self._armed(deployment, drawn, point, "stop", lambda: self.changes.steps(deployment, UPDATE)[0])
            if not pid:
                return before, "none came by"
            try:
                took, why = self.changes.steps(deployment, drawn.change, most=1, try_s=_WHILE_STOPPED_S)
                time.sleep(drawn.pause_s)
            finally:
                self._node.resume(pid)
        if took and drawn.then_kill:
            self._node.kill_instance(deployment)
        return [*before, *took, *([FORMER] if took else [])], why
