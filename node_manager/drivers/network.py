"""The network of an instance in a sandbox, beside its two servers: the endpoints of its manifest, each through a relay (relay.py).

The sandbox still has no network but a loopback of its own. On it the relay listens at one address per host; a hosts file gives these
addresses, so that any client library connects by the host's real name. There is nothing else: no DNS, no other port, no UDP.
"""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from node_manager import proc
from node_manager.drivers import relay
from udo_protocol.errors import OperatorError

# Their names in an instance's directory, to which the files below /etc lead.
HOSTS, NSSWITCH = ".hosts", ".nsswitch.conf"
FILES = ((HOSTS, "/etc/hosts"), (NSSWITCH, "/etc/nsswitch.conf"))
_START_TIMEOUT_S = 10.0
_LOCAL = "localhost"


def addresses(hosts: Sequence[str]) -> dict[str, str]:
    """Host -> its address inside: an IPv4 address at itself, a name at an address of its own on the loopback."""
    found = {_LOCAL: "127.0.0.1"}
    for host in hosts:
        if host not in found:
            found[host] = host if _is_address(host) else f"127.1.0.{len(found)}"
    return found


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def start(instance: proc.ProcessId, directory: Path, endpoints: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a relay; return it once it listens. It ends with the process whose network it serves. OperatorError if it cannot."""
    asked = [(host, int(port)) for host, _, port in (e.rpartition(":") for e in endpoints)]
    inside = addresses([host for host, _ in asked])
    lines = [f"{address} {host}\n" for host, address in inside.items() if not _is_address(host)]
    (directory / HOSTS).write_text("".join(lines), "ascii")
    (directory / NSSWITCH).write_text("hosts: files\n", "ascii")
    places = json.dumps([(inside[host], port, host) for host, port in asked])
    pidfd = proc.open_pidfd(instance)
    if pidfd is None:
        raise OperatorError("it ended before its network was ready")
    try:
        netns = os.open(f"/proc/{instance.pid}/ns/net", os.O_RDONLY)
        try:
            with (directory / "log").open("ab") as log:
                child = subprocess.Popen(
                    (sys.executable, "-I", "-S", relay.__file__, str(pidfd), str(netns), places),
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(pidfd, netns),
                )
        finally:
            os.close(netns)
    except OSError as e:
        raise OperatorError(f"the network {', '.join(endpoints)} cannot be given to it: {e}") from e
    finally:
        os.close(pidfd)
    assert child.stdout is not None
    with child.stdout:
        if not proc.readable(child.stdout.fileno(), _START_TIMEOUT_S) or os.read(child.stdout.fileno(), len(relay.READY)) != relay.READY:
            child.kill()
            child.wait()
            raise OperatorError(f"the network {', '.join(endpoints)} cannot be given to it; its log says why")
    return child
