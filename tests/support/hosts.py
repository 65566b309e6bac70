"""A platform on several hosts (network namespaces): a registry on the first one, a node manager on each, certificates for all."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import bound, require, wait_until
from tests.support.certificates import require_relay
from tests.support.netns import Host, Missing, Network, direct, network
from udo_cli.platform.authority import Authority
from udo_protocol.certificates import Tls
from udo_protocol.errors import UdoError
from udo_protocol.node.api import connect_node
from udo_protocol.registry.api import Registry

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 90.0
# The port of the node managers for other hosts, and that of the registry.
NODE_PORT, REGISTRY_PORT = 7070, 5000


@dataclass(frozen=True)
class Hosts:
    """The hosts of a platform, which the machine itself can reach, too."""

    top: Path
    net: Network
    registry_url: str
    client: Registry
    tls: Tls  # the certificate of the machine itself
    start: Callable[[str], None]  # starts a host's node manager

    def url(self, name: str) -> str:
        """The URL of a host's node manager for other hosts."""
        return f"https://{self.net.hosts[name].address}:{NODE_PORT}"

    def socket(self, name: str) -> Path:
        """The socket of a host's node manager for programs on the host."""
        return self.top / name / "node.sock"

    def environment(self, name: str) -> dict[str, str]:
        """The environment of a program on that host: with it the program finds its node manager, the registry and its certificates."""
        env = direct({k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYSPARK_SUBMIT"))})
        own = {"UDO_NODE": str(self.socket(name)), "UDO_REGISTRY": self.registry_url, "UDO_TLS": str(self.top / "certs" / name)}
        return {**env, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": self.net.hosts[name].address, **own}

    def lose(self, name: str) -> None:
        """Kill everything on a host, as when it loses power; its disk stays."""
        self.net.hosts[name].kill()
        connect_node(self.socket(name)).close()
        connect_node(self.url(name), self.tls).close()

    def answering(self, deployment: str) -> set[str]:
        """The nodes on which a deployment answers."""
        return {n["node"] for n in self.client.deployment(deployment)["nodes"] if n["state"] == "answering"}


@contextmanager
def platform(top: Path, *names: str, delay_ms: float = 0.0) -> Iterator[Hosts]:
    """Hosts of these names with a platform, with a delay between them where the kernel can delay packets.

    Skips, or fails where all parts are required, if this machine cannot have any.
    """
    with contextlib.ExitStack() as stack:
        require_relay()
        try:
            net = stack.enter_context(network(*names))
        except Missing as e:
            require("hosts (root, iproute2)", str(e))
        for host in net.hosts.values():
            with contextlib.suppress(subprocess.CalledProcessError):  # a kernel without netem: no delay
                host.delay(delay_ms)
        authority, first = Authority.of(top / "certs"), net.hosts[names[0]]
        for host in net.hosts.values():
            authority.sign(host.name, [host.address])
        url = f"https://{first.address}:{REGISTRY_PORT}"
        log = stack.enter_context((top / "log").open("ab"))
        processes: list[subprocess.Popen[Any]] = []
        stack.callback(_stop, processes)

        def start(host: Host, *command: object) -> None:
            env = direct({**os.environ, "PYTHONPATH": str(ROOT)})
            words = [sys.executable, "-m", *map(str, command), "--tls", str(top / "certs" / host.name)]
            processes.append(host.popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

        tls, data = authority.sign("machine"), top / "registry"
        data.mkdir()
        start(first, "registry", "--data", data, "--listen", f"{first.address}:{REGISTRY_PORT}")
        wait_until(lambda: (data / "address").exists(), START_TIMEOUT_S, "the registry to listen")
        client = stack.enter_context(Registry(url, (data / "token").read_text().strip(), "tests", tls=tls))

        def start_node(name: str) -> None:
            listen = f"{net.hosts[name].address}:{NODE_PORT}"
            own = ("--home", top / name, "--node", name, "--registry", url, "--token-file", data / "token", "--listen", listen)
            start(net.hosts[name], "node_manager", *own, "--warm", 0, "--sandbox", "none")

        hosts = Hosts(top, net, url, client, tls, start_node)
        for name in names:
            start_node(name)
        wait_until(lambda: _live(client) == set(names), START_TIMEOUT_S, f"all node managers to serve; log: {top}/log")
        yield hosts
        for name in names:
            connect_node(hosts.socket(name)).close()
            connect_node(hosts.url(name), tls).close()


def _live(client: Registry) -> set[str]:
    with contextlib.suppress(UdoError):
        return {n["node"] for n in client.nodes() if n["live"]}
    return set()


def _stop(processes: list[subprocess.Popen[Any]]) -> None:
    for p in reversed(processes):
        p.terminate()
    for p in processes:
        p.wait(bound(40))
