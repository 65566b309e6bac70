"""From a death to the next answer: a keyed instance with about 1 MB of state, the queue server, the state server.

Every epoch sends a frame, waits for its answers, kills, and at once sends the next frame, whose answers stop the clock. All answers
count their key's events, so that an event lost or counted twice shows in the next one.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.bringup import import_ms, say, wait_until
from benchmarks.harness.quantiles import Quantiles, quantiles
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section

if TYPE_CHECKING:
    from benchmarks.chaos.attempt import Rows

# The number of keys. Their state, the last events and counts by kind, is about 1 MB.
KEYS = 16_000
_COUNT = re.compile(r"'A', (\d+)")
GOAL_MS = 300
# Each death uses up a warm instance; the next one is ready well within this time.
PAUSE_S = 1.5
# 20 short-lived owners in a row are replaced without a pause (node_manager/slots/deaths.py). The pauses of a crash loop are not to be
# measured, so each node gets fewer kills.
NODES, NODE_KILLS = 4, 15
SERVER_KILLS, QUICK_SERVER_KILLS = 10, 3
_RETRY_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Times in ms; those of servers are medians."""

    kill_to_answer_ms: Quantiles
    import_ms: Quantiles | None = None
    redis_restart_to_answer_ms: float
    state_restart_to_answer_ms: float
    kills: int
    state_bytes: int
    goal_ms: int
    lost: int
    duplicated: int


class Counts:
    """The expected running counts, and the differences found."""

    def __init__(self) -> None:
        self._expected: Counter[str] = Counter()
        self.lost = self.duplicated = 0

    def check(self, keys: list[str], rows: Rows) -> None:
        """Check the answers to one event of each of these keys."""
        got = {r["k"]: int(_COUNT.search(r["what"])[1]) for r in rows}  # type: ignore[index]
        for key in keys:
            self._expected[key] += 1
            difference = got.get(key, 0) - self._expected[key]
            self.lost += max(-difference, 0)
            self.duplicated += max(difference, 0)
            self._expected[key] += difference if key in got else 0


class Epochs:
    """One session's epochs, one partition each, one frame before the fault and one after it."""

    def __init__(self, node: Any, deployment: str) -> None:
        self.node, self.deployment, self.counts = node, deployment, Counts()
        self._epoch = self._attempt = 0

    def open(self, frames: list[list[str]]) -> Any:
        """Begin an attempt at the present epoch."""
        from benchmarks.chaos.attempt import Attempt, Identity
        from benchmarks.chaos.query import group_of
        from udo_protocol.limits import KEY_GROUPS

        self._attempt += 1
        at = dt.datetime(2020, 1, 1)
        rows = [[({"k": k, "id": i, "kind": "A", "t": at}, group_of(k)) for i, k in enumerate(keys)] for keys in frames]
        who = Identity(self.deployment, "recovery", "r1", self._epoch, 0, self._attempt, tuple(range(KEY_GROUPS)))
        return Attempt(str(self.node.api.path), who, rows, window=1)

    def fill(self, keys: list[str]) -> None:
        """Run an epoch with an event of every key."""
        self._finish(self.open([keys]), keys)

    def killed_between(self, before: list[str], after: list[str], kill: Callable[[], None], *, retry: bool, end: bool = False) -> float:
        """Kill between two frames; return the seconds to the answers of the second, or with `end` to END's; `retry`: by new attempts."""
        from udo_protocol.errors import UdoError
        from udo_protocol.queue.connection import ReplyError

        attempt, expected = self.open([before, after]), len(before) + len(after)
        attempt.step()
        started = time.perf_counter()
        kill()
        while True:
            try:
                # An attempt that is complete may have fewer answers: `_finish` counts them as lost.
                while attempt is None or not (attempt.complete or (not end and len(attempt.rows) >= expected)):
                    attempt = attempt or self.open([before, after])
                    attempt.step()
                break
            except (UdoError, ReplyError) as e:
                if not retry or time.perf_counter() - started > 60:
                    raise InvalidRun(f"no answer after the kill: {e}") from e
                if attempt is not None:
                    attempt.die()
                attempt = None
                time.sleep(_RETRY_S)
        took_s = time.perf_counter() - started
        self._finish(attempt, [*before, *after])
        return took_s

    def _finish(self, attempt: Any, keys: list[str]) -> None:
        while not attempt.complete and not attempt.step():
            pass
        self.counts.check(keys, attempt.rows)
        attempt.close()
        self._epoch += 1


class _Kills:
    """Faults on a fresh node whose keyed deployment holds state of KEYS keys."""

    def __init__(self, node: Any, name: str, rng: np.random.Generator) -> None:
        self.node, self.name, self._rng = node, name, rng
        self._keys = [f"l{i:06}" for i in range(KEYS)]
        self.epochs = Epochs(node, name)
        for at in range(0, KEYS, 2000):
            self.epochs.fill(self._keys[at : at + 2000])

    def instance(self) -> float:
        """Kill the owner; return the milliseconds to the next answers."""
        return self._measure(lambda: self.node.owner_pid(self.name), retry=False)

    def server(self, role: str) -> float:
        """Kill a server; return the milliseconds to the next answers, or for the state server to END's."""
        return self._measure(lambda: self.node.server_pid(role), retry=True, end=role == "state")

    def _measure(self, pid: Callable[[], int], *, retry: bool, end: bool = False) -> float:
        time.sleep(PAUSE_S)  # the next warm instance gets ready: deaths in quick succession are not measured
        wait_until(lambda: self.node.owner_pid(self.name) > 0, 60, "an owner")
        killed = pid()
        before, after = ([str(k) for k in self._rng.choice(self._keys, 20, replace=False)] for _ in range(2))
        after = [k for k in after if k not in before]
        return self.epochs.killed_between(before, after, lambda: os.kill(killed, signal.SIGKILL), retry=retry, end=end) * 1000


@contextmanager
def _fresh(rng: np.random.Generator) -> Iterator[_Kills]:
    from benchmarks.chaos.kinds import HISTORY
    from benchmarks.chaos.node import NodeSetup, chaos_node

    with chaos_node(NodeSetup([HISTORY], module="node_manager")) as node:
        [name] = node.deployed
        yield _Kills(node, name, rng)


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the suite: kills of the instance, then of the servers."""
    rng = np.random.default_rng(seed)
    instance, imports, counts = list[float](), list[float](), list[Counts]()
    for nodes in range(1 if quick else NODES):
        with _fresh(rng) as kills:
            say(f"killing the instance, node {nodes + 1}")
            for _ in range(NODE_KILLS):
                instance.append(kills.instance())
                imports.append(import_ms(kills.node.api, kills.name))
            counts.append(kills.epochs.counts)
    servers = {}
    for role in ("queue", "state"):
        with _fresh(rng) as kills:
            say(f"killing the {role} server")
            servers[role] = [kills.server(role) for _ in range(QUICK_SERVER_KILLS if quick else SERVER_KILLS)]
            counts.append(kills.epochs.counts)
            size = _state_bytes(kills.node, kills.name)
    lost, duplicated = sum(c.lost for c in counts), sum(c.duplicated for c in counts)
    if lost or duplicated:
        raise InvalidRun(f"{lost} events lost, {duplicated} counted twice")
    return Figures(
        kill_to_answer_ms=quantiles(instance, 1),
        import_ms=quantiles(imports, 1),
        redis_restart_to_answer_ms=round(float(np.median(servers["queue"])), 1),
        state_restart_to_answer_ms=round(float(np.median(servers["state"])), 1),
        kills=len(instance),
        state_bytes=size,
        goal_ms=GOAL_MS,
        lost=lost,
        duplicated=duplicated,
    )


def _state_bytes(node: Any, name: str) -> int:
    from udo_runtime.durable.sessions import load_session

    from udo_protocol.queue.keys import SlotKeys

    conn = node.connect("state")
    try:
        return int(load_session(conn, SlotKeys(name, 0), "recovery").size)
    finally:
        conn.close()


def sections(f: Figures) -> list[Section]:
    """One row per killed part."""

    def cells(ms: Quantiles | None) -> tuple[str, str]:
        return (f"{ms.p50:.1f}", f"{ms.p99:.1f}") if ms is not None else ("–", "–")

    rows = [
        ("instance", "its end seen, a warm one assigned, operator imported, state restored, frame answered", *cells(f.kill_to_answer_ms)),
        ("", "of which the import of the operator's code", *cells(f.import_ms)),
        ("queue server", "server restarted, attempt retried, frame answered", f"{f.redis_restart_to_answer_ms:.0f}", ""),
        ("state server", "server restarted with its data, END durable", f"{f.state_restart_to_answer_ms:.0f}", ""),
    ]
    remark = f"{f.kills} kills at {f.state_bytes / 1e6:.2f} MB of state; {f.lost} lost, {f.duplicated} counted twice."
    return [Section("From kill -9 to the next answer", ("killed", "until", "p50 ms", "p99 ms"), rows, remark)]
