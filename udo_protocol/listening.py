"""Where a daemon listens: if it may choose the port, on the one that it had before, since others know that; for other hosts by TLS only."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import random
import socket
from pathlib import Path

from udo_protocol.errors import UsageError

log = logging.getLogger(__name__)
# Below what systems hand out for outgoing connections, and above the well-known ports: while a daemon is away nobody takes its
# port by chance.
PORTS = range(20_000, 32_000)
_TRIES = 50
# Ports that this process has chosen, some of them for a server that will listen later.
_claimed: dict[int, int] = {}  # -> file descriptor


def settled(listen: str, note: Path) -> str:
    """`listen` with a port in the place of 0: the one in the file `note`, or a free one, which is noted."""
    host, colon, port = listen.rpartition(":")
    if not colon or port != "0" or listen.startswith("unix:"):
        return listen
    bare = host.strip("[]")
    former = 0
    with contextlib.suppress(FileNotFoundError, ValueError):
        former = int(note.read_text("utf-8"))
    if former and not (bindable(former, bare) and _claim(former)):
        log.warning("port %d was used before and is taken: listening on another; tell it to whoever has the former address", former)
        former = 0
    chosen = former or next((p for p in random.sample(PORTS, _TRIES) if p not in _claimed and bindable(p, bare) and _claim(p)), 0)
    if chosen:
        note.write_text(f"{chosen}\n", "utf-8")
    return f"{host}:{chosen}"


def _claim(port: int) -> bool:
    """Take a port, so that no other daemon here chooses it before somebody listens on it; False if one has. It lasts as long as this
    process: an address in the abstract namespace, which the kernel gives to one socket at a time in each network namespace.
    """
    if port not in _claimed:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0udo-port-{port}")
        except OSError:
            claim.close()
            return False
        _claimed[port] = claim.detach()
    return True


def bindable(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with contextlib.suppress(OSError), socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
        return True
    return False


def parts(listen: str) -> tuple[str, int]:
    """Host, without brackets, and port of HOST:PORT."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"expected HOST:PORT to listen on, as 10.0.0.2:7070 or [::1]:7070, got {listen!r}")
    return host.strip("[]"), int(port)


def reached_at(listen: str) -> str:
    """HOST:PORT as other hosts say it: the host's own name where `listen` means all of its addresses."""
    host, port = parts(listen)
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def on_this_host(host: str) -> bool:
    """Whether nobody on another host reaches what listens on this address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def require_tls_beyond(listen: str, what: str) -> None:
    """UsageError if other hosts reach what is going to listen there without certificates."""
    if not listen.startswith("unix:") and not on_this_host(parts(listen)[0]):
        raise UsageError(
            f"{what} cannot listen on {listen} without TLS: anybody on the network could read and change what is sent. Give it "
            "certificates, --tls FOLDER (udo certs makes them for development), or listen on 127.0.0.1; see docs/executors.md"
        )
