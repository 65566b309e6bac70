"""The process driver claims only the isolation that it found inside, whatever program calls itself a sandbox."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from node_manager.drivers import confine, runtime_base, sandbox
from node_manager.drivers.base import Capabilities
from tests.conftest import bound, require

ISOLATION = [f.name for f in fields(Capabilities) if f.name.startswith("isolates_") or f.name in ("disk_limit", "process_limit")]

# Tries to reach a TCP port, a UDP port, a socket's path and a process, its arguments, and to bind; prints each error number, 0 for success.
TRIES = """
import json, os, signal, socket, sys
tcp, udp, path, pid = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
def number(what):
    try:
        what()
    except OSError as e:
        return e.errno
    return 0
def of(family, kind, where): return number(lambda: socket.socket(family, kind).connect(where))
print(json.dumps({
    "connect": of(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", tcp)),
    "bind": number(lambda: socket.socket().bind(("127.0.0.1", 0))),
    "udp": number(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", udp))),
    "unix": of(socket.AF_UNIX, socket.SOCK_STREAM, path),
    "signal": number(lambda: os.kill(pid, 0)),
}))
"""


@pytest.fixture
def bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that is found under bubblewrap's name; the test writes its text."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / sandbox.PROGRAM
    program.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return program


def find(home: Path) -> tuple[sandbox.Sandbox | None, str]:
    (home / "run").mkdir(parents=True)
    return sandbox.find(home / "run", runtime_base.build(home / "runtime"))


def test_a_sandbox_that_holds_nothing_claims_nothing(bwrap: Path, tmp_path: Path) -> None:
    bwrap.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')

    box, remark = find(tmp_path / "h")

    assert isinstance(box, sandbox.Bubblewrap)
    assert remark == "sandbox: bubblewrap"
    held = [name for name in ISOLATION if getattr(box.capabilities, name)]
    assert held == [], "this user may read, write, connect and see everything"


def test_a_sandbox_that_does_not_start_is_not_used_and_the_reason_said(bwrap: Path, tmp_path: Path) -> None:
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")

    box, remark = find(tmp_path / "h")

    assert not isinstance(box, sandbox.Bubblewrap)
    assert "bubblewrap does not work here: bwrap: No permissions to create new namespace" in remark


def test_a_home_that_operators_would_see_allows_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))

    box, remark = find(tmp_path / "h")

    assert box is None
    assert f"{tmp_path / 'h'} lies inside {tmp_path}" in remark


@pytest.mark.parametrize(("version", "kept_from"), [(4, ("connect", "bind")), (6, ("connect", "bind", "signal"))])
def test_landlock_keeps_a_process_from_tcp_and_from_signals_and_not_from_udp_nor_sockets_with_a_path(
    tmp_path: Path, version: int, kept_from: tuple[str, ...]
) -> None:
    try:
        known = confine.version()
    except OSError as e:
        require("Landlock", str(e))
    if known < version:
        require(f"Landlock {version}", f"this kernel has version {known}")
    path = str(tmp_path / "s")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(path)
        unix.listen()
        program = (sys.executable, "-I", "-S", "-c", TRIES, str(tcp.getsockname()[1]), str(udp.getsockname()[1]), path, str(os.getpid()))

        def tried(*before: str) -> dict[str, int]:
            done = subprocess.run([*before, *program], capture_output=True, text=True, timeout=bound(20), check=True)
            return dict(json.loads(done.stdout))

        assert not any(tried().values()), "without it all of that works"
        found = tried(sys.executable, confine.__file__, "/", "--", str(tmp_path), "--")
    assert {what for what, error in found.items() if error} >= set(kept_from), found
    assert (found["udp"], found["unix"]) == (0, 0), found
    confined = [sys.executable, confine.__file__, "/", "--", "--", "cat", "/proc/self/status"]
    status = subprocess.run(confined, capture_output=True, text=True, timeout=bound(20), check=True).stdout
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    assert not any(ignored >> n - 1 & 1 for n in (signal.SIGPIPE, signal.SIGXFSZ)), "what Python ignores is not ignored by a program"
