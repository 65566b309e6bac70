"""Network access by opt-in: an operator in a sandbox reaches the endpoints that it asks for and the node allows, and no others."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil
import pytest

from node_manager.drivers.network import addresses
from tests.conftest import require, wait_until
from tests.node_manager.conftest import Daemon, Lane
from udo_protocol.errors import Refused
from udo_protocol.formats.manifest import parse

# Requests /a from PLACES[a // 10] with the standard library's client; b = -1 if the connection is refused.
ASK = """
import errno, urllib.error, urllib.request
from udo_runtime import operator
PLACES = {places}
def ask(place, a):
    try:
        return int(urllib.request.urlopen(f"http://{{place}}/{{a}}", timeout=20).read())
    except urllib.error.URLError as e:
        if getattr(e.reason, "errno", None) != errno.ECONNREFUSED: raise
        return -1
@operator
def run(batch):
    return {{"b": [ask(PLACES[a // 10], a) for a in batch.column("a").to_pylist()]}}
"""


class Doubling(BaseHTTPRequestHandler):
    """Answers /21 with 42, and records the host name of each request."""

    def do_GET(self) -> None:
        self.server.names.add(self.headers["Host"])  # type: ignore[attr-defined]
        body = str(2 * int(self.path[1:])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


# Connects to PLACES[a]; answers with the byte received, or the name of the error.
CONNECT = """
import socket
from udo_runtime import operator
PLACES = {places}
@operator
def run(batch):
    found = []
    for a in batch.column("a").to_pylist():
        host, _, port = PLACES[a].partition(":")
        with socket.create_connection((host, int(port)), 20) as s:
            try:
                found.append(s.recv(1).decode())
            except OSError as e:
                found.append(type(e).__name__)
    return {{"b": found}}
"""


@contextlib.contextmanager
def serving() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("0.0.0.0", 0), Doubling)
    server.names = set()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def service() -> Iterator[ThreadingHTTPServer]:
    with serving() as server:
        yield server


@pytest.fixture
def other() -> Iterator[ThreadingHTTPServer]:
    with serving() as server:
        yield server


def sandboxed(daemon: Daemon, *args: str) -> Daemon:
    daemon.start(*args)
    if "sandbox: bubblewrap" not in daemon.log():
        require("bubblewrap", "this host's node manager found no bubblewrap that works")
    return daemon


def relays(daemon: Daemon) -> list[psutil.Process]:
    found = []
    for process in daemon.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if any(word.endswith("relay.py") for word in process.cmdline()) else []
    return found


def own_address() -> str:
    """Return an address of this host other than the loopback's, as a service elsewhere has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s, contextlib.suppress(OSError):
        s.connect(("192.0.2.1", 9))
        return str(s.getsockname()[0])
    return "127.0.0.1"


def test_an_operator_reaches_the_endpoints_it_asks_for_by_their_names_and_no_others(
    home_daemon: Daemon, service: ThreadingHTTPServer, other: ThreadingHTTPServer
) -> None:
    """By a host name, by `localhost` and by an address; the last place is served and allowed by the node, but not asked for."""
    hosts = dict.fromkeys((socket.gethostname(), "localhost", own_address()))
    asked, closed = [f"{h}:{service.server_port}" for h in hosts], f"localhost:{other.server_port}"
    daemon = sandboxed(home_daemon, *(f"--allow-network={e}" for e in [*asked, closed]))
    daemon.deploy(ASK.format(places=[*asked, closed]), network=asked)
    lane = Lane(daemon.api, "d")
    for n, place in enumerate(asked):
        assert lane.ask(10 * n + 1) == 20 * n + 2
        assert place in service.names, "asked by its own name"  # type: ignore[attr-defined]
    assert lane.ask(10 * len(asked)) == -1
    assert not other.names  # type: ignore[attr-defined]
    lane.conn.close()


def test_a_service_that_is_down_or_has_no_address_resets_the_connection_and_the_log_says_why(home_daemon: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        down = f"localhost:{taken.getsockname()[1]}"
    places = [down, "nowhere.invalid:9"]
    daemon = sandboxed(home_daemon, *(f"--allow-network={place}" for place in places))
    daemon.deploy(CONNECT.format(places=places), network=places, output={"b": "string"})
    lane = Lane(daemon.api, "d")
    assert [lane.ask(n) for n in range(2)] == ["ConnectionResetError"] * 2
    said = [line.text for line in daemon.api.logs("d")]
    assert all(any(f"network: {place}: " in line for line in said) for place in places), said
    lane.conn.close()


@pytest.mark.long
def test_the_network_outlives_the_node_manager_and_ends_with_the_instance(home_daemon: Daemon, service: ThreadingHTTPServer) -> None:
    port = service.server_port
    daemon = sandboxed(home_daemon, f"--allow-network=localhost:{port}")
    daemon.deploy(ASK.format(places=[f"localhost:{port}"]), network=[f"localhost:{port}"])
    lane = Lane(daemon.api, "d")
    pid = daemon.slot().pid
    daemon.kill()
    assert lane.ask(4) == 8
    daemon.start(f"--allow-network=localhost:{port}")
    assert (lane.ask(5), daemon.slot().pid) == (10, pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemon.slot().pid not in (0, pid), 30, "the next instance")
    assert lane.ask(6) == 12, "the next instance has it, too"
    wait_until(lambda: len(relays(daemon)) == 1, 20, "the relay of the first one to end")
    pid = daemon.slot().pid
    relays(daemon)[0].kill()
    wait_until(lambda: daemon.slot().pid not in (0, pid), 30, "an instance without its relay to be replaced")
    assert lane.ask(7) == 14
    lane.conn.close()
    daemon.api.undeploy("d")
    wait_until(lambda: not relays(daemon), 20, "the relays to end")


def test_an_operator_that_asks_for_what_the_node_does_not_allow_is_refused_with_what_to_do(home_daemon: Daemon) -> None:
    daemon = home_daemon.start("--allow-network=api.example.org:443")
    with pytest.raises(Refused) as e:
        daemon.deploy(ASK.format(places=[]), network=["api.example.org:443", "db.example.org:5432"])
    why = "t@1 requests network access (network in operator.toml): db.example.org:5432. Node n1 allows api.example.org:443; start it with "
    assert why + "--allow-network db.example.org:5432" in str(e.value)
    assert why in daemon.slot().last_error


def test_a_driver_that_opens_no_single_endpoint_says_so() -> None:
    from node_manager.drivers.base import Capabilities
    from node_manager.instances.network_access import require_allowed

    manifest = parse(
        {"name": "t", "version": "1", "entry": "op:run", "input": {"a": "int64"}, "output": {"b": "int64"}, "network": ["a:1"]}, "test"
    )
    require_allowed(manifest, "n1", ["a:1"], Capabilities(isolates_network=True, opens_endpoints=True))
    require_allowed(manifest, "n1", ["a:1"], Capabilities())
    with pytest.raises(Refused, match="node n1 cannot give it a part of it: sandbox: Landlock"):
        require_allowed(manifest, "n1", ["a:1"], Capabilities(isolates_network=True, remark="sandbox: Landlock"))


def test_each_host_has_an_address_of_its_own_inside() -> None:
    assert addresses(["a.example", "10.1.2.3", "a.example", "localhost", "b.example"]) == {
        "localhost": "127.0.0.1",
        "a.example": "127.1.0.1",
        "10.1.2.3": "10.1.2.3",
        "b.example": "127.1.0.3",
    }
