"""Hosts on one machine: network namespaces with a bridge between them, removed at the end with all their processes.

They share the machine's files, so every host reaches every Unix socket: the test has to use the right one. Needs root and `ip`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# `ip` returns at once; on a very busy machine it takes longer.
_IP_TIMEOUT_S = 30.0


class Missing(Exception):
    """This machine cannot have network namespaces, with the reason."""


@dataclass(frozen=True)
class Host:
    """A network namespace with an address that the other hosts and the machine itself can reach."""

    name: str
    namespace: str
    address: str

    def popen(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[Any]:
        """Start a program on this host."""
        words = ["ip", "netns", "exec", self.namespace, *map(str, command)]
        return subprocess.Popen(words, env=direct(os.environ if env is None else env), **options)

    def run(self, command: Sequence[str | Path], timeout_s: float = 60.0) -> str:
        """Run a program on this host, and return its output; CalledProcessError if it fails."""
        words = ["ip", "netns", "exec", self.namespace, *map(str, command)]
        return subprocess.run(words, env=direct(os.environ), capture_output=True, text=True, timeout=timeout_s, check=True).stdout

    def delay(self, milliseconds: float) -> None:
        """Delay all packets that this host sends. CalledProcessError where the kernel has no netem."""
        command = ["tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", "netem", "delay", f"{milliseconds:g}ms"]
        subprocess.run(command, capture_output=True, text=True, timeout=_IP_TIMEOUT_S, check=True)

    def kill(self) -> None:
        """kill -9 all processes of this host, as when it loses power."""
        for pid in _ip("netns", "pids", self.namespace).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@dataclass(frozen=True)
class Network:
    """The hosts by name; `address` is the machine's own address in the network."""

    address: str
    hosts: Mapping[str, Host]


def direct(env: Mapping[str, str]) -> dict[str, str]:
    """This environment without proxies, which cannot reach these hosts."""
    return {k: v for k, v in env.items() if not k.lower().endswith("_proxy")}


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """Hosts of these names; raises Missing if this machine cannot have any."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Missing("network namespaces need root and the program `ip` (Debian: iproute2)")
    tag, subnet = secrets.token_hex(3), f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(256)}"
    bridge, made = f"udo{tag}", [Host(n, f"udo-{tag}-{n}", f"{subnet}.{i}") for i, n in enumerate(names, 2)]
    with contextlib.ExitStack() as stack:
        try:
            _ip("link", "add", bridge, "type", "bridge")
            stack.callback(_ip, "link", "delete", bridge)
            _ip("address", "add", f"{subnet}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for i, host in enumerate(made):
                _ip("netns", "add", host.namespace)
                stack.callback(_ip, "netns", "delete", host.namespace)
                stack.callback(host.kill)
                outer = f"{bridge}-{i}"
                _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
                _ip("link", "set", outer, "master", bridge, "up")
                _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    _ip("-n", host.namespace, "link", "set", device, "up")
        except subprocess.CalledProcessError as e:
            raise Missing(f"network namespaces cannot be made here: {e.stderr.strip()}") from e
        yield Network(f"{subnet}.1", {h.name: h for h in made})


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=_IP_TIMEOUT_S, check=True).stdout
