"""Bottlenecks injected into real deployments: the signals that `udo explain` shows, interval by interval, while events go through.

Each event states its own cost (benchmarks/operators/injected), so that an episode begins healthy and turns into a bottleneck at a known
moment: more processor time, memory near its limit, most events on one of two slots, or a slow service that the operator calls. Each
of the two deployments has a lane for each of its slots; a lane sends at its rate and stops while its window is full, as any caller does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.harness.bringup import Platform, wait_until
from benchmarks.harness.openloop import Arrivals
from benchmarks.harness.rules import InvalidRun, check_sequence
from benchmarks.simulated.bottlenecks import Episode
from elasticity.bottleneck.signals import SlotSample
from udo_interface.client import Client
from udo_interface.lane.channel import ChannelSettings

OPERATOR = "injected"
# The node's window of rates has its minimum, 3 s; a sample is taken every half window.
DECIDE_S, INTERVAL_S = 3.0, 1.5
HEALTHY, BAD = 4, 12  # intervals
QUICK_BAD = 6
# The kinds injected at the same time, on the deployment of one slot and on that of two. A round is all of these pairs.
PAIRS = (("cpu", "none"), ("memory", "skew"), ("slow_downstream", "none"))
SLOTS = {"one": 1, "two": 2}
RATE = 60.0  # events/s of a lane
# Short frames, since a frame counts when it is answered. Waiting events are in the slot, up to some seconds of work, not in the client.
CLIENT = ChannelSettings(batch_events=16, buffer_events=32, window=32)
MEMORY_MB = 238  # resident when memory is injected: 93 % of the limit
_FLUSH_S = 60.0


@dataclass
class Shape:
    """The present rate and cost of a lane's events; replaced while it sends."""

    rate: float
    cpu_us: int
    wait_us: int
    resident_mb: int = 0


@dataclass
class _Lane:
    """A client in a thread of its own; all answers are checked at the end."""

    node: str
    deployment: str
    shape: Shape
    sent: int = 0
    answers: Arrivals = field(default_factory=Arrivals)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._client = Client(self.node, CLIENT)
        self._client.request_operator(self.deployment)
        self._client.add_listener(self.answers.add, batches=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            due = time.perf_counter()
            while not self._stop.is_set():
                now = time.perf_counter()
                due = max(due, now - 1.0)  # events that are more than a second late are skipped
                if due > now:
                    self._stop.wait(due - now)
                    continue
                due += 1 / self.shape.rate
                s = self.shape
                self._client.send({"id": self.sent, "cpu_us": s.cpu_us, "wait_us": s.wait_us, "resident_mb": s.resident_mb})
                self.sent += 1
        except BaseException as e:
            self.error = e

    def close(self) -> None:
        """Stop sending, wait for the answers, and check them. InvalidRun if one is lost, doubled, or out of order."""
        self._stop.set()
        self._thread.join(_FLUSH_S)
        if self.error is not None:
            raise InvalidRun(f"a lane of {self.deployment} ended: {self.error}")
        self._client.flush(_FLUSH_S)
        self._client.close()
        check_sequence(self.answers.column("id"), self.sent).require_clean(f"a lane of {self.deployment}")


def deploy(p: Platform) -> None:
    """Deploy both, with elasticity off, so that no controller acts on them."""
    p.push(OPERATOR, "1")
    for name, slots in SLOTS.items():
        p.deploy(name, OPERATOR, slots=slots, elasticity={"mode": "off"})
        wait_until(lambda: len(p.node().signals(name).slots) == slots, 60.0, f"the slots of {name}")  # noqa: B023


def play(
    p: Platform, kinds: Sequence[str], rng: np.random.Generator, bad: int, see: Callable[[str, int, list[SlotSample]], None]
) -> list[Episode]:
    """Play one episode on each deployment at the same time; `see` gets deployment, interval and slots. Intervals are counted from the
    first one in which every slot has figures."""
    lanes: dict[str, list[_Lane]] = {}
    try:
        for name, slots in SLOTS.items():
            healthy_s, on_cpu = float(rng.uniform(0.15, 0.5)) / RATE, float(rng.uniform(0.3, 0.7))
            cpu_us, wait_us = int(1e6 * healthy_s * on_cpu), int(1e6 * healthy_s * (1 - on_cpu))
            # The lanes are opened one after the other, so that each gets a slot of its own.
            lanes[name] = [_Lane(p.node_socket, name, Shape(RATE, cpu_us, wait_us)) for _ in range(slots)]
        wait_until(lambda: all(_measured(p, name) for name in SLOTS), 60.0, "figures of all slots")
        begin, strength = time.perf_counter(), float(rng.uniform(1.2, 1.8))
        for t in range(HEALTHY + bad):
            if t == HEALTHY:
                for name, kind in zip(SLOTS, kinds, strict=True):
                    inject(kind, lanes[name], strength)
            time.sleep(max(begin + (t + 1) * INTERVAL_S - time.perf_counter(), 0))
            for name in SLOTS:
                see(name, t, _samples(p, name))
        for each in lanes.values():
            for lane in each:
                lane.shape = Shape(RATE, 0, 0)
    finally:
        for each in lanes.values():
            for lane in each:
                lane.close()
    return [Episode(kind, 0 if kind != "none" else None, HEALTHY if kind != "none" else None) for kind in kinds]


def inject(kind: str, lanes: Sequence[_Lane], strength: float) -> None:
    """Turn the operator into a bottleneck of this kind: its slot would have to be busy for `strength` (> 1) times the available time."""
    needed_us = 1e6 * strength / RATE
    for i, lane in enumerate(lanes):
        s = lane.shape
        if kind in ("cpu", "memory"):
            lane.shape = Shape(RATE, int(needed_us - s.wait_us), s.wait_us, MEMORY_MB if kind == "memory" else 0)
        elif kind == "slow_downstream":
            lane.shape = Shape(RATE, s.cpu_us, int(needed_us - s.cpu_us))
        elif kind == "skew":  # the same total rate, but more in one slot than it can take
            much = strength / ((s.cpu_us + s.wait_us) / 1e6)
            lane.shape = Shape(much if i == 0 else max(2 * RATE - much, 5.0), s.cpu_us, s.wait_us)


def _samples(p: Platform, name: str) -> list[SlotSample]:
    told = p.node().signals(name).slots
    return [SlotSample(s.cpu, s.memory, s.busy, 0.0, s.arrivals, s.answers, s.backlog, s.held) for s in told if not s.missing]


def _measured(p: Platform, name: str) -> bool:
    told = p.node().signals(name).slots
    return len(told) == SLOTS[name] and all(not s.missing and s.answers > 0 for s in told)
