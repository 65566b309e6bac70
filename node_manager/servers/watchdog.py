"""Stops a node's instances and servers once the node manager has been gone for the grace period.

A script of the standard library only, in its own session: `python -I -S watchdog.py HOME GRACE_MS`. The heartbeat is a key on the queue
server that the manager renews and that expires by itself. Instances look at it, too; the watchdog is for the servers and for instances that
hang. It ends with the servers. Time in which the watchdog itself hung does not count: the node manager may have hung with it, unable to
renew the heartbeat.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

# How often it checks: rare enough to cost nothing, often enough for a grace period of seconds.
INTERVAL_S = 1.0
# The longest that a reply, and an orderly shutdown, may take.
REPLY_S, TERM_S = 5.0, 5.0
HEARTBEAT = b"udo:heartbeat"
# The file in the home that names the Docker daemon of its containers, and the label by which they are found.
DOCKER, HOME_LABEL = "docker", "dev.udo.home"
_REMOVED_S = 10.0


def encoded(*words: bytes) -> bytes:
    """One command as the server reads it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


class ServerLink:
    """A connection to a server, logged in as the manager."""

    def __init__(self, path: Path, password: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(REPLY_S)
        self._replies = self._socket.makefile("rb")
        try:
            self._socket.connect(str(path))
            self.call(b"AUTH", b"manager", password)
        except OSError:
            self.close()
            raise

    def call(self, *words: bytes) -> bytes:
        """Execute one command; return the first line of its raw reply. OSError if the server closed the connection instead."""
        self._socket.sendall(encoded(*words))
        line = self._replies.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        return line

    def close(self) -> None:
        """Drop the connection."""
        self._replies.close()
        self._socket.close()


def same_process(pid: int, started: int) -> bool:
    """Whether the pid is still the process that was recorded."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return int(text[text.rindex(")") + 2 :].split()[19]) == started


def kill_group(pid: int, started: int, signum: int) -> None:
    """Signal its group if it still runs."""
    if same_process(pid, started):
        with contextlib.suppress(OSError):
            os.killpg(pid, signum)


class Daemon(http.client.HTTPConnection):
    """A connection to a Docker daemon on this machine: `unix:///path`."""

    def __init__(self, address: str) -> None:
        super().__init__("localhost", timeout=30)
        self.path = address.removeprefix("unix://")

    def connect(self) -> None:
        """Connect to the daemon's socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def remove_containers(home: Path) -> list[str]:
    """Remove the containers of this home, also those without a record; return which ones. If their daemon is away, the next manager
    does."""
    removed: list[str] = []
    mine = urllib.parse.quote(json.dumps({"label": [f"{HOME_LABEL}={home}"]}))
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        address = (home / DOCKER).read_text()
        deadline = time.monotonic() + _REMOVED_S
        while time.monotonic() < deadline:
            _, found = _asked(address, "GET", f"/containers/json?all=true&filters={mine}")
            if not found:
                break
            for container in found:
                status, _ = _asked(address, "DELETE", f"/containers/{container['Id']}?force=true&v=true")
                removed += [f"{container['Names'][0].lstrip('/')} ({container['Id'][:12]})"] if status == 204 else []
            time.sleep(0.1)  # one that is already being removed may still be listed
    return removed


def _asked(address: str, method: str, path: str) -> tuple[int, Any]:
    with contextlib.closing(Daemon(address)) as daemon:
        daemon.request(method, path)
        reply = daemon.getresponse()
        body = reply.read()
        return reply.status, json.loads(body) if reply.status == 200 else None


def stop_instances(home: Path) -> None:
    """End the instances that are processes, and remove containers, which stop by themselves unless they hang."""
    remove_containers(home)
    end(recorded(home / "handles", "handle", "data"))


def recorded(directory: Path, *where: str) -> list[tuple[int, int]]:
    """(pid, start time) of the processes in the records of this directory."""
    found = []
    for record in directory.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(record.read_text())
            for name in where:
                data = data[name]
            found.append((int(data["pid"]), int(data["started"])))
    return found


def end(found: list[tuple[int, int]]) -> None:
    """SIGTERM to these processes, then SIGKILL to those left after a while."""
    for pid, started in found:
        kill_group(pid, started, signal.SIGTERM)
    deadline = time.monotonic() + TERM_S
    while time.monotonic() < deadline and any(same_process(*p) for p in found):
        time.sleep(0.1)
    for pid, started in found:
        kill_group(pid, started, signal.SIGKILL)


def main(home: Path, grace_s: float) -> None:
    """Watch until the manager or the servers are gone; then stop what is left."""
    queue, state = home / "run" / "queue.sock", home / "run" / "state.sock"
    password = json.loads((home / "servers" / "access.json").read_text())["manager"].encode()
    server, missed_s, patience_s, looked = None, 0.0, grace_s, time.monotonic()
    while missed_s < patience_s:
        before, looked = looked, time.monotonic()
        missed_s += min(looked - before, 2 * (INTERVAL_S + REPLY_S))
        try:
            server = server or ServerLink(queue, password)
            if server.call(b"EXISTS", HEARTBEAT).startswith(b":1"):
                missed_s = 0.0
                patience_s = min(grace_s, INTERVAL_S * 3)  # the key outlives the manager by the whole grace already
        except OSError:  # gone; the manager, if it lives, starts another, and sets its key when it finds the time
            if server is not None:
                server.close()
            server, patience_s = None, grace_s
        time.sleep(INTERVAL_S)
    if server is not None:
        server.close()
    stop_instances(home)
    for path in (queue, state):
        with contextlib.suppress(OSError), contextlib.closing(ServerLink(path, password)) as server:
            server.call(b"SHUTDOWN", b"NOSAVE")
    end(recorded(home / "servers", "process"))  # servers that hang, or have lost their socket
    for path in (queue, state):
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) / 1000)
