"""A view of its own for an instance's process, by bubblewrap: no network, no other processes, no files but the system's
programs, the runtime, its own directory and the servers' sockets, all of them read-only; a bounded /tmp and /dev/shm to write in.

Whether the host allows that, and what comes of it, is tried at start from inside; nothing is assumed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node_manager.drivers.base import Capabilities

PROGRAM = "bwrap"
# Each of the two places an operator can write to: memory, on top of its own.
TMP_BYTES = 64 << 20
# Of a node manager that runs as root: inside it is nobody in particular.
_UNPRIVILEGED = "65532"
_PROBE_TIMEOUT_S = 20.0
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What programs need to find their libraries and the local time; nothing else of /etc is anybody's business.
_ETC = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_INSIDE = """
import json, os, socket, sys
outside, pid, abstract, bound = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])

def refused(step, *args):
    try:
        step(*args)
    except OSError:
        return True
    return False

def connect(address):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(address)

def write(directory):
    with open(os.path.join(directory, "probe"), "w") as f:
        f.write("x")

scratch = [os.statvfs(d) for d in ("/tmp", "/dev/shm")]
writes = all(refused(write, d) for d in (".", "/", "/usr", "/dev", "/proc/sys/kernel", outside))
found = {
    "isolates_network": {name for _, name in socket.if_nameindex()} <= {"lo"},
    "isolates_sockets": refused(connect, os.path.join(outside, "s")) and refused(connect, "\\0" + abstract),
    "isolates_reads": not os.path.exists(outside),
    "isolates_writes": writes,
    "isolates_processes": not os.path.exists("/proc/" + pid) and len([p for p in os.listdir("/proc") if p.isdigit()]) < 4,
    "disk_limit": writes and all(s.f_blocks * s.f_frsize <= bound for s in scratch),
}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Sandbox:
    """How instances are wrapped; `shared`: what they see beside the system and their own directory, at the same place."""

    program: str
    shared: tuple[Path, ...]
    capabilities: Capabilities

    def command(self, directory: Path, info_fd: int) -> list[str]:
        """To be put in front of a program; `info_fd` is told the process id of the sandbox's init, which leads its group."""
        return [*_command(self.program, self.shared, directory), "--info-fd", str(info_fd), "--"]


def find(sockets: Path, runtime: Path) -> tuple[Sandbox | None, str]:
    """The sandbox this host allows, or None, and in either case a sentence about it. `runtime`: a directory of links."""
    program = shutil.which(PROGRAM)
    if program is None:
        return None, f"no sandbox: {PROGRAM} is not on PATH; install bubblewrap 0.8 or newer"
    home = runtime.parent.absolute()
    shared = _outermost([sockets, runtime, *_python(), *(p.resolve() for p in runtime.rglob("*") if p.is_symlink())])
    if wide := next((p for p in (*shared, Path("/usr")) if home.is_relative_to(p)), None):
        return None, f"no sandbox: the node manager's home {home} lies inside {wide}, which operators have to see; choose another --home"
    try:
        found = _probe(program, shared)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        said = getattr(e, "stderr", "") or str(e)
        return None, f"no sandbox: {program} does not work here: {' '.join(said.split())[-300:]}"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S).stdout.strip()
    # Its own user's other processes and passwords are out of reach; the pid namespace keeps every descendant countable.
    hidden = found["isolates_reads"] and found["isolates_processes"]
    held = Capabilities(
        memory_limit=True, open_files_limit=True, process_limit=found["isolates_processes"], isolates_keys=hidden, remark=version, **found
    )
    return Sandbox(program, shared, held), f"sandbox: {version}"


def _python() -> list[Path]:
    return [Path(p) for p in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)]


def _outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Each once, without those inside another or of the system."""
    kept: list[Path] = []
    for path in sorted({p.absolute() for p in paths}, key=lambda p: len(p.parts)):
        if not any(path.is_relative_to(k) for k in [*kept, Path("/usr")]):
            kept.append(path)
    return tuple(kept)


def _command(program: str, shared: Sequence[Path], directory: Path) -> list[str]:
    command = [program, "--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--cap-drop", "ALL", "--hostname", "udo"]
    if os.geteuid() == 0:
        command += ["--uid", _UNPRIVILEGED, "--gid", _UNPRIVILEGED]
    for name in _SYSTEM:
        if os.path.islink(name):
            command += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            command += ["--ro-bind", name, name]
    for name in _ETC:
        command += ["--ro-bind-try", name, name]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for name in ("/tmp", "/dev/shm"):
        command += ["--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", name]
    for path in (*shared, directory):
        command += ["--ro-bind", str(path), str(path)]
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(directory)]


def _probe(program: str, shared: Sequence[Path]) -> dict[str, bool]:
    """What holds inside, tried against real things outside: a file, sockets, a process."""
    with tempfile.TemporaryDirectory(prefix="udo-") as name:
        outside, own = Path(name) / "outside", Path(name) / "own"
        outside.mkdir()
        own.mkdir()
        abstract = f"udo-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as by_name:
            by_path.bind(str(outside / "s"))
            by_name.bind("\0" + abstract)
            for s in (by_path, by_name):
                s.listen()
            python = [sys.executable, "-I", "-S", "-c", _INSIDE, str(outside), str(os.getpid()), abstract, str(TMP_BYTES)]
            done = subprocess.run(
                [*_command(program, shared, own), "--", *python], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True
            )
    found: dict[str, bool] = json.loads(done.stdout)
    return found
