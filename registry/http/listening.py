"""Where the registry listens when it may choose the port: on the one it had, since its nodes and clients know that one."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from pathlib import Path

log = logging.getLogger("registry")
# Below what systems hand out for outgoing connections, and above the well-known ports: while the registry is away nobody takes its
# port by chance.
PORTS = range(20_000, 32_000)
_TRIES = 50


def settled(listen: str, data: Path) -> str:
    """`listen` with a port in the place of 0: the one noted in `data`, or a free one, which is noted."""
    host, colon, port = listen.rpartition(":")
    if not colon or port != "0" or listen.startswith("unix:"):
        return listen
    bare = host.strip("[]")
    note = data / "port"
    former = 0
    with contextlib.suppress(FileNotFoundError, ValueError):
        former = int(note.read_text("utf-8"))
    if former and not bindable(former, bare):
        log.warning("port %d was this registry's and is taken: listening on another; start its nodes again with the new address", former)
        former = 0
    chosen = former or next((p for p in random.sample(PORTS, _TRIES) if bindable(p, bare)), 0)
    if chosen:
        note.write_text(f"{chosen}\n", "utf-8")
    return f"{host}:{chosen}"


def bindable(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with contextlib.suppress(OSError), socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
        return True
    return False
