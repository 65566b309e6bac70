"""One watched container: its output, its use of resources, its end, and its bounds as the daemon takes them."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any, cast

import requests
import structlog
from docker.errors import DockerException, NotFound
from docker.models.containers import Container
from docker.types import Ulimit
from docker.utils.socket import frames_iter

from node_manager.drivers import logfile
from node_manager.drivers.base import Allowance, Exit, OnExit

_log = structlog.get_logger()
# Counts as the instance's memory as well; bounds what an operator that asks for no memory at all can write.
TMP_BYTES = 64 << 20
_PERIOD_US = 100_000
# A daemon that is being restarted is asked again this often.
_AGAIN_S = 1.0
_SIGNALS = {int(s) for s in signal.Signals}
LOST = (requests.exceptions.RequestException, OSError)


class WatchedContainer:
    """One watched container: one thread copies its output and waits for its end, another follows its use of resources."""

    def __init__(self, container: Container, log: Path, allowance: Allowance, on_exit: OnExit) -> None:
        self.container, self.log, self.allowance, self.on_exit = container, log, allowance, on_exit
        self.rss_bytes, self.cpu_percent = 0, 0.0
        self.cpu_s, self._sampled_at = 0.0, time.monotonic()
        self.reason = ""
        self.exit: Exit | None = None
        self.ended = Event()

    def watch(self, output: Any) -> None:
        """Copy the output until the container has ended, then remove it and report its end. `output`: the socket of an attachment."""
        try:
            with contextlib.suppress(*LOST, ValueError), self.log.open("ab", buffering=0) as log:
                for _, chunk in frames_iter(output, tty=False):  # type: ignore[no-untyped-call]
                    log.write(chunk)
                    logfile.bound(self.log)
        finally:
            output._response.close()
        self.exit = self._wait()
        self.ended.set()
        self.on_exit(self.exit)

    def sample(self) -> None:
        """Follow its memory and CPU until it has ended. The daemon measures once a second; a caller that asked it would wait for that."""
        while not self.ended.is_set():
            with contextlib.suppress(DockerException, KeyError, *LOST):  # it ends now, or the daemon is away
                for stats in cast("Iterator[dict[str, Any]]", self.container.stats(stream=True, decode=True)):
                    self.rss_bytes, cpu_s = used(stats)
                    now = time.monotonic()
                    self.cpu_percent = 100 * max(0.0, cpu_s - self.cpu_s) / max(now - self._sampled_at, 1e-3)
                    self.cpu_s, self._sampled_at = cpu_s, now
            self.ended.wait(_AGAIN_S)

    def _wait(self) -> Exit:
        while True:
            try:
                self.container.wait(timeout=None)
                self.container.reload()
                state = self.container.attrs["State"]
                self.container.remove(v=True, force=True)
                return self._exit(state)
            except NotFound:
                return Exit(None, self.reason or "its container was removed from outside")
            except (*LOST, DockerException) as e:
                _log.warning("the Docker daemon does not answer; waiting for it", container=self.container.short_id, error=str(e))
                time.sleep(_AGAIN_S)

    def _exit(self, state: dict[str, Any]) -> Exit:
        code = int(state["ExitCode"])
        if code - 128 in _SIGNALS:  # as the container's init reports it
            code = 128 - code
        if state.get("OOMKilled") and code == -signal.SIGKILL and not self.reason:  # the program, not only a process that it started
            self.reason = over_memory(self.allowance.memory_bytes)
        return Exit(code, self.reason)


def over_memory(limit: int) -> str:
    """The reason given for an instance that was killed because it used more than `limit` bytes."""
    return f"killed: memory limit of {limit >> 20} MiB exceeded; raise limits.memory_mb in operator.toml or use less"


def attach(container: Container, **more: int) -> Any:
    """A socket with its output from now on, or with logs=1 all that is kept."""
    return container.attach_socket(params={"stdout": 1, "stderr": 1, "stream": 1, **more})


def confined(allowance: Allowance, user: str) -> dict[str, Any]:
    """The restrictions of each container of an operator, as arguments of create."""
    files = allowance.open_files
    return {
        **bounds(allowance),
        "ulimits": [Ulimit(name="nofile", soft=files, hard=files)] if files else [],
        "user": user,
        "network_mode": "none",
        "ipc_mode": "private",
        "read_only": True,
        "tmpfs": {"/tmp": f"size={TMP_BYTES},mode=1777,nosuid,nodev"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "init": True,
    }


def bounds(allowance: Allowance) -> dict[str, Any]:
    """The bounds as arguments of create; no swap, so that resident memory is what counts."""
    found: dict[str, Any] = {}
    if allowance.memory_bytes:
        found |= {"mem_limit": allowance.memory_bytes, "memswap_limit": allowance.memory_bytes}
    if allowance.cpus:
        found |= {"cpu_period": _PERIOD_US, "cpu_quota": math.ceil(allowance.cpus * _PERIOD_US)}
    if allowance.pids:
        found |= {"pids_limit": allowance.pids}
    return found


def update(allowance: Allowance) -> dict[str, Any]:
    """The same bounds, as the daemon's API names them for a running container."""
    names = {
        "mem_limit": "Memory",
        "memswap_limit": "MemorySwap",
        "cpu_period": "CpuPeriod",
        "cpu_quota": "CpuQuota",
        "pids_limit": "PidsLimit",
    }
    return {names[k]: v for k, v in bounds(allowance).items()}


def used(stats: dict[str, Any]) -> tuple[int, float]:
    """(bytes that cannot be reclaimed from it, CPU seconds), as `docker stats` counts them."""
    memory = stats["memory_stats"]
    cached = memory["stats"].get("total_inactive_file", memory["stats"].get("inactive_file", 0))
    return memory["usage"] - cached, stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9


def said(error: Exception) -> str:
    """The daemon's explanation, without the request it belongs to."""
    text = str(getattr(error, "explanation", None) or error)
    return re.sub(r"\s+", " ", text)
