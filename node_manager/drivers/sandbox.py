"""A view of its own for an instance's process, as far as the host allows one: by bubblewrap, else by Landlock.

bubblewrap: no network (network.py opens single endpoints), no other processes, no files but the system's programs, the runtime, its own
directory and the servers' sockets, all of them read-only; a bounded /tmp and /dev/shm to write in. Landlock: the same files and a scratch
directory, no TCP. The result is tested at start from inside; nothing is assumed.
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from node_manager.drivers import confine, network
from node_manager.drivers.base import Capabilities
from node_manager.drivers.users import NAME, files, of_this_process

PROGRAM = "bwrap"
# Size of each of the two places an operator can write to; they take memory, on top of its own.
TMP_BYTES = 64 << 20
_HOME = "/tmp"
# The unprivileged user inside, for a node manager that runs as root.
_UNPRIVILEGED = "65532"
_PROBE_TIMEOUT_S = 20.0
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# The files by which programs find their libraries, the local time, certificates to trust and names of ports, and the settings without which
# Debian's JVMs do not start; nothing else of /etc is shown.
_ETC = (
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/services", "/etc/protocols"),
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf"),
    *("/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/ca-trust/extracted"),
)
_ETC_OF_JVMS = "java-*-openjdk"
_USERS = ("/etc/passwd", "/etc/group")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_INSIDE = """
import json, os, socket, sys
outside, pid, abstract, bound, scratch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]

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

def read(path):
    with open(path, "rb") as f:
        f.read(1)

writes = all(refused(write, d) for d in (".", "/", "/usr", "/dev", "/proc/sys/kernel", outside))
space = [s.f_blocks * s.f_frsize for s in map(os.statvfs, scratch)]
reads = refused(read, os.path.join(outside, "secret"))
found = {
    "isolates_network": {name for _, name in socket.if_nameindex()} <= {"lo"},
    "isolates_sockets": refused(connect, os.path.join(outside, "s")) and refused(connect, "\\0" + abstract),
    "isolates_reads": reads,
    "isolates_writes": writes,
    "isolates_processes": not os.path.exists("/proc/" + pid) and len([p for p in os.listdir("/proc") if p.isdigit()]) < 4,
    # Neither the files with others' passwords nor the memory that holds them.
    "isolates_keys": reads and refused(lambda: open(f"/proc/{pid}/mem", "rb").close()),
    "disk_limit": writes and not any(refused(write, d) for d in scratch) and max(space) <= bound,
}
print(json.dumps(found))
"""


class Sandbox(Protocol):
    """A sandbox: how the command of an instance is wrapped."""

    capabilities: Capabilities
    user: str  # name of the program's user, as it sees it
    # Whether a process that stays outside starts the program, and reports on the descriptor it is given which child of its own leads it.
    monitored: bool

    def command(self, directory: Path, info_fd: int = -1) -> list[str]:
        """The command to put in front of a program that runs in its directory."""

    def scratch(self, directory: Path) -> list[str]:
        """The folders that it may write to; the first is its home."""


@dataclass
class Bubblewrap:
    """A sandbox of namespaces. `shared`: paths that it sees beside the system and its own directory, at the same place; `runtime`: those of
    them that a Python program needs; `users`: files that name its user, by their place inside."""

    program: str
    shared: tuple[Path, ...]
    users: Mapping[str, str]
    runtime: tuple[Path, ...] = ()
    capabilities: Capabilities = Capabilities()
    user: str = NAME
    monitored: bool = True

    def scratch(self, directory: Path) -> list[str]:
        return [_HOME, "/dev/shm"]

    def command(self, directory: Path, info_fd: int = -1) -> list[str]:
        c = [self.program, "--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--cap-drop", "ALL", "--hostname", "udo"]
        if os.geteuid() == 0:
            c += ["--uid", _UNPRIVILEGED, "--gid", _UNPRIVILEGED]
        for name in _SYSTEM:
            if os.path.islink(name):
                c += ["--symlink", os.readlink(name), name]
            elif os.path.isdir(name):
                c += ["--ro-bind", name, name]
        for name in _etc():
            c += ["--ro-bind-try", name, name]
        for inside, found in self.users.items():
            c += ["--ro-bind", found, inside]
        for own, name in network.FILES:  # they exist once it has a network
            c += ["--symlink", str(directory / own), name]
        c += ["--proc", "/proc", "--dev", "/dev"]
        for name in self.scratch(directory):
            c += ["--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", name]
        for path in (*self.shared, directory):
            c += ["--ro-bind", str(path), str(path)]
        c += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(directory)]
        return [*c, *(["--info-fd", str(info_fd)] if info_fd >= 0 else []), "--"]


@dataclass
class Landlock:
    """This machine with most of its files out of reach. `shared`, `runtime`: as in Bubblewrap."""

    shared: tuple[Path, ...]
    runtime: tuple[Path, ...] = ()
    capabilities: Capabilities = Capabilities()
    user: str = field(default_factory=of_this_process)
    monitored: bool = False

    def scratch(self, directory: Path) -> list[str]:
        return [str(directory / "scratch")]

    def command(self, directory: Path, info_fd: int = -1) -> list[str]:
        reads = [*_SYSTEM, *_etc(), *_USERS, *_DEVICES, "/proc", *map(str, self.shared), str(directory)]
        writes = [*self.scratch(directory), "/dev/null"]
        return [sys.executable, "-I", "-S", str(Path(confine.__file__)), *reads, "--", *writes, "--"]


def confining(box: Sandbox, directory: Path, cwd: Path, shared: Iterable[Path] = (), *, python: bool = False) -> list[str]:
    """The command to put in front of an operator's program, whose engine is trusted and stays outside. The program is started in `cwd`, and
    sees that, `directory`, `shared`, the system's programs, and with `python` the Python runtime. It ends with its parent."""
    if not isinstance(box, Bubblewrap | Landlock):
        return box.command(directory)
    seen = (*(box.runtime if python else ()), *(path for path in (cwd, *shared) if not path.is_relative_to(directory)))
    command = replace(box, shared=seen).command(directory)
    if isinstance(box, Landlock):
        return command
    command[command.index("--chdir") + 1] = str(cwd)
    return [*command[:-1], "--die-with-parent", "--"]


def find(sockets: Path, runtime: Path) -> tuple[Sandbox | None, str]:
    """The best sandbox that this host allows, or None, and a sentence about it. `runtime`: a directory of links in the node's home."""
    home = runtime.parent.absolute()
    python = _outermost([runtime, *_python(), *(p.resolve() for p in runtime.rglob("*") if p.is_symlink())])
    shared = _outermost([sockets, *python])
    if wide := next((p for p in (*shared, Path("/usr")) if home.is_relative_to(p)), None):
        return None, f"no sandbox: the node manager's home {home} lies inside {wide}, which operators have to see; choose another --home"
    why = []
    user, group = (int(_UNPRIVILEGED),) * 2 if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    named = files(home / "users", user, group, _HOME)
    for box, name in (
        (Bubblewrap(shutil.which(PROGRAM) or PROGRAM, shared, named, python), "bubblewrap"),
        (Landlock(shared, python), "Landlock"),
    ):
        try:
            found = _probe(box)
        except FileNotFoundError:
            why.append(f"{PROGRAM} is not on PATH (install bubblewrap 0.8 or newer)")
        except (OSError, subprocess.SubprocessError, ValueError) as e:
            said = getattr(e, "stderr", "") or str(e)
            why.append(f"{name} does not work here: {' '.join(said.split())[-300:]}")
        else:
            remark = "; ".join([f"sandbox: {name}", *why])
            # In a process namespace every descendant is counted.
            box.capabilities = Capabilities(
                memory_limit=True,
                open_files_limit=True,
                process_limit=found["isolates_processes"],
                opens_endpoints=found["isolates_network"] and box.monitored,
                remark=remark,
                **found,
            )
            return box, remark
    return None, f"no sandbox: {'; '.join(why)}"


def _etc() -> list[str]:
    return [*_ETC, *sorted(map(str, Path("/etc").glob(_ETC_OF_JVMS)))]


def _python() -> list[Path]:
    return [Path(p) for p in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)]


def _outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Each path once, without those inside another one or below /usr."""
    kept: list[Path] = []
    for path in sorted({p.absolute() for p in paths}, key=lambda p: len(p.parts)):
        if not any(path.is_relative_to(k) for k in [*kept, Path("/usr")]):
            kept.append(path)
    return tuple(kept)


def _probe(box: Sandbox) -> dict[str, bool]:
    """Capability -> whether it holds inside, tried against real things outside: a file, sockets, a process."""
    with tempfile.TemporaryDirectory(prefix="udo-") as name:
        outside, own = Path(name) / "outside", Path(name) / "own"
        outside.mkdir()
        own.mkdir()
        (own / "scratch").mkdir()
        (outside / "secret").write_text("secret")
        abstract = f"udo-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as by_name:
            by_path.bind(str(outside / "s"))
            by_name.bind("\0" + abstract)
            for s in (by_path, by_name):
                s.listen()
            known: Sequence[str] = (str(outside), str(os.getpid()), abstract, str(TMP_BYTES), *box.scratch(own))
            command = [*box.command(own), sys.executable, "-I", "-S", "-c", _INSIDE, *known]
            done = subprocess.run(command, cwd=own, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True)
    found: dict[str, bool] = json.loads(done.stdout)
    return found
