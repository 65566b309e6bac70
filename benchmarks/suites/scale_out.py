"""Scaling out a stateful operator under load (paper 3): by active backup and by checkpoint, compared with stop-and-restart.

A pattern count whose operator takes a fixed time per event (it sleeps, so that a second slot helps on any machine) gets an open
loop of events whose rate doubles. Every quarter of a second the package's fuzzy detection evaluates the last second of the stream, with
thresholds below saturation: the shipped ones wait until work queues. At δ2′ the scale-out is prepared, at δ2 taken over. Stop-and-restart
writes a full savepoint each second; at δ2 the query is stopped, the deployment removed and deployed again from a last savepoint with two
slots, and the query restarted. A load that swings over δ2′ without reaching δ2 shows how long backups run, for several values of δ2′.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.harness.bringup import Platform, platform, say, wait_until
from benchmarks.harness.quantiles import medians, percentile
from benchmarks.harness.rules import InvalidRun, check_sequence
from benchmarks.harness.tables import Section
from benchmarks.loads.scale_load import SESSION, ChangingLoad
from benchmarks.operators.patterns.patterns import SERVICE_S
from elasticity.bottleneck import fuzzy
from elasticity.bottleneck.detector import Hysteresis, OperatorHistory, step
from elasticity.bottleneck.signals import SlotSample, inputs
from elasticity.scaling.scale_out import fairness_degree
from udo_cli import state_file
from udo_cli.platform import plans
from udo_protocol.errors import UdoError

OPERATOR = "patterns"
BACKUP, CHECKPOINT, RESTART = "active_backup", "checkpoint", "stop_and_restart"
STRATEGIES = (BACKUP, CHECKPOINT, RESTART)
# A slot answers 1 / SERVICE_S = 400 events/s; the rate begins at 60 % of that, and doubles.
FROM_PER_S = 0.6 / SERVICE_S
# δ2′ and δ2. The shipped rules give, without a queue, a load of 33 at a use of 74 %, and 45 at 89 %.
ALARMING, SCALE_OUT = 33.0, 44.0
LOOK_S, WINDOW_S = 0.25, 1.0
REFRESH_S = 1.0
PATTERNS, QUICK_PATTERNS, BLOB_BYTES = 10_000, 1_000, 1_000
# The seconds before the rate rises, while it doubles, and after that.
SPANS, QUICK_SPANS = (5.0, 20.0, 10.0), (2.0, 4.0, 2.5)
ROUNDS, QUICK_ROUNDS = 3, 1
# The values of δ2′ for the swinging load, whose use is between 55 % and 82 %, that is, loads of 26 to 39.
SWEEP, QUICK_SWEEP = (0.0, 20.0, 30.0, 36.0, 42.0), (30.0,)
SWINGS_S, QUICK_SWINGS_S, SWING_S = 40.0, 6.0, 5.0
SPEEDUP_S = 3.0
_NEVER = 101.0  # a δ2 that no load reaches
_STEP_S = 120.0
# The longest wait for a take-over: on a busy machine slots are slow to start.
_LATE_S = 60.0
# Answers later than this after the take-over are not attributed to it.
_AFTER_S = 2.0


@dataclass
class Watched:
    """One run: `decided`, when δ2 was reached; `done`, when the slots had taken over (perf_counter); the numbers of slots at each look."""

    decided: float = 0.0
    done: float = 0.0
    prepared_at: float = 0.0
    steps: int = 0
    slots: list[tuple[float, int, int]] = field(default_factory=list)  # (time, serving, on standby)
    errors: list[Exception] = field(default_factory=list)


@dataclass(frozen=True)
class ScaledOut:
    """One scale-out, or the medians of several; latencies from the decision until _AFTER_S after the take-over."""

    latency_bump: float
    normal_p99_ms: float
    p99_ms: float
    worst_ms: float
    downtime_ms: float
    take_over_ms: float
    fairness: float
    resource_seconds: float


@dataclass(frozen=True)
class Swung:
    """A swinging load: the share of time with a backup, the steps, and the latency."""

    prepared_percent: float
    steps: int
    p99_ms: float


@dataclass(frozen=True)
class Figures:
    """By strategy, and by δ2′ under a swinging load."""

    active_backup: ScaledOut
    checkpoint: ScaledOut
    stop_and_restart: ScaledOut
    slots_speedup: float
    alarming_swept: dict[str, Swung]
    rounds: int
    patterns: int


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the whole suite; the seed determines the patterns."""
    spans, patterns = (QUICK_SPANS, QUICK_PATTERNS) if quick else (SPANS, PATTERNS)
    found: dict[str, list[ScaledOut]] = {strategy: [] for strategy in STRATEGIES}
    with platform(driver) as p:
        p.push(OPERATOR, "1")
        speedup = _speedup(p, seed)
        for round_ in range(QUICK_ROUNDS if quick else ROUNDS):
            for strategy in STRATEGIES:
                made = Contender(p, f"{strategy.replace('_', '-')}{round_}", strategy, patterns).double(spans, seed + round_)
                say(f"round {round_ + 1}, {strategy}: {made}")
                found[strategy].append(made)
        swept = {}
        for alarming in QUICK_SWEEP if quick else SWEEP:
            contender = Contender(p, f"swing{alarming:g}", BACKUP, patterns, alarming, _NEVER)
            swept[f"{alarming:g}"] = swung = contender.swing(QUICK_SWINGS_S if quick else SWINGS_S, seed)
            say(f"swinging load, δ2′ = {alarming:g}: {swung}")
    backup, checkpoint, restart = (medians(found[s], 3) for s in STRATEGIES)
    return Figures(backup, checkpoint, restart, speedup, swept, len(found[BACKUP]), patterns)


def _speedup(p: Platform, seed: int) -> float:
    """Measure the events/s of two slots, as fast as they answer, as a ratio to those of one."""
    rates = []
    for slots in (1, 2):
        contender = Contender(p, f"speed{slots}", BACKUP, QUICK_PATTERNS, slots=slots)
        with contender.loaded(lambda _: 4 / SERVICE_S, seed, settle=False) as load:
            time.sleep(0.5)
            before, begun = load.answered, time.perf_counter()
            time.sleep(SPEEDUP_S / slots)
            rates.append((load.answered - before) / (time.perf_counter() - begun))
            load.hold.set()
        contender.remove()
    return round(rates[1] / rates[0], 2)


class Contender:
    """One strategy's deployment and its load."""

    def __init__(
        self, p: Platform, name: str, strategy: str, patterns: int, alarming: float = ALARMING, scale_out: float = SCALE_OUT, slots: int = 1
    ) -> None:
        self._p, self.name, self._strategy, self._node = p, name, strategy, p.node()
        rules = fuzzy.shipped()
        self._rules = replace(rules, thresholds=replace(rules.thresholds, scale_in=0.0, alarming=alarming, scale_out=scale_out))
        self.watched, self._serving, self._ready = Watched(), slots, 0
        self._file = p.home.path / f"{name}.state"
        p.deploy(name, OPERATOR, slots=slots, elasticity={"mode": "off"})
        self._load = ChangingLoad(p.node_socket, name, patterns, BLOB_BYTES, 1)
        self._load.fill()

    def double(self, spans: tuple[float, float, float], seed: int) -> ScaledOut:
        """Double the rate; return the figures of the scale-out."""
        before, rising, after = spans

        def rate(at_s: float) -> float:
            return FROM_PER_S * (1 + min(max((at_s - before) / rising, 0.0), 1.0))

        with self.loaded(rate, seed) as load:
            self._watch(load, sum(spans))
        self._judge()
        self.remove()
        return self._told(rate)

    def swing(self, seconds: float, seed: int) -> Swung:
        """Let the load alternate around δ2′; return the share of time in which a backup runs, the steps, and the latency."""

        def rate(at_s: float) -> float:
            return FROM_PER_S * (0.92 if int(at_s / SWING_S) % 2 else 1.36)

        with self.loaded(rate, seed) as load:
            self._watch(load, seconds, take_over=False)
        self._judge()
        self.remove()
        ready = [bool(n) for _, _, n in self.watched.slots]
        latency = np.sort(self._latencies())
        return Swung(round(100 * sum(ready) / len(ready), 1), self.watched.steps, round(percentile(latency, 0.99), 2))

    # -- the stream --------------------------------------------------------------------------------------------------

    def loaded(self, rate: Callable[[float], float], seed: int, *, settle: bool = True) -> _Running:
        self._load.rate_at = rate
        return _Running(self._load, seed, settle)

    def _judge(self) -> None:
        """InvalidRun unless every event was answered once, with the right count."""
        if self.watched.errors:
            raise InvalidRun(f"a step of {self.name} failed: {self.watched.errors[0]}") from self.watched.errors[0]
        ids = np.sort(self._load.column("id"))
        check_sequence(ids, self._load.sent).require_clean(self.name)  # order is guaranteed within a key only, and the counts show it
        self._load.require_counts()

    def _latencies(self) -> np.ndarray:
        """The latency of each answered event in ms, in order of the answers."""
        due = np.array(self._load.due)[self._load.column("id")]
        return np.asarray((self._load.arrivals() - due) * 1000)

    # -- detection and steps -----------------------------------------------------------------------------------------

    def _watch(self, load: ChangingLoad, seconds: float, *, take_over: bool = True) -> None:
        history, counts, acting = OperatorHistory(), [(time.perf_counter(), 0.0, 0)], None
        patience = Hysteresis(confirm=2, calm=1 << 30, settle=0, band=2.0)
        until, saver = load.begun + seconds, threading.Event()
        if self._strategy == RESTART:
            threading.Thread(target=self._savepoints, args=(saver,), daemon=True).start()
        while (now := time.perf_counter()) < until or (take_over and now < max(until + _LATE_S * (not self.watched.done), self._settled())):
            self.watched.slots.append((now, self._serving, self._ready))
            counts = [c for c in counts if c[0] >= now - WINDOW_S - LOOK_S / 2]
            busy = acting is not None and acting.is_alive()
            if len(counts) > 1 and not busy:
                history, what = step(
                    history, self._load_of(counts[0], (now, load.produced(now), load.answered)), self._rules.thresholds, patience
                )
                action = self._action(what, take_over and self._serving == 1, saver)
                if action is not None:
                    self.watched.steps += 1
                    acting = threading.Thread(target=self._act, args=(action,), daemon=True)
                    acting.start()
            counts.append((now, load.produced(now), load.answered))
            time.sleep(LOOK_S)
        saver.set()
        if acting is not None:
            acting.join(_STEP_S)

    def _settled(self) -> float:
        return self.watched.done + _AFTER_S if self.watched.done else 0.0

    def _load_of(self, before: tuple[float, float, int], now: tuple[float, float, int]) -> float:
        """O(x) of a slot, from the numbers of produced and of answered events, shared equally among the slots."""
        took, n = now[0] - before[0], self._serving
        arrivals, answers = (now[1] - before[1]) / took / n, (now[2] - before[2]) / took / n
        backlog = max(now[1] - now[2], 0) / n
        use = min(max(answers, arrivals) * SERVICE_S, 1.0)
        seen = inputs([SlotSample(use, 0.1, use, 0.0, arrivals, answers, backlog)])
        assert seen is not None
        return fuzzy.evaluate(self._rules, seen).load

    def _action(self, what: str, may_take_over: bool, saver: threading.Event) -> Callable[[], None] | None:
        if what == "take_over" and may_take_over:
            self.watched.decided = time.perf_counter()
            saver.set()
            return self._restart if self._strategy == RESTART else self._take_over
        if self._strategy == RESTART:
            return None
        if what == "prepare" and self._serving == 1:
            return self._prepare
        return self._stand_down if what == "stop_prepared" and self._serving == 1 else None

    def _act(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as e:  # makes the run invalid
            self.watched.errors.append(e)

    def _prepare(self) -> None:
        self._ready = 1 if self._strategy == BACKUP else 0  # its resources are counted from here on
        self._node.prepare_scale_out(self.name, 2, self._strategy.replace("_", "-"), REFRESH_S)
        self.watched.prepared_at = time.perf_counter()

    def _stand_down(self) -> None:
        self._node.prepare_scale_out(self.name, 0)
        self._ready = 0

    def _take_over(self) -> None:
        with self._p.registry() as registry:
            registry.scale(self.name, slots=2)
        wait_until(self._shared, _STEP_S, "two slots")
        self._serving, self._ready, self.watched.done = 2, 0, time.perf_counter()

    def _shared(self) -> bool:
        with suppress(UdoError):
            return len([groups for groups in plans.where(self._node, self.name, {}).values() if groups]) == 2
        return False

    # -- stop and restart --------------------------------------------------------------------------------------------

    def _savepoints(self, stop: threading.Event) -> None:
        """Write a full savepoint each second, until the restart begins."""
        while not stop.wait(REFRESH_S):
            with suppress(UdoError):
                self._save(self._file.with_suffix(".periodic"))

    def _save(self, path: Path) -> None:
        parts = self._node.export_state(self.name, SESSION)
        header = next(parts).header
        state_file.write(path, header, state_file.ended_groups(parts, header.state_version))

    def _restart(self) -> None:
        load = self._load
        load.hold.set()
        if not load.held.wait(_STEP_S):
            raise InvalidRun("the query did not stop")
        self._save(self._file)
        self._serving = 0
        with self._p.registry() as registry:
            registry.undeploy(self.name, drop_state=True)
        wait_until(self._gone, _STEP_S, f"the end of {self.name}")
        self._p.deploy(self.name, OPERATOR, elasticity={"mode": "off"})
        summary = state_file.check(self._file)
        self._node.import_state(state_file.parts(self._file, summary, self.name, SESSION, None, False))
        with self._p.registry() as registry:
            registry.scale(self.name, slots=2)
        wait_until(self._shared, _STEP_S, "two slots")
        load.runs += 1
        self._serving, self.watched.done = 2, time.perf_counter()
        load.hold.clear()

    def _gone(self) -> bool:
        with suppress(UdoError):
            return self.name not in {s.deployment for s in self._node.status().slots}
        return False

    def remove(self) -> None:
        """Remove the deployment, to make room for the next one."""
        with self._p.registry() as registry:
            registry.undeploy(self.name, drop_state=True)
        wait_until(self._gone, _STEP_S, f"the end of {self.name}")

    # -- figures -----------------------------------------------------------------------------------------------------

    def _told(self, rate: Callable[[float], float]) -> ScaledOut:
        w, load = self.watched, self._load
        if not w.done:
            raise InvalidRun(f"{self.name}: the load did not make it scale out")
        latency, at = self._latencies(), load.arrivals()
        due = np.array(load.due)[load.column("id")]
        normal = np.sort(latency[due < w.decided - LOOK_S])
        during = np.sort(latency[(due >= w.decided) & (due <= w.done + _AFTER_S)])
        around = at[(at >= w.decided) & (at <= w.done + _AFTER_S)]
        if not len(normal) or len(around) < 2:
            raise InvalidRun(f"{self.name}: too few answers before or during the scale-out")
        times = [t for t, _, _ in w.slots]
        seconds = np.diff([*times, times[-1] + LOOK_S])
        needed = [float(math.ceil(rate(t - load.begun) * SERVICE_S)) for t in times]
        normal_p99, p99 = percentile(normal, 0.99), percentile(during, 0.99)
        return ScaledOut(
            latency_bump=p99 / normal_p99,
            normal_p99_ms=normal_p99,
            p99_ms=p99,
            worst_ms=float(during[-1]),
            downtime_ms=float(np.diff(around).max()) * 1000,
            take_over_ms=(w.done - w.decided) * 1000,
            fairness=fairness_degree([float(n) for _, n, _ in w.slots], needed),
            resource_seconds=float(sum(s * (n + ready) for s, (_, n, ready) in zip(seconds, w.slots, strict=True))),
        )


class _Running:
    """Runs the load inside the block; at its end all events have been answered."""

    def __init__(self, load: ChangingLoad, seed: int, settle: bool) -> None:
        self._load, self._seed, self._settle = load, seed, settle
        self._stop, self._failed = threading.Event(), list[Exception]()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._load.run(self._stop, self._seed)
        except Exception as e:  # makes the run invalid
            self._failed.append(e)

    def __enter__(self) -> ChangingLoad:
        self._thread.start()
        wait_until(lambda: bool(self._failed) or self._load.begun > 0, _STEP_S, "the load to begin")
        return self._load

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._load.hold.clear()
        self._thread.join(_STEP_S)
        if self._failed and kind is None:
            raise InvalidRun(f"the load ended with {type(self._failed[0]).__name__}: {self._failed[0]}") from self._failed[0]


NAMES = {BACKUP: "active backup", CHECKPOINT: "checkpoint", RESTART: "stop and restart"}


def sections(f: Figures) -> list[Section]:
    """The tables of the strategies and of the values of δ2′."""
    head = (
        "",
        "p99, × the normal one",
        "normal p99 (ms)",
        "worst (ms)",
        "longest gap (ms)",
        "until taken over (ms)",
        "fairness",
        "slot seconds",
    )
    rows = [
        [
            *(name, f"{s.latency_bump:.2f}"),
            *(f"{ms:.1f}" for ms in (s.normal_p99_ms, s.worst_ms, s.downtime_ms, s.take_over_ms)),
            *(f"{s.fairness:.2f}", f"{s.resource_seconds:.1f}"),
        ]
        for name, s in zip(NAMES.values(), (f.active_backup, f.checkpoint, f.stop_and_restart), strict=True)
    ]
    remark = (
        f"A rate that doubles from {FROM_PER_S:.0f} events/s; an operator that sleeps {SERVICE_S * 1000:g} ms per event; "
        f"{f.patterns:,} patterns of {BLOB_BYTES:,} bytes; {f.rounds} round(s), medians. Two slots answer "
        f"{f.slots_speedup:.2f} × what one does. Every answer was compared with a plain count."
    )
    swept = [[at, f"{of.prepared_percent:.0f} %", str(of.steps), f"{of.p99_ms:.1f}"] for at, of in f.alarming_swept.items()]
    return [
        Section("Scaling out one slot to two while the rate doubles", head, rows, remark),
        Section("A load that swings between loads of 26 and 39", ("δ2′", "a backup runs", "steps", "p99 (ms)"), swept),
    ]
