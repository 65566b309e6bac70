"""Instances as processes of this machine: own session, own directory, bounded in resident memory, processes, open files, file size.

They run in a sandbox if the host allows one (sandbox.py); without it an operator may do what the node manager's user may do.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import select
import shutil
import subprocess
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from threading import Event, Lock
from typing import Any

from node_manager import proc
from node_manager.drivers import logfile, network, users
from node_manager.drivers.base import OWN_PYTHON_TAG, Allowance, Capabilities, Exit, Handle, Inside, Inspection, OnExit, Spec
from node_manager.drivers.sandbox import Sandbox, confining
from udo_protocol import supervised
from udo_protocol.errors import OperatorError

# Memory is sampled this often while the instance works, and once a second while it idles: one sample costs ~0.1 ms.
BUSY_SAMPLE_S, IDLE_SAMPLE_S = 0.1, 1.0
# Raises an operator's chance to be chosen when the whole machine runs out of memory, before servers and Spark.
OOM_SCORE = 500
# Bound on one file: more than is written to a log before it is cut, at each sample. It keeps a mistake from filling the disk.
FILE_BYTES = 1 << 30
_START_TIMEOUT_S = 20.0
_SIGNALLED = 128


def excess(allowance: Allowance, rss_bytes: int, processes: int) -> str:
    """Why an instance with this use is killed; '' while it keeps within its allowance."""
    limit, most = allowance.memory_bytes, allowance.pids
    if limit and rss_bytes > limit:
        return (
            f"killed: memory limit of {limit >> 20} MiB exceeded, {rss_bytes >> 20} MiB resident; "
            "raise limits.memory_mb in operator.toml or use less"
        )
    if most and processes > most:
        return f"killed: limit of {most} processes exceeded, {processes} were running; raise limits.pids in operator.toml"
    return ""


class _Task:
    """One watched process: a thread waits for its death and samples it meanwhile."""

    def __init__(self, handle: Handle, allowance: Allowance, on_exit: OnExit, child: subprocess.Popen[bytes] | None) -> None:
        self.process, self.monitor, self.main = _process(handle), _monitor(handle), _main(handle)
        self.log, self.allowance, self.on_exit, self.child = Path(handle.directory) / "log", allowance, on_exit, child
        self.rss_bytes, self.cpu_s, self.cpu_percent, self.sampled_at = 0, 0.0, 0.0, time.monotonic()
        self._counted_twice, self._look_at = 0, 0.0
        self.reason = ""
        self.relay: subprocess.Popen[bytes] | None = None
        self.exit: Exit | None = None
        self.ended = Event()

    def watch(self) -> None:
        """Watch until it is dead; then report how it ended and kill what it left in its group. Can begin anew at any point."""
        if (fd := proc.open_pidfd(self.main)) is not None:
            try:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                interval_s = BUSY_SAMPLE_S
                while not poll.poll(interval_s * 1000):
                    interval_s = BUSY_SAMPLE_S if self.sample() else IDLE_SAMPLE_S
            finally:
                os.close(fd)
        self.finish()

    def sample(self) -> bool:
        """Measure, enforce the limits, bound the log; return whether it has worked since the last sample."""
        logfile.bound(self.log)
        rss, cpu_s, processes = proc.usage(self.process.pid)
        if self.allowance.memory_bytes and rss > self.allowance.memory_bytes and processes > 1:
            rss = self._shared_once(rss, self.allowance.memory_bytes)
        now = time.monotonic()
        busy = cpu_s - self.cpu_s > 0.005 or rss > self.rss_bytes
        self.cpu_percent = 100 * max(0.0, cpu_s - self.cpu_s) / max(now - self.sampled_at, 1e-3)
        self.rss_bytes, self.cpu_s, self.sampled_at = rss, cpu_s, now
        if why := excess(self.allowance, rss, processes):
            self.kill(why)
        if self.relay is not None and self.relay.poll() is not None and proc.alive(self.process):
            self.kill("killed: the relay to its network ended; another instance gets another one")
        return busy

    def _shared_once(self, rss: int, limit: int) -> int:
        """`rss` without memory that was counted twice, since processes share it. Measured for at most a twentieth of the time, and before
        the limit counts as exceeded."""
        if (begun := time.monotonic()) >= self._look_at or rss - self._counted_twice > limit:
            self._counted_twice = max(0, rss - proc.resident(self.process.pid))
            self._look_at = time.monotonic() + 20 * (time.monotonic() - begun)
        return rss - self._counted_twice

    def kill(self, reason: str) -> None:
        """End it now; the first reason counts."""
        self.reason = self.reason or reason
        proc.signal_group(self.process, 9)

    def finish(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # its own session: no other process can have this group
            os.killpg(self.process.pid, 9)
        code = self.child.wait() if self.child else None
        if self.monitor is not None:
            proc.wait(self.monitor, _START_TIMEOUT_S)
            code = _SIGNALLED - code if code and code > _SIGNALLED else code  # a signal, as the sandbox reports it
        if self.relay is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.relay.wait(_START_TIMEOUT_S)  # it ends with the instance
        self.exit = Exit(code, self.reason)
        self.rss_bytes, self.cpu_percent = 0, 0.0
        self.ended.set()
        self.on_exit(self.exit)


class ProcessDriver:
    """See the module."""

    name = "process"
    python_tag = OWN_PYTHON_TAG

    def __init__(self, sandbox: Sandbox | None = None, remark: str = "no sandbox: switched off") -> None:
        self._sandbox, self._remark = sandbox, remark
        setpriv = shutil.which("setpriv")  # part of util-linux, so on every Debian
        self._unprivileged = [setpriv, "--no-new-privs", "--"] if setpriv else []
        self._tasks: dict[str, _Task] = {}
        self._lock = Lock()

    def capabilities(self) -> Capabilities:
        if self._sandbox is not None:
            return self._sandbox.capabilities
        return Capabilities(memory_limit=True, open_files_limit=True, remark=self._remark)

    def inside(self, directory: Path, sockets: Path, *, engine: bool = False) -> Inside:
        if self._sandbox is not None:
            return Inside(str(directory), str(sockets), self._sandbox.scratch(directory)[0], user=self._sandbox.user)
        return Inside(str(directory), str(sockets), str(directory), images=True, user=users.of_this_process())

    def operator_box(
        self, directory: Path, cwd: Path, allowance: Allowance, *, python: bool = False, bare: bool = False, nice: int = 0
    ) -> list[str]:
        bound = [*self._unprivileged[:-1], "--pdeathsig", "KILL", "--"] if self._unprivileged else []
        bound += [shutil.which("nice") or "/usr/bin/nice", "-n", str(nice)] if nice else []
        if self._sandbox is None:
            return bound
        for scratch in self._sandbox.scratch(directory):
            Path(scratch).mkdir(mode=0o700, exist_ok=True)
        return [*bound, *confining(self._sandbox, directory, cwd, python=python)]

    def sweep(self, known: Collection[str]) -> None:
        """Does nothing: a process without a handle cannot be told from others; without a manager it stops itself."""

    def start(self, spec: Spec, on_exit: OnExit) -> Handle:
        reading, writing = os.pipe()
        box = None if spec.engine else self._sandbox
        monitored = box is not None and box.monitored
        wrapped = box.command(spec.directory, writing) if box else self._unprivileged
        if box is not None and not monitored:
            Path(box.scratch(spec.directory)[0]).mkdir(mode=0o700)
        try:
            with (spec.directory / "log").open("ab") as log:
                child = subprocess.Popen(
                    (*wrapped, *spec.argv),
                    cwd=spec.directory,
                    env={**spec.env, "TMPDIR": box.scratch(spec.directory)[0]} if box else dict(spec.env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(writing,) if monitored else (),
                )
        except OSError as e:
            os.close(reading)
            raise OperatorError(f"instance {spec.instance} cannot be started: {spec.argv[0]}: {e}") from e
        finally:
            os.close(writing)
        with open(reading, "rb", buffering=0) as told:
            data = self._identify(child, told, spec) if monitored else asdict(_identity(child.pid))
        handle = Handle(self.name, spec.instance, str(spec.directory), data)
        for pid in proc.tree(child.pid):
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE))
        self._watch(handle, _Task(handle, spec.allowance, on_exit, child))
        self.limit(handle, spec.allowance)
        return handle

    def _identify(self, child: subprocess.Popen[bytes], told: io.RawIOBase, spec: Spec) -> dict[str, Any]:
        """The identity of the sandbox's init, by which all in it are found and ended, and of the process outside that waits for it."""
        text = b""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not text.rstrip().endswith(b"}"):
            part = told.read(4096) if proc.readable(told.fileno(), max(0.0, deadline - time.monotonic())) else None
            if not part:
                child.kill()
                child.wait()
                why = "\n".join(logfile.tail(spec.directory / "log", 5)) or f"it sent nothing within {_START_TIMEOUT_S:g} s"
                raise OperatorError(f"instance {spec.instance} cannot be started in its sandbox: {why}")
            text += part
        init = _identity(json.loads(text)["child-pid"])
        # Until the init has started the program it neither leads its group nor passes a signal on.
        while proc.alive(init) and len(list(proc.tree(init.pid))) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        return {**asdict(init), "monitor": asdict(_identity(child.pid))}

    def recover(self, handle: Handle, allowance: Allowance, on_exit: OnExit) -> bool:
        if not proc.alive(_main(handle)):
            proc.signal_group(_process(handle), 9)  # processes that outlived it in its sandbox
            return False
        self._watch(handle, _Task(handle, allowance, on_exit, None))
        return True

    def _watch(self, handle: Handle, task: _Task) -> None:
        with self._lock:
            self._tasks = {k: t for k, t in self._tasks.items() if not t.ended.is_set()}
            self._tasks[handle.instance] = task
        supervised.keep("watch", task.watch, Event(), handle.instance)

    def forget(self, image: str) -> None:
        """Does nothing: this driver keeps nothing of an image."""

    def close(self) -> None:
        """Does nothing: this driver holds no resources."""

    def limit(self, handle: Handle, allowance: Allowance) -> None:
        if task := self._tasks.get(handle.instance):
            task.allowance = allowance
        sandboxed = "monitor" in handle.data
        if task and sandboxed and allowance.network and task.relay is None:
            task.relay = network.start(task.process, Path(handle.directory), allowance.network)
        bounds = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: FILE_BYTES}
        if allowance.open_files:
            bounds[resource.RLIMIT_NOFILE] = allowance.open_files
        if allowance.pids and sandboxed:  # counted in the sandbox's own user namespace; the kernel exempts root
            bounds[resource.RLIMIT_NPROC] = allowance.pids
        for pid in proc.tree(handle.data["pid"]):
            for name, value in bounds.items():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    _, most = resource.prlimit(pid, name)
                    resource.prlimit(pid, name, (value if most == resource.RLIM_INFINITY else min(value, most), most))

    def stop(self, handle: Handle, grace_s: float) -> None:
        proc.terminate(_process(handle), grace_s)
        if task := self._tasks.get(handle.instance):
            task.ended.wait(5)

    def kill(self, handle: Handle, reason: str) -> None:
        if task := self._tasks.get(handle.instance):
            task.kill(reason)
        else:
            proc.signal_group(_process(handle), 9)

    def inspect(self, handle: Handle) -> Inspection:
        task = self._tasks.get(handle.instance)
        if task is None or task.ended.is_set():
            return Inspection(False, exit=task.exit if task else None)
        if not task.rss_bytes:
            task.sample()
        return Inspection(True, task.process.pid, task.rss_bytes, task.cpu_percent, task.cpu_s)


def _identity(pid: int) -> proc.ProcessId:
    """The identity of a process just started; pid and 0 if it has already ended."""
    return proc.identify(pid) or proc.ProcessId(pid, 0)


def _process(handle: Handle) -> proc.ProcessId:
    return proc.ProcessId(handle.data["pid"], handle.data["started"])


def _main(handle: Handle) -> proc.ProcessId:
    """The process whose end is the instance's. A sandbox's init stays for processes that the program has left behind, the process outside
    does not."""
    return _monitor(handle) or _process(handle)


def _monitor(handle: Handle) -> proc.ProcessId | None:
    return proc.ProcessId(**handle.data["monitor"]) if "monitor" in handle.data else None
