"""The address on which a daemon listens. A daemon that may choose its port reuses its former one; for other hosts it needs TLS."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import random
import socket
from pathlib import Path

from udo_protocol.errors import UsageError

log = logging.getLogger(__name__)
# Below the ports that systems assign to outgoing connections, and above the well-known ones: no other process takes a daemon's
# port by chance while it is down.
PORTS = range(20_000, 32_000)
_TRIES = 50
# Ports that this process has claimed, some of them for a server that will listen later.
_claimed: dict[int, int] = {}  # -> file descriptor


def with_port(listen: str, note: Path) -> str:
    """Replace port 0 of `listen` by the port in the file `note`, or by a free one, which is written to `note`."""
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
    """Claim a port, so that no other daemon on this host chooses it before a server listens on it; False if another has claimed it.

    The claim lasts as long as this process: it is an address in the abstract namespace, which the kernel gives to one socket at a time
    in each network namespace.
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
    """The host (without brackets) and port of HOST:PORT."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"expected HOST:PORT to listen on, as 10.0.0.2:7070 or [::1]:7070, got {listen!r}")
    return host.strip("[]"), int(port)


def reached_at(listen: str) -> str:
    """HOST:PORT for other hosts: with the host's own name if `listen` means all of its addresses."""
    host, port = parts(listen)
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def on_this_host(host: str) -> bool:
    """Whether only this host can reach a server that listens on this address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def require_tls_beyond(listen: str, what: str) -> None:
    """Raise UsageError if other hosts could reach `what` at `listen`, since it has no certificates."""
    if not listen.startswith("unix:") and not on_this_host(parts(listen)[0]):
        raise UsageError(
            f"{what} cannot listen on {listen} without TLS: anybody on the network could read and change what is sent. Give it "
            "certificates, --tls FOLDER (udo certs makes them for development), or listen on 127.0.0.1; see docs/executors.md"
        )
