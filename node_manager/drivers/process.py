"""Instances as processes of this machine: own session, own directory, bounded by resident memory and open files.

It isolates neither files nor network nor users: an operator may do what the node manager's user may do.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import subprocess
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from threading import Event, Lock, Thread

from node_manager import proc
from node_manager.drivers import logfile
from node_manager.drivers.base import OWN_PYTHON_TAG, Allowance, Capabilities, Exit, Handle, Inside, Inspection, OnExit, Spec
from udo_protocol.errors import OperatorError

# Memory is sampled this often while the instance works, and once a second while it idles: one sample costs ~0.1 ms.
BUSY_SAMPLE_S, IDLE_SAMPLE_S = 0.1, 1.0
# Raises an operator's chance to be chosen when the whole machine runs out of memory, before servers and Spark.
OOM_SCORE = 500


class _Task:
    """One watched process: a thread waits for its death and samples it meanwhile."""

    def __init__(
        self, process: proc.ProcessId, log: Path, allowance: Allowance, on_exit: OnExit, child: subprocess.Popen[bytes] | None
    ) -> None:
        self.process, self.log, self.allowance, self.on_exit, self.child = process, log, allowance, on_exit, child
        self.rss_bytes, self.cpu_s, self.cpu_percent, self.sampled_at = 0, 0.0, 0.0, time.monotonic()
        self.reason = ""
        self.exit: Exit | None = None
        self.ended = Event()

    def watch(self, fd: int | None) -> None:
        """Until it is dead; then report how it ended and kill what it left in its group."""
        if fd is not None:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            interval_s = BUSY_SAMPLE_S
            while not poll.poll(interval_s * 1000):
                interval_s = BUSY_SAMPLE_S if self.sample() else IDLE_SAMPLE_S
            os.close(fd)
        self.finish()

    def sample(self) -> bool:
        """Measure, enforce the memory limit, bound the log; whether it has worked since the last sample."""
        rss, cpu_s = proc.usage(self.process.pid)
        now = time.monotonic()
        busy = cpu_s - self.cpu_s > 0.005 or rss > self.rss_bytes
        self.cpu_percent = 100 * max(0.0, cpu_s - self.cpu_s) / max(now - self.sampled_at, 1e-3)
        self.rss_bytes, self.cpu_s, self.sampled_at = rss, cpu_s, now
        limit = self.allowance.memory_bytes
        if limit and rss > limit and not self.reason:
            self.reason = (
                f"killed: memory limit of {limit >> 20} MiB exceeded, {rss >> 20} MiB resident; "
                "raise limits.memory_mb in operator.toml or use less"
            )
            proc.signal_group(self.process, 9)
        logfile.bound(self.log)
        return busy

    def finish(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # its session: nobody else can have this group
            os.killpg(self.process.pid, 9)
        code = self.child.wait() if self.child else None
        self.exit = Exit(code, self.reason)
        self.rss_bytes, self.cpu_percent = 0, 0.0
        self.ended.set()
        self.on_exit(self.exit)


class ProcessDriver:
    """See the module."""

    name = "process"
    python_tag = OWN_PYTHON_TAG

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._lock = Lock()

    def capabilities(self) -> Capabilities:
        return Capabilities(memory_limit=True, open_files_limit=True)

    def inside(self, directory: Path, sockets: Path) -> Inside:
        return Inside(str(directory), str(sockets), str(directory), images=True)

    def sweep(self, known: Collection[str]) -> None:
        """Nothing: a process without a handle cannot be told from others; without a manager it stops itself."""

    def start(self, spec: Spec, on_exit: OnExit) -> Handle:
        try:
            with (spec.directory / "log").open("ab") as log:
                child = subprocess.Popen(
                    spec.argv,
                    cwd=spec.directory,
                    env=dict(spec.env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as e:
            raise OperatorError(f"instance {spec.instance} cannot be started: {spec.argv[0]}: {e}") from e
        process = proc.identify(child.pid)
        assert process is not None, "a child that is not yet reaped has an identity"
        handle = Handle(self.name, spec.instance, str(spec.directory), {"pid": process.pid, "started": process.started})
        self._watch(handle, _Task(process, spec.directory / "log", spec.allowance, on_exit, child))
        self.limit(handle, spec.allowance)
        with contextlib.suppress(OSError):
            Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(OOM_SCORE))
        return handle

    def recover(self, handle: Handle, allowance: Allowance, on_exit: OnExit) -> bool:
        process = _process(handle)
        if not proc.alive(process):
            return False
        self._watch(handle, _Task(process, Path(handle.directory) / "log", allowance, on_exit, None))
        return True

    def _watch(self, handle: Handle, task: _Task) -> None:
        with self._lock:
            self._tasks = {k: t for k, t in self._tasks.items() if not t.ended.is_set()}
            self._tasks[handle.instance] = task
        Thread(target=task.watch, args=(proc.open_pidfd(task.process),), name=f"watch-{handle.instance}", daemon=True).start()

    def limit(self, handle: Handle, allowance: Allowance) -> None:
        if task := self._tasks.get(handle.instance):
            task.allowance = allowance
        if allowance.open_files:
            with contextlib.suppress(ProcessLookupError):
                _, most = resource.prlimit(handle.data["pid"], resource.RLIMIT_NOFILE)
                files = allowance.open_files if most == resource.RLIM_INFINITY else min(allowance.open_files, most)
                resource.prlimit(handle.data["pid"], resource.RLIMIT_NOFILE, (files, most))

    def stop(self, handle: Handle, grace_s: float) -> None:
        proc.terminate(_process(handle), grace_s)
        if task := self._tasks.get(handle.instance):
            task.ended.wait(5)

    def kill(self, handle: Handle, reason: str) -> None:
        if task := self._tasks.get(handle.instance):
            task.reason = task.reason or reason
        proc.signal_group(_process(handle), 9)

    def inspect(self, handle: Handle) -> Inspection:
        task = self._tasks.get(handle.instance)
        if task is None or task.ended.is_set():
            return Inspection(False, exit=task.exit if task else None)
        if not task.rss_bytes:
            task.sample()
        return Inspection(True, task.process.pid, task.rss_bytes, task.cpu_percent)

    def logs(self, handle: Handle, *, tail_lines: int, follow: bool, stop: Event) -> Iterator[str]:
        path = Path(handle.directory) / "log"
        return logfile.read(path, tail_lines=tail_lines, follow=follow, stop=stop, running=lambda: proc.alive(_process(handle)))


def _process(handle: Handle) -> proc.ProcessId:
    return proc.ProcessId(handle.data["pid"], handle.data["started"])
