"""An operating system process by identity: pid and start time, so that a reused pid is never mistaken for it.

Deaths are noticed by pidfds, never by polling. Linux only, like the embedded servers.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ProcessId:
    """A process of this machine's present boot; `started` is in clock ticks since boot."""

    pid: int
    started: int


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()  # the name in brackets may hold anything


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now, None if there is none."""
    stat = _stat(pid)
    return ProcessId(pid, int(stat[19])) if stat else None


def alive(process: ProcessId) -> bool:
    """Whether it still runs; one that waits to be reaped does not."""
    stat = _stat(process.pid)
    return stat is not None and int(stat[19]) == process.started and stat[0] not in "ZX"


def open_pidfd(process: ProcessId) -> int | None:
    """A descriptor that becomes readable when it dies; None if it is gone already. The caller closes it."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if identify(process.pid) != process:
        os.close(fd)
        return None
    return fd


def wait(process: ProcessId, timeout_s: float) -> bool:
    """Wait until it is dead (perhaps not yet reaped); False if it still runs after `timeout_s`."""
    fd = open_pidfd(process)
    if fd is None:
        return True
    try:
        return readable(fd, timeout_s)
    finally:
        os.close(fd)


def readable(fd: int, timeout_s: float) -> bool:
    """Wait until the descriptor can be read, or is at its end; False after `timeout_s`. For any fd number, unlike `select.select`."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def signal_group(process: ProcessId, signum: int) -> None:
    """Signal its whole group, which it leads; nothing happens if it is gone."""
    if identify(process.pid) == process:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)


def terminate(process: ProcessId, grace_s: float) -> bool:
    """SIGTERM to its group, SIGKILL after `grace_s`, also to what is left of the group. True if it ended within the grace."""
    signal_group(process, signal.SIGTERM)
    gone = wait(process, grace_s)
    signal_group(process, signal.SIGKILL)
    if not gone:
        wait(process, 5)
    return gone


@contextlib.contextmanager
def ended_unless(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process just started, unless the block gets through: nobody else knows of it before it is recorded."""
    try:
        yield
    except BaseException:
        child.kill()
        child.wait()
        raise


def _nothing(*_: object) -> None:
    pass


@contextlib.contextmanager
def heeding() -> Iterator[None]:
    """In the block, catch the signals that this process ignores, e.g. under nohup: what it starts would ignore them, too.

    For the main thread. SIGPIPE and SIGXFSZ are Python's own, and `subprocess` restores them.
    """
    signals = signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}
    ignored = [number for number in signals if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, _nothing)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def tree(pid: int) -> Iterator[int]:
    """The pid and those of its descendants."""
    pending = [pid]
    while pending:
        yield (pid := pending.pop())
        with contextlib.suppress(OSError):  # gone meanwhile, or a kernel without this file
            for task in os.listdir(f"/proc/{pid}/task"):
                pending += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())


def usage(pid: int) -> tuple[int, float, int]:
    """Resident bytes, CPU seconds and number of processes of a process and its descendants; zeros when gone."""
    rss, cpu_s, count = 0, 0.0, 0
    for p in tree(pid):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(p)
            times = process.cpu_times()
            rss, cpu_s, count = rss + process.memory_info().rss, cpu_s + times.user + times.system, count + 1
    return rss, cpu_s, count


def resident(pid: int) -> int:
    """Resident bytes of a process and its descendants, memory that several of them share counted once: some 40 ms per GiB.

    If the kernel does not tell a process's share, all its memory counts.
    """
    found = 0
    for p in tree(pid):
        with contextlib.suppress(psutil.Error):
            rss = psutil.Process(p).memory_info().rss
            with contextlib.suppress(OSError, ValueError, IndexError):
                rss = int(Path(f"/proc/{p}/smaps_rollup").read_text().split("\nPss:", 1)[1].split()[0]) << 10
            found += rss
    return found
