"""The DEBS 2015 top-10 routes (paper 5) as real deployments under a short daily load: a chain of six, each with a real service time.

Events are sent at their intended times whatever comes back, pass each deployment by engine-free clients, and are checked at the sink: each
must come once. A deployment's clients are replaced in turn, since a lane stays in its slot and a new slot gets new lanes only. One factor
shortens control loops, tokens, calm and the day; another one makes events rarer and longer, and R_max with them, so that a few hundred
frames a second are enough. Slots are scaled by the node's own controllers; nothing here decides.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness.bringup import Platform, wait_until
from benchmarks.harness.rules import InvalidRun
from benchmarks.simulated import chain
from udo_interface.client import Client
from udo_interface.lane.channel import ChannelSettings

OPERATOR, APPLICATION = "timed", "routes"
# Control loops of 30 s become 3 s, the shortest window of rates.
FASTER = 10.0
# The factor by which events are rarer, and take longer, than in the simulation.
SLOWER = 5.0
PEAK_PER_S = chain.PEAK_PER_S / SLOWER
R_MAX_MS = chain.R_MAX_MS * SLOWER
DECIDE_S = chain.CONTROL_S / FASTER
MOST = 5
LANES, LANE_S = 4, 1.5
# Few events wait in a client, so that backlogs show in the slots first.
CLIENT = ChannelSettings(batch_events=4, buffer_events=8, window=2)
# An application that is up answers at least this often, even at the lowest rate of the day.
GAP_S = R_MAX_MS / 1000
_DRAIN_S = 60.0
NODE_SETTINGS = {"calm_s": 600.0 / FASTER, "reverse_s": 30.0 / FASTER}


Events = list[dict[str, int]]


@dataclass(frozen=True)
class Decider:
    """The controller of the slots, with its settings: each deployment's own `policy`, or, if that is '', the application that they form.

    pause_s: the source's pause at each step, as with pause and resume.
    """

    policy: str
    settings: Mapping[str, float]
    pause_s: float = 0.0

    def elasticity(self, most: int) -> dict[str, object]:
        """Return the elasticity of a deployment, as the registry takes it."""
        own = {"mode": "auto", "policy": self.policy, "settings": self.settings} if self.policy else {}
        return {**own, "most": most}

    def application(self) -> dict[str, object] | None:
        """Return the application, as the registry takes it; None if there is none."""
        return None if self.policy else {"mode": "auto", "response_ms": R_MAX_MS, "interval_s": DECIDE_S, "settings": self.settings}


@dataclass
class _Stage:
    """The clients of one deployment: LANES threads, each with one client at a time."""

    name: str
    node: str
    onwards: Callable[[Events], None]
    failures: list[BaseException]

    def __post_init__(self) -> None:
        self.waiting: queue.Queue[Events | None] = queue.Queue()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(LANES)]
        for thread in self._threads:
            thread.start()

    def put(self, events: Events) -> None:
        """Queue events for this deployment."""
        self.waiting.put(events)

    def close(self) -> None:
        """End the threads once all queued events are answered."""
        for _ in self._threads:
            self.waiting.put(None)
        for thread in self._threads:
            thread.join(_DRAIN_S)

    def _run(self) -> None:
        try:
            over = False
            while not over:
                client = Client(self.node, CLIENT)
                client.request_operator(self.name)
                client.add_listener(self._answered, batches=True)
                until = time.monotonic() + LANE_S
                while time.monotonic() < until and not over:
                    try:
                        events = self.waiting.get(timeout=0.1)
                    except queue.Empty:
                        continue
                    over = events is None
                    for event in events or ():
                        client.send(event)
                client.close(_DRAIN_S)
        except BaseException as e:
            self.failures.append(e)

    def _answered(self, batch: pa.RecordBatch) -> None:
        self.onwards(batch.to_pylist())


@dataclass(frozen=True)
class LiveDay(chain.DayFigures):
    """A day on real deployments; replica hours are scaled to a day of full length."""

    events: int


@dataclass
class LiveOutcome:
    """The result of a contender's day. `at` and `due`: when each answer reached the sink, and when its event was due (perf_counter)."""

    seconds: float
    at: npt.NDArray[np.float64]
    due: npt.NDArray[np.float64]
    slots: list[tuple[float, int]] = field(default_factory=list)  # (perf_counter, slots in all)
    steps: int = 0
    paused_s: float = 0.0  # in all
    pause_s: float = 0.0  # each

    def figures(self) -> LiveDay:
        """Return the figures that benchmarks.suites.elasticity reports."""
        ms = 1000 * (self.at - self.due)
        gaps = np.diff(np.sort(self.at), prepend=self.due[0])
        # A pause counts in full, and not again as part of the gap that it makes.
        down_s = self.paused_s + float(np.clip(gaps - GAP_S - self.pause_s, 0, None).sum())
        held = sum(n * (b - a) for (a, n), (b, _) in itertools.pairwise(self.slots))
        return LiveDay(
            availability_percent=round(100 * (1 - min(down_s / self.seconds, 1.0)), 3),
            response_p95_ms=round(float(np.quantile(ms, 0.95)), 1),
            response_ok_percent=round(100 * float((ms <= R_MAX_MS).mean()), 2),
            reconfigurations=self.steps,
            replica_hours=round(24 * held / self.seconds, 1),
            replicas_most=max(n for _, n in self.slots),
            events=len(ms),
        )


def play(p: Platform, day_s: float, decider: Decider, seed: int) -> LiveOutcome:
    """Play a day under one contender."""
    names = [spec.name.replace("_", "-") for spec in chain.ROUTES]
    with p.registry() as registry:
        for name, spec in zip(names, chain.ROUTES, strict=True):
            most = min(spec.max_replicas, MOST)
            service = {"SERVICE_US": str(round(1e6 * spec.service_s * SLOWER))}
            p.deploy(name, OPERATOR, env=service, elasticity=decider.elasticity(most))
        if (application := decider.application()) is not None:
            registry.create_application(APPLICATION, names, **application)
        try:
            return _Day(p, names, day_s, decider.pause_s, seed).run()
        finally:
            if application is not None:
                registry.remove_application(APPLICATION)
            for name in names:
                registry.undeploy(name)
            wait_until(lambda: not any(s.deployment in names for s in p.node().status().slots), 60.0, "the chain to be removed")


class _Day:
    def __init__(self, p: Platform, names: list[str], day_s: float, pause_s: float, seed: int) -> None:
        self._p, self._names, self._pause_s = p, names, pause_s
        rates = chain.day_rates(86_400, np.random.default_rng(seed))[:: max(round(86_400 / (10 * day_s)), 1)] / SLOWER
        self._rates, self._day_s = rates, day_s
        self._failures: list[BaseException] = []
        self._at: list[float] = []
        self._back: Events = []
        self._lock = threading.Lock()

    def run(self) -> LiveOutcome:
        onwards: Callable[[Events], None] = self._sink
        stages: list[_Stage] = []
        for name in reversed(self._names):
            stages.insert(0, _Stage(name, self._p.node_socket, onwards, self._failures))
            onwards = stages[0].put
        begun, sent, slots, paused_s = time.perf_counter(), 0, [], 0.0
        since_s = time.time()
        looked, ends, due = begun - 1.0, begun + self._day_s, begun
        while (now := time.perf_counter()) < ends and not self._failures:
            if now - looked >= 0.5:
                looked = now
                slots.append((now, self._slots()))
                if self._pause_s and len(slots) > 1 and slots[-1][1] != slots[-2][1]:
                    time.sleep(self._pause_s)  # events that come due meanwhile are sent afterwards
                    paused_s += self._pause_s
                    continue
            if due > now:
                time.sleep(min(due - now, 0.05))
                continue
            stages[0].put([{"id": sent, "due_us": int(1e6 * (due - begun))}])
            sent += 1
            due += 1 / float(self._rates[min(int((due - begun) / self._day_s * len(self._rates)), len(self._rates) - 1)])
        slots.append((time.perf_counter(), self._slots()))
        steps = self._steps(since_s, time.time())
        for stage in stages:
            stage.close()
        if self._failures:
            raise InvalidRun(f"the chain: {type(self._failures[0]).__name__}: {self._failures[0]}")
        ids = np.array([event["id"] for event in self._back])
        if len(ids) != sent or len(np.unique(ids)) != sent:
            raise InvalidRun(f"the chain: {sent} events were sent, {len(ids)} came back, {len(np.unique(ids))} of them different")
        due_s = begun + np.array([event["due_us"] for event in self._back]) / 1e6
        return LiveOutcome(self._day_s, np.array(self._at), due_s, slots, steps, paused_s, self._pause_s)

    def _sink(self, events: Events) -> None:
        with self._lock:
            self._at += [time.perf_counter()] * len(events)
            self._back += events

    def _slots(self) -> int:
        return sum(s.deployment in self._names for s in self._p.node().signals().slots)

    def _steps(self, since_s: float, until_s: float) -> int:
        """Count the steps carried out in this time (wall clock) in the node's journals, which hold former days as well."""
        from elasticity.scaling.journal_rows import rows_of

        rows = [row for name in self._names for row in rows_of(self._p.node().decisions(name), False)]
        during = [row for row in rows if since_s <= row["at_s"] <= until_s]
        return sum(row["result"] == "done" and row["kind"] in ("scale_out", "scale_in") for row in during)
