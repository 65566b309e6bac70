"""The part on Spark: the streaming queries of many seeds, two at a time, in one application, on one platform under faults."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import Lock, Semaphore

import psutil

from benchmarks.chaos import stops
from benchmarks.chaos.canaries import CANARY, ENDED, PASSES, Canaries, Tried
from benchmarks.chaos.changes import BACK_DOWN, BACK_KEPT, CHANGES, MIGRATE, UPDATE, Changes, kept_everywhere
from benchmarks.chaos.kinds import Kind
from benchmarks.chaos.lanes import KINDS
from benchmarks.chaos.moves import MOVE, SCALE, Moves, mapped, move
from benchmarks.chaos.moves import WEIGHTS as MOVE_WEIGHTS
from benchmarks.chaos.outcome import Outcome
from benchmarks.chaos.stops import STOPPED, Stop, Stops
from benchmarks.chaos.streaming import Called, StreamingQuery
from benchmarks.harness.bringup import Platform, say, spark_of
from node_manager.servers import access
from udo_cli.home import Home
from udo_cli.options.daemons import UpOptions
from udo_cli.platform import local
from udo_protocol.errors import UdoError, WaitTimeout
from udo_protocol.registry.canary import DIFFERENT, Measured

AT_ONCE = 2
INSTANCE, QUEUE, STATE, MANAGER, REGISTRY = (
    "instance killed",
    "queue server killed",
    "state server killed",
    "node manager killed",
    "registry away",
)
# For half of the seeds, events pass a stateless operator first, on the JVM path.
FRONT, FRONT_OPERATOR, FRONT_VERSIONS = "front", "relay", ("1", "2")
FRONT_KILLED, FRONT_UPDATED = "stateless instance killed (JVM path)", "stateless operator updated (JVM path)"
WEIGHTS = {FRONT_KILLED: 3.0, FRONT_UPDATED: 2.0, INSTANCE: 6.0, QUEUE: 1.0, STATE: 1.0, MANAGER: 0.7, REGISTRY: 0.7}
WEIGHTS |= {UPDATE: 4.0, MIGRATE: 2.0, BACK_KEPT: 3.0, BACK_DOWN: 2.0, CANARY: 8.0}
_OF_FRONT = {FRONT_KILLED, FRONT_UPDATED}
_NODE_WIDE = {QUEUE, STATE, MANAGER, REGISTRY}
_PARTS = (stops.INSTANCE, stops.QUEUE, stops.STATE, stops.MANAGER, stops.REGISTRY)
# Enough for the faults that two queries draw in one epoch each, and canaries of the epochs before.
_FAULTS_AT_ONCE = 6
_CANARY_S = 8.0  # some epochs
_SCALE_S, _LOOK_S = 20.0, 0.05
_NEVER_ENOUGH = 1 << 40  # events


class _Versions:
    """Changes and canaries by way of the registry: see benchmarks.chaos.changes and canaries."""

    def __init__(self, p: Platform, kinds: Mapping[str, Kind]) -> None:
        self._platform, self._kinds = p, kinds

    def version(self, deployment: str) -> str:
        with self._platform.registry() as registry:
            return str(registry.deployment(deployment)["version"])

    def kept(self, deployment: str) -> str | None:
        kind, home = self._kinds[deployment], self._platform.home.node
        if kind.chained:
            return None
        with closing(access.connect(home, "state")) as state, closing(access.connect(home, "queue")) as queue:
            digest = kept_everywhere(state, queue, deployment, mapped(self._platform.node(), deployment))
        with self._platform.registry() as registry:
            return str(registry.version(kind.operator, digest)["version"]) if digest else ""

    def change(self, deployment: str, version: str, *, back: bool) -> str:
        with self._platform.registry() as registry:
            back = back and version in [p["version"] for p in registry.deployment(deployment)["previous"]]
            last = list((registry.rollback if back else registry.update)(deployment, version))[-1]
        return "" if last["phase"] == "done" else str(last["detail"])

    def rolls_dice(self, deployment: str) -> bool:
        return self._kinds[deployment].chained

    def try_out(self, deployment: str, version: str, percent: float, for_s: float, ending: str) -> Tried | str:
        conditions = ["errors>0"] if self.rolls_dice(deployment) else ["errors>0", f"{DIFFERENT}>0"]
        # A canary to be ended by the user lasts three times as long, so that it still ends by itself if that fails.
        lasts_s, enough = 3 * for_s if ending == ENDED else for_s, 1 if ending == PASSES else _NEVER_ENOUGH
        wish = {"percent": percent, "for_s": lasts_s, "rollback_if": conditions, "min_events": enough}
        with self._platform.registry() as registry:
            serving, update = self.version(deployment), ""
            for event in registry.update(deployment, version, canary=wish):
                update = event["id"]
                if event["phase"] == "sharing" and ending == ENDED:
                    time.sleep(for_s)
                    with suppress(UdoError):  # the registry is away, or has decided already
                        list(registry.rollback(deployment, serving))
            told = registry.update_status(update)
        if told["canary"]["since"] is None:
            return str(told["detail"])
        counted = [Measured(**{k: v for k, v in (n["measured"] or {}).items() if k != "at"}) for n in told["nodes"]]
        return Tried(Measured.together(counted), told["state"] == "done", f"{ending}: {told['detail']}")


class _Slots:
    """Moves by way of the node, and scaling by way of the registry: see benchmarks.chaos.moves."""

    def __init__(self, p: Platform) -> None:
        self._platform = p

    def slots(self, deployment: str) -> list[int]:
        return mapped(self._platform.node(), deployment)

    def move(self, deployment: str, groups: Sequence[int], to: int, strategy: str) -> None:
        move(self._platform.node(), deployment, groups, to, strategy)

    def scale(self, deployment: str, count: int) -> None:
        with self._platform.registry() as registry:
            registry.scale(deployment, count)
        deadline = time.monotonic() + _SCALE_S
        while len(self.slots(deployment)) != count:
            if time.monotonic() > deadline:
                raise WaitTimeout(f"waited {_SCALE_S:g} s for {count} slots of {deployment}")
            time.sleep(_LOOK_S)


class PlatformFaults:
    """Faults of the whole platform, drawn by a query and run alongside it. `happened`: one line per fault, with its time and result."""

    def __init__(self, p: Platform, kinds: Mapping[str, Kind], weights: Mapping[str, float], slots: int) -> None:
        versions, self._weights, self._moves = _Versions(p, kinds), weights, Moves(_Slots(p), slots)
        self.stops = Stops(self._pids, self._well)
        self._platform, self._changes, self._started = p, Changes(versions), time.monotonic()
        self.canaries = Canaries(versions, self._changes, _CANARY_S)
        self._pool = ThreadPoolExecutor(_FAULTS_AT_ONCE, thread_name_prefix="fault")
        self._free, self._node_wide, self._counting, self._front = Semaphore(_FAULTS_AT_ONCE), Lock(), Lock(), Lock()
        self.counts: Counter[str] = Counter()
        self.happened: list[str] = []

    def draw(self, deployment: str, rng: random.Random) -> None:
        """Draw a fault and run it within the next half second; none if too many are under way. Draws the same from `rng` in either case."""
        [kind] = rng.choices(list(self._weights), list(self._weights.values()))
        after_s, stop = rng.random() / 2, Stop.draw(rng, _PARTS)
        if self._free.acquire(blocking=False):
            self._pool.submit(self._run, deployment, kind, after_s, stop)

    def close(self) -> None:
        """Wait for the faults under way."""
        self._pool.shutdown()

    def _run(self, deployment: str, kind: str, after_s: float, stop: Stop) -> None:
        time.sleep(after_s)
        took, why, at = list[str](), "", time.monotonic() - self._started
        try:
            if kind in CHANGES:
                took, why = self._changes.run(deployment, kind, pause_s=after_s)
            elif kind in (MOVE, SCALE):
                took, why = self._moves.run(deployment, kind, random.Random(after_s))
            elif kind in _OF_FRONT:
                with self._front:  # one at a time: an update waits for the one before it
                    took, why = [kind], self._at_front(kind)
            elif kind == CANARY:
                with self._changes.alone(deployment) as alone:
                    took, why = self.canaries.run(deployment, random.Random(after_s)) if alone else ([], "a change is under way")
            else:
                with self._node_wide if kind in _NODE_WIDE else nullcontext():
                    if kind == STOPPED:
                        why, took = str(stop), self.stops.happen(deployment, stop)
                    else:
                        self._break(kind, deployment, random.Random(after_s))
                        took = [kind]
        except (UdoError, OSError, LookupError, StopIteration, psutil.Error) as e:
            why = f"{type(e).__name__}: {e}"
        finally:
            self._free.release()
            with self._counting:
                self.counts.update(took)
                self.happened.append(f"{at:7.3f} {kind} on {deployment}: {', '.join(took) or 'did not take place'} {why[:300]}".rstrip())

    def _break(self, kind: str, deployment: str, rng: random.Random) -> None:
        """Kill a part of the platform; on return it is back, or coming back."""
        p = self._platform
        if kind == INSTANCE:
            os.kill(rng.choice(self._pids(stops.INSTANCE, deployment)), signal.SIGKILL)
        elif kind in (QUEUE, STATE):
            role = kind.split()[0]
            os.kill(next(s.pid for s in p.node().status().servers if s.role == role), signal.SIGKILL)
        else:
            processes = self._processes("node_manager" if kind == MANAGER else "registry")
            for process in processes:
                process.kill()
            psutil.wait_procs(processes, 10)
            local.start(p.home, _options(p.home), lambda _: None)

    def _at_front(self, kind: str) -> str:
        """Kill or update the stateless operator; return the version to which it was updated, '' after a kill."""
        if kind == FRONT_KILLED:
            os.kill(self._pids(stops.INSTANCE, FRONT)[0], signal.SIGKILL)
            return ""
        with self._platform.registry() as registry:
            other = FRONT_VERSIONS[registry.deployment(FRONT)["version"] == FRONT_VERSIONS[0]]
            last = list(registry.update(FRONT, other))[-1]
        if last["phase"] != "done":
            raise UdoError(str(last["detail"]))
        return f"to {other}"

    def _processes(self, name: str) -> list[psutil.Process]:
        """The processes of a module, including the registry's worker, which would otherwise go on answering for a moment."""
        return [c for c in self._platform.processes().get(name, []) if f"-m {name}" in " ".join(c.cmdline())]

    def _pids(self, part: str, deployment: str) -> list[int]:
        if part in (stops.MANAGER, stops.REGISTRY):
            return [c.pid for c in self._processes(part.replace(" ", "_"))]
        status = self._platform.node().status()
        if part == stops.INSTANCE:
            return [s.pid for s in status.slots if s.deployment == deployment and s.pid and not s.pinned]
        return [s.pid for s in status.servers if s.role == part.split()[0]]

    def _well(self, deployment: str) -> bool:
        try:
            status = self._platform.node().status()
            with self._platform.registry() as registry:
                live = registry.health()["live_nodes"]
        except UdoError:
            return False
        served = any(s.deployment == deployment and s.pid and not s.pinned for s in status.slots)
        return bool(live) and served and not any(s.trouble for s in status.servers)


def _options(home: Home) -> UpOptions:
    """Options with a fixed address, which a restarted registry keeps."""
    return UpOptions(listen=f"unix:{home.path}/r.sock")


@contextmanager
def _platform() -> Iterator[Platform]:
    home = Home(Path(tempfile.mkdtemp(prefix="udo-")))
    try:
        started = local.start(home, _options(home), say)
        yield Platform(home, started.registry, started.node)
    finally:
        local.stop(home, say)
        shutil.rmtree(home.path, ignore_errors=True)


def run(
    seeds: Iterable[int],
    *,
    weights: Mapping[str, float] = WEIGHTS,
    deadline_s: float = float("inf"),
    done: Callable[[int], None] = lambda seed: None,
    slots: int = 1,
) -> Outcome:
    """Run all seeds, with `slots` slots per deployment (several: subject to moves); none starts once Spark has been up for `deadline_s`."""
    outcome = Outcome()
    if slots > 1:
        weights = {**weights, **MOVE_WEIGHTS}
    with _platform() as p:
        for kind in dict.fromkeys(KINDS):
            for version, otherwise in kind.versions.items():
                p.push(kind.operator, version, **otherwise)
        for version in FRONT_VERSIONS:
            p.push(FRONT_OPERATOR, version)
        p.deploy(FRONT, FRONT_OPERATOR)
        deployed = {f"d{i}": kind for i, kind in enumerate(KINDS)}
        for name, kind in deployed.items():
            p.deploy(name, kind.operator, slots=slots)
        conf = {"spark.udo.registry": p.registry_url, "spark.udo.node": p.node_socket}
        say("starting Spark")
        with spark_of(conf, "udo-chaos", "local[2,3]") as spark:
            spark.sparkContext.setLogLevel("OFF")
            faults, started = PlatformFaults(p, deployed, weights, slots), time.monotonic()

            def query_of(seed: int) -> StreamingQuery | None:
                if time.monotonic() - started > deadline_s:
                    return None
                name = f"d{seed % len(KINDS)}"
                called = Called(name, deployed[name], p.home.node, FRONT if seed % 2 else "")
                fault = partial(faults.draw, name)
                return StreamingQuery(spark, p.home.path / f"seed-{seed}", called, seed, fault, lambda: faults.stops.stood_still_s)

            def report(seed: int, query: StreamingQuery, error: str) -> str:
                befell = ["what befell the platform:", *faults.happened[-40:]]
                return "\n".join([f"seed {seed} on Spark: MISMATCH", error, *query.trace, *befell])

            try:
                outcome.play(seeds, AT_ONCE, query_of, report, done)
            finally:
                faults.close()
        outcome.faults += faults.counts
        outcome.add(faults.canaries, faults.happened[-60:])
        outcome.add_stops(faults.stops, faults.happened[-60:])
    return outcome
