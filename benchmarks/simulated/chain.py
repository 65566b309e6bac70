"""The DEBS 2015 top-10 routes as a chain of operators on five nodes over a day, under a scaling policy. A simulation.

Operators are fluid queues: a replica's waiting time is that of M/M/1, plus the time for the backlog. A node with more work than
cores slows all of its replicas. A step stops the whole application for its cost, as pausing and resuming does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from elasticity.scaling.journal import Controller, Header
from elasticity.scaling.model import Host, Kind, OperatorSample, Plan, Replica, Sample, ScalingDecision


@dataclass(frozen=True)
class Spec:
    """An operator: processor time per event, events passed on per event, bound on replicas."""

    name: str
    service_s: float
    selectivity: float
    max_replicas: int


# Paper 5, figure 3; at its peak of 300 events/s about ten replicas are needed.
ROUTES = (
    Spec("parser", 0.004, 1.0, 8),
    Spec("filter", 0.002, 0.9, 8),
    Spec("route_id", 0.003, 1.0, 8),
    Spec("count_by_window", 0.007, 0.8, 8),
    Spec("partial_rank", 0.005, 0.5, 8),
    Spec("global_rank", 0.003, 1.0, 1),
)
NODES, CORES, ROOM = 5, 4, 6
PEAK_PER_S = 300.0
HOP_MS = 1.0
CONTROL_S = 30.0
# The use at which the waiting time of M/M/1 is capped; beyond it the backlog counts.
NEARLY_FULL = 0.95
# The downtime of a step in ms. Pause and resume: paper 1's redeployment. Live: an assumption until moves are measured.
PAUSE_MS: Mapping[Kind, float] = {"scale_out": 8600.0, "migrate": 8600.0, "scale_in": 8600.0}
LIVE_MS: Mapping[Kind, float] = {"scale_out": 50.0, "migrate": 50.0, "scale_in": 50.0}
R_MAX_MS = 200.0


@dataclass(frozen=True)
class DayFigures:
    """How the application did: up, in time, and with how many replicas."""

    availability_percent: float
    response_p95_ms: float
    response_ok_percent: float
    reconfigurations: int
    replica_hours: float
    replicas_most: int


@dataclass
class Outcome:
    """The result of a run; `steps`: each granted step with its time."""

    seconds: float = 0.0
    down_s: float = 0.0
    responses_ms: list[float] = field(default_factory=list)
    steps: list[tuple[float, Plan]] = field(default_factory=list)
    replica_s: float = 0.0
    replicas: list[int] = field(default_factory=list)

    def figures(self) -> DayFigures:
        """Return the figures that benchmarks.suites.elasticity reports."""
        ms = np.array(self.responses_ms)
        return DayFigures(
            availability_percent=round(100 * (1 - self.down_s / self.seconds), 4),
            response_p95_ms=round(float(np.quantile(ms, 0.95)), 1),
            response_ok_percent=round(100 * float((ms <= R_MAX_MS).mean()), 2),
            reconfigurations=len(self.steps),
            replica_hours=round(self.replica_s / 3600, 1),
            replicas_most=max(self.replicas),
        )


def day_rates(seconds: int, rng: np.random.Generator, day_s: float = 86_400.0) -> np.ndarray:
    """The events/s in each second of a day: a trough at night, a morning and an evening peak, variation by the minute, and noise."""
    hour = np.arange(seconds) / day_s * 24
    shape = 0.2 + 0.55 * np.exp(-(((hour - 9) / 2.5) ** 2)) + 0.75 * np.exp(-(((hour - 19) / 3) ** 2))
    minutes = np.repeat(rng.normal(1, 0.06, seconds // 60 + 1), 60)[:seconds]
    return PEAK_PER_S * np.clip(shape * minutes * rng.normal(1, 0.05, seconds), 0.02, None)


class Chain:
    """The application: the nodes of its replicas, the backlogs, and the measurements since the last control step."""

    def __init__(self, rng: np.random.Generator, specs: tuple[Spec, ...] = ROUTES) -> None:
        self.specs, self._next = specs, 0
        self._load, self._seconds, self._worst = [0.0] * NODES, 0.0, 0.0
        self.placed: list[dict[str, int]] = [{} for _ in specs]  # replica -> node
        for o in range(len(specs)):
            self._add(o, None)
        self.backlog = [0.0] * len(specs)
        self.delays = 1 + 9 * rng.random((NODES, NODES))
        self.background = 0.3 * rng.random(NODES)
        self.response_ms = 0.0
        self._reset()

    def tick(self, rate: float, down: bool, dt: float) -> None:
        """Advance by dt seconds; while down nothing is answered and arrivals wait."""
        load = [self.background[n] * CORES for n in range(NODES)]
        for o, replicas in enumerate(self.placed):
            for node in replicas.values():
                load[node] += self._use[o]
        response = HOP_MS * len(self.specs)
        for o, spec in enumerate(self.specs):
            slow = max(max(load[n] / CORES, 1.0) for n in self.placed[o].values())
            service, n = spec.service_s * slow, len(self.placed[o])
            could = 0.0 if down else n / service
            arrived = rate * dt
            answered = min(self.backlog[o] + arrived, could * dt)
            self.backlog[o] += arrived - answered
            use = answered / (could * dt) if could else 0.0
            self._use[o] = use
            wait_s = service / (1 - min(use, NEARLY_FULL)) + (self.backlog[o] / could if could else 0.0)
            response += 1000 * wait_s
            seen = self._seen[o]
            for i, x in enumerate((arrived, answered, use * dt)):
                seen[i] += x
            rate = answered * spec.selectivity / dt
        self._seconds += dt
        self._load = [x + y * dt for x, y in zip(self._load, load, strict=True)]
        if not down:
            self.response_ms = response
            self._worst = max(self._worst, response)

    def sample(self, at_s: float, downtime_ms: Mapping[Kind, float], rng: np.random.Generator) -> Sample:
        """Return the measurements since the last sample, with 3 % of noise in a replica's use."""
        operators = []
        for o, spec in enumerate(self.specs):
            n, (arrived, answered, used) = len(self.placed[o]), self._seen[o]
            per_s = 1 / (self._seconds * n)
            replicas = tuple(
                Replica(
                    name=name,
                    node=f"n{node}",
                    use=min(used / self._seconds * max(rng.normal(1, 0.03), 0), 1.0),
                    arrivals=arrived * per_s,
                    answers=answered * per_s,
                    outputs=answered * per_s * spec.selectivity,
                    backlog=self.backlog[o] / n,
                )
                for name, node in self.placed[o].items()
            )
            upstream = (self.specs[o - 1].name,) if o else ()
            operators.append(OperatorSample(spec.name, replicas, upstream, spec.max_replicas))
        taken = [sum(list(p.values()).count(n) for p in self.placed) for n in range(NODES)]
        nodes = tuple(
            Host(
                f"n{n}",
                min(self._load[n] / self._seconds / CORES, 1.0),
                ROOM - taken[n],
                {f"n{m}": float(self.delays[n, m]) for m in range(NODES) if m != n},
            )
            for n in range(NODES)
        )
        made = Sample(at_s, tuple(operators), nodes, self._worst, downtime_ms)
        self._reset()
        return made

    def carry_out(self, plan: Plan) -> None:
        """Carry out a granted plan."""
        o = next(i for i, s in enumerate(self.specs) if s.name == plan.operator)
        if plan.kind == "migrate" and plan.replica and plan.target:
            self.placed[o][plan.replica] = int(plan.target[1:])
        while len(self.placed[o]) < plan.replicas:
            self._add(o, plan.target)
        while len(self.placed[o]) > max(plan.replicas, 1):
            self.placed[o].pop(plan.replica if plan.replica in self.placed[o] else next(reversed(self.placed[o])))

    def _add(self, o: int, target: str | None) -> None:
        taken = [sum(list(p.values()).count(n) for p in self.placed) for n in range(NODES)]
        self.placed[o][f"r{self._next}"] = int(target[1:]) if target else int(np.argmin(taken))
        self._next += 1

    def _reset(self) -> None:
        self._seen = [[0.0, 0.0, 0.0] for _ in self.specs]
        self._use = getattr(self, "_use", [0.0] * len(self.specs))
        self._load = [0.0] * NODES
        self._seconds = self._worst = 0.0


def play(
    rates: np.ndarray, policy: str, settings: Mapping[str, float], downtime_ms: Mapping[Kind, float], seed: int, dt: float = 1.0
) -> Outcome:
    """Run over these rates, one per second; the policy decides every CONTROL_S."""
    rng = np.random.default_rng(seed)
    chain, controller, out = Chain(rng), Controller(Header(policy, settings, seed)), Outcome()
    down_until, every = 0.0, round(CONTROL_S / dt)
    for i in range(int(len(rates) / dt)):
        now = i * dt
        down = min(max(down_until - now, 0.0), dt)
        chain.tick(float(rates[int(now)]), down > dt / 2, dt)
        out.down_s += down
        out.responses_ms.append(chain.response_ms)
        out.replicas.append(sum(len(p) for p in chain.placed))
        if (i + 1) % every == 0:
            decision: ScalingDecision = controller.decide(chain.sample(now + dt, downtime_ms, rng)).decision
            for plan in decision.granted:
                chain.carry_out(plan)
                down_until = max(down_until, now + dt + plan.cost_ms / 1000)  # one pause for all steps of a round
            out.steps += [(now + dt, plan) for plan in decision.granted]
            # a secondary execution has as many replicas as the primary one
            prepared = [len(chain.placed[o]) for o, s in enumerate(chain.specs) if s.name in decision.prepared]
            out.replica_s += sum(prepared) * CONTROL_S
    out.seconds = len(rates)
    out.replica_s += float(np.sum(out.replicas)) * dt
    return out


def settling_steps(policy: str, settings: Mapping[str, float], downtime_ms: Mapping[Kind, float], seed: int) -> float:
    """The number of rounds with a granted step after a sudden rise of the load; median over rises by factors of 1.5, 2 and 3."""
    counts = []
    for factor in (1.5, 2.0, 3.0):
        rates = np.full(3600, PEAK_PER_S / factor)
        rates[1800:] = PEAK_PER_S
        rates *= np.random.default_rng(seed).normal(1, 0.03, len(rates))
        counts.append(len({t for t, _ in play(rates, policy, settings, downtime_ms, seed).steps if t > 1800}))
    return float(np.median(counts))
