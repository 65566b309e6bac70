"""The part on Spark: many seeds' streaming queries, two at a time, in one application, on one platform under fire."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import psutil

from benchmarks.bringup import Platform, say
from benchmarks.chaos.judge import Mismatch
from benchmarks.chaos.lanes import Outcome
from benchmarks.chaos.streaming import StreamingQuery, report
from udo_cli import local
from udo_cli.home import Home
from udo_interface.java import spark_session
from udo_protocol.errors import UdoError

AT_ONCE, DEPLOYMENTS = 2, 2
INSTANCE, UPDATE, QUEUE, STATE, MANAGER, REGISTRY = (
    "instance killed",
    "live update",
    "queue server killed",
    "state server killed",
    "node manager killed",
    "registry away",
)
WEIGHTS = {INSTANCE: 6.0, UPDATE: 2.0, QUEUE: 1.0, STATE: 1.0, MANAGER: 0.7, REGISTRY: 0.7}


class PlatformFaults:
    """Faults of the whole platform, one at a time."""

    def __init__(self, p: Platform) -> None:
        self._platform, self._lock, self._started = p, Lock(), time.monotonic()
        self._versions: dict[str, str] = {}
        self.happened: list[str] = []

    def draw(self, deployment: str, rng: random.Random) -> str:
        """One fault, at once; its name. What is away is back (or coming back) when it returns."""
        [kind] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        with self._lock:
            self.happened.append(f"{time.monotonic() - self._started:7.3f} {kind} ({deployment})")
            try:
                self._step(kind, deployment)
            except (UdoError, OSError, StopIteration, psutil.Error) as e:
                return f"{kind} ({type(e).__name__})"
        return kind

    def _step(self, kind: str, deployment: str) -> None:
        p = self._platform
        if kind == INSTANCE:
            os.kill(next(s.pid for s in p.node().status().slots if s.deployment == deployment and s.pid), signal.SIGKILL)
        elif kind in (QUEUE, STATE):
            role = kind.split()[0]
            os.kill(next(s.pid for s in p.node().status().servers if s.role == role), signal.SIGKILL)
        elif kind == UPDATE:
            version = "2" if self._versions.get(deployment, "1") == "1" else "1"
            with p.registry() as registry:
                if [e["phase"] for e in registry.update(deployment, version)][-1] == "done":
                    self._versions[deployment] = version
        else:
            name = "node_manager" if kind == MANAGER else "registry"
            # All that run it: the registry's worker would answer on for a moment.
            processes = [c for c in p.processes().get(name, []) if f"-m {name}" in " ".join(c.cmdline())]
            for process in processes:
                process.kill()
            psutil.wait_procs(processes, 10)
            local.start(p.home, _options(p.home), lambda _: None)


def _options(home: Home) -> local.Options:
    """With an address that a registry started again has as well."""
    return local.Options(listen=f"unix:{home.path}/r.sock")


@contextmanager
def _platform() -> Iterator[Platform]:
    home = Home(Path(tempfile.mkdtemp(prefix="udo-")))
    try:
        started = local.start(home, _options(home), say)
        yield Platform(home, started.registry, started.node)
    finally:
        local.stop(home, say)
        shutil.rmtree(home.path, ignore_errors=True)


def run(seeds: Iterable[int], *, deadline_s: float = float("inf"), done: Callable[[int], None] = lambda seed: None) -> Outcome:
    """All seeds; no new one starts `deadline_s` after Spark is up."""
    outcome = Outcome()
    with _platform() as p:
        for version in ("1", "2"):
            p.push("history", version)
        for i in range(DEPLOYMENTS):
            p.deploy(f"h{i}", "history")
        conf = {"spark.udo.registry": p.registry_url, "spark.udo.node": p.node_socket, "spark.ui.enabled": "false"}
        say("starting Spark")
        spark = spark_session("udo-chaos", master="local[2,3]", **conf)
        spark.sparkContext.setLogLevel("OFF")
        faults, started = PlatformFaults(p), time.monotonic()

        def one(seed: int) -> tuple[int, StreamingQuery | None, str, float]:
            if time.monotonic() - started > deadline_s:
                return seed, None, "", 0.0
            name, at = f"h{seed % DEPLOYMENTS}", time.monotonic()
            query = StreamingQuery(spark, p.home.path / f"seed-{seed}", name, p.home.node, seed, lambda rng: faults.draw(name, rng))
            try:
                query.run()
                error = ""
            except Mismatch as e:
                error = str(e)
            except Exception:
                error = traceback.format_exc()
            return seed, query, error, time.monotonic() - at

        try:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="seed") as pool:
                for future in as_completed([pool.submit(one, s) for s in seeds]):
                    seed, query, error, took_s = future.result()
                    if query is None:
                        continue
                    outcome.seeds += 1
                    outcome.runs += query.runs
                    outcome.faults += query.faults
                    outcome.slowest_s = max(outcome.slowest_s, took_s)
                    if error:
                        outcome.reports[seed] = report(seed, query, error, faults.happened)
                    else:
                        done(seed)
        finally:
            spark.stop()
    return outcome
