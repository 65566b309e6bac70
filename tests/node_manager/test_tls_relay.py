"""A node that other hosts reach: it opens lanes over TLS for clients with a certificate, through a relay that is supervised like a server.

The tests share the node, and each leaves it as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import ssl
import struct
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import psutil
import pytest

from node_manager.servers import tls_relay
from node_manager.servers.tls_relay import TlsRelay
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, Lane, add
from tests.support.certificates import replace, require_relay, signed
from tests.support.lanes import opened
from udo_protocol import supervised
from udo_protocol.certificates import Tls, client_context
from udo_protocol.errors import NodeAway, ServerLost, UdoError, Unauthorized, Untrusted, UsageError
from udo_protocol.node.api import NodeClient, connect_node
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.proto import node_manager_pb2_grpc as rpc
from udo_protocol.queue.connection import Connection


class RemoteNode:
    """A node with the operator b = a + 1 that listens for other hosts."""

    def __init__(self, daemon: Daemon, authority: Path) -> None:
        self.daemon, self.authority = daemon, authority
        signed(authority, "node")
        self.other = signed(authority, "other")
        self.clients: list[NodeClient] = []
        self.opened: list[Lane] = []

    def start(self) -> None:
        self.daemon.start("--tls", str(self.authority / "node"), "--listen", "127.0.0.1:0", "--metrics-host", "0.0.0.0")

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{(self.daemon.home / 'port').read_text().strip()}"

    def client(self, tls: Tls) -> NodeClient:
        """Return a client on another host."""
        self.clients.append(connect_node(self.url, tls))
        return self.clients[-1]

    def lane(self, tls: Tls | None = None) -> Lane:
        """Open a lane from another host."""
        self.opened.append(Lane(self.client(tls or self.other), "d", f"lane{len(self.opened)}"))
        return self.opened[-1]

    def answers(self, tls: Tls | None = None) -> bool:
        """Return whether an event sent from another host is answered."""
        with contextlib.suppress(UdoError):
            return bool(self.lane(tls).ask(1) == 2)
        return False

    def relay(self) -> int:
        """Return the process id of the relay; 0 if there is none."""
        return next((s.pid for s in self.daemon.api.status().servers if s.role == "relay"), 0)

    def close(self) -> None:
        for lane in self.opened:
            lane.conn.close()
        for client in self.clients:
            client.close()


@pytest.fixture(scope="module")
def node() -> Iterator[RemoteNode]:
    require_relay()
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for socket paths
    made = RemoteNode(Daemon(top / "h"), top / "certs")
    try:
        made.start()
        made.daemon.deploy(add(1))
        yield made
    finally:
        made.close()
        made.daemon.stop()
        left = made.daemon.processes()
        for p in left:
            p.kill()
        shutil.rmtree(top, ignore_errors=True)
    assert left == []


def test_another_host_opens_lanes_by_tls_and_may_do_nothing_else(node: RemoteNode) -> None:
    lane = node.lane()
    assert lane.reply.slots[0].queue_socket.startswith("rediss://127.0.0.1:")
    assert [lane.ask(a) for a in range(50)] == list(range(1, 51))
    lane.send(list(range(100_000)))
    assert lane.values(lane.receive())[-1] == 100_000
    assert lane.reply.slots[0].user == "lane:d:0"
    remote = node.client(node.other)
    for step in (lambda: remote.undeploy("d"), lambda: remote.deploy("e", "t", "1")):
        with pytest.raises(UsageError, match="from other hosts it takes lanes only"):
            step()
    for asked in (remote.status, remote.sessions, remote.on("n2").status):
        with pytest.raises(Unauthorized, match="for node managers that have its registry's token only"):
            asked()
    node.opened.append(Lane(node.daemon.api, "d", "near"))
    assert node.opened[-1].ask(1) == 2, "on the host itself by its socket, as before"


def test_a_node_that_dies_in_a_handshake_is_away_and_not_distrusted(tmp_path: Path) -> None:
    mine = signed(tmp_path / "authority", "mine")
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def dies() -> None:
            with contextlib.suppress(OSError):
                while True:
                    end = listener.accept()[0]
                    end.recv(1)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.close()

        pool.submit(dies)
        try:
            with pytest.raises(NodeAway, match="onnection reset"):
                opened(connect_node(f"https://127.0.0.1:{listener.getsockname()[1]}", mine), "d", "x", wait_ms=1000)
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def test_who_shows_no_certificate_of_the_authority_reaches_neither_node_manager_nor_queue_server(node: RemoteNode, tmp_path: Path) -> None:
    queue, mine = node.lane().reply.slots[0].queue_socket, signed(node.authority, "mine")
    for bad in (
        signed(tmp_path / "another", "intruder"),
        Tls(mine.ca, *_pair(signed(tmp_path / "another", "intruder"))),
        signed(node.authority, "late", expired=True),
    ):
        with pytest.raises((Untrusted, NodeAway)):
            opened(node.client(bad), "d", "x", wait_ms=1000)
        with pytest.raises(Untrusted):
            Connection(queue, tls=bad)
    with pytest.raises(UsageError, match="needs certificates"):
        connect_node(node.url)
    assert not _speaks_without_a_certificate(queue, mine.ca)
    secrets = [*(node.daemon.home / "servers" / "relay").glob("*.json")]
    assert secrets and not any(path.stat().st_mode & 0o077 for path in secrets)
    credentials = grpc.ssl_channel_credentials(mine.ca.read_bytes())
    with grpc.secure_channel(node.url.removeprefix("https://"), credentials) as channel, pytest.raises(grpc.RpcError) as refused:
        rpc.NodeManagerStub(channel).OpenLane(pb.OpenLaneRequest(deployment="d", lane="x"), timeout=bound(10))  # type: ignore[no-untyped-call]
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_the_metrics_page_is_served_to_other_hosts_by_tls_to_who_shows_a_certificate(node: RemoteNode, tmp_path: Path) -> None:
    address = urlsplit(node.daemon.api.status().metrics_address)
    url, mine = f"https://127.0.0.1:{address.port}/metrics", signed(node.authority, "scraper")
    assert address.scheme == "https" and address.hostname == socket.gethostname()
    assert "udo_events_in" in httpx.get(url, verify=client_context(mine)).text
    another = Tls(mine.ca, *_pair(signed(tmp_path / "another", "intruder")))
    for context in (ssl.create_default_context(cafile=mine.ca), client_context(another)):
        with pytest.raises(httpx.HTTPError):
            httpx.get(url, verify=context)
    with pytest.raises(httpx.HTTPError):
        httpx.get(url.replace("https:", "http:"))


def _speaks_without_a_certificate(address: str, ca: Path) -> bool:
    """Return whether the server behind the relay replies at all, even if only that a login is required."""
    host, port = address.removeprefix("rediss://").split(":")
    context = ssl.create_default_context(cafile=ca)
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as stream,
    ):
        stream.sendall(b"PING\r\n")
        return bool(stream.recv(100))
    return False


def _pair(tls: Tls) -> tuple[Path, Path]:
    return tls.certificate, tls.key


def test_the_relay_outlives_a_killed_manager_as_the_servers_do_and_ends_with_the_next_one(node: RemoteNode) -> None:
    lane, pid = node.lane(), node.relay()
    assert lane.ask(1) == 2
    node.daemon.kill()
    assert lane.ask(2) == 3, "without a node manager"
    node.start()
    assert node.relay() == pid
    assert lane.ask(3) == 4
    assert node.lane().ask(4) == 5
    node.daemon.stop()
    assert node.daemon.processes() == []
    node.start()
    wait_until(node.answers, 30, "what was deployed to answer again")


def test_a_relay_that_died_is_started_again_on_its_port(node: RemoteNode) -> None:
    lane, pid = node.lane(), node.relay()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ServerLost):
        lane.ask(1)
    wait_until(lambda: node.relay() not in (0, pid), 20, "another relay")
    wait_until(node.answers, 20, "it to answer")
    assert node.opened[-1].reply.slots[0].queue_socket == lane.reply.slots[0].queue_socket


@pytest.mark.long
def test_without_a_node_manager_the_watchdog_ends_the_relay_with_the_servers(home_daemon: Daemon, tmp_path: Path) -> None:
    require_relay()
    signed(tmp_path / "certs", "node")
    options = ("--tls", str(tmp_path / "certs" / "node"), "--listen", "127.0.0.1:0", "--heartbeat-grace-ms", "1500")
    home_daemon.start(*options)
    assert any("envoy.json" in " ".join(p.cmdline()) for p in home_daemon.processes())
    home_daemon.kill()
    wait_until(lambda: home_daemon.processes() == [], 30, "everything to end")


def test_new_certificates_are_taken_without_a_restart_and_open_connections_stay(node: RemoteNode, tmp_path: Path) -> None:
    before, second = node.lane(), tmp_path / "second"
    former, renewed = signed(node.authority, "former"), signed(second, "other")
    assert before.ask(1) == 2
    replace(node.authority / "node", signed(second, "node"))
    both = "node manager and relay to show their new certificates, and to accept those of the new authority"
    wait_until(lambda: node.answers(renewed), 30, both)
    with pytest.raises((Untrusted, NodeAway)):
        opened(node.client(former), "d", "x", wait_ms=1000)
    with pytest.raises(Untrusted):
        Connection(before.reply.slots[0].queue_socket, tls=former)
    assert before.ask(2) == 3
    replace(node.authority / "node", signed(node.authority, "again"))
    wait_until(lambda: node.answers(former), 30, "the former authority's to count again")


@pytest.mark.long
def test_certificates_that_cannot_be_used_are_told_and_the_former_ones_stay(node: RemoteNode) -> None:
    files = Tls.folder(node.authority / "node")
    good = files.key.read_bytes()
    files.key.write_bytes(signed(node.authority, "else").key.read_bytes())

    def trouble() -> str:
        return str(next(s.trouble for s in node.daemon.api.status().servers if s.role == "relay"))

    wait_until(lambda: "former certificates" in trouble(), 30, "the status to say so")
    assert str(files.key) in trouble()
    assert node.lane().ask(1) == 2
    files.key.write_bytes(good)
    wait_until(lambda: trouble() == "", 30, "the trouble to be over")


def test_listening_without_certificates_or_on_what_is_no_address_is_refused(home_daemon: Daemon, tmp_path: Path) -> None:
    signed(tmp_path, "node")
    for options, expected in (
        (("--listen", "127.0.0.1:0"), "--listen 127.0.0.1:0 needs certificates, --tls FOLDER"),
        (("--metrics-host", "0.0.0.0"), "the metrics page cannot listen on 0.0.0.0:0 without TLS"),
        (("--listen", "7070", "--tls", str(tmp_path / "node")), "expected HOST:PORT"),
        (("--listen", "127.0.0.1:0", "--tls", str(tmp_path / "none")), "cannot be read"),
    ):
        home_daemon.start(*options, wait=False)
        assert home_daemon.process is not None and home_daemon.process.wait(bound(60)) == 1
        assert expected in home_daemon.log()


def test_a_relay_whose_record_cannot_be_written_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_relay()
    (tmp_path / "servers").mkdir()
    relay = TlsRelay(tmp_path, "127.0.0.1:0", signed(tmp_path / "certs", "node"), tmp_path / "queue.sock")
    relay.choose_port()
    write = tls_relay.write_json

    def full(path: Path, value: object) -> None:
        if path == relay._record:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, value)

    monkeypatch.setattr(tls_relay, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        relay.start()
    assert [p for p in psutil.Process().children() if any(str(tmp_path) in word for word in p.cmdline())] == []


def test_who_looks_after_the_relay_goes_on_when_it_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_relay()
    monkeypatch.setattr("node_manager.servers.tls_relay._LOOK_S", 0.02)
    (tmp_path / "servers").mkdir()
    relay = TlsRelay(tmp_path, "127.0.0.1:0", signed(tmp_path / "certs", "node"), tmp_path / "queue.sock")
    relay.choose_port()
    relay.start()
    before = supervised.errors().get("relay", 0)
    original = relay._renew
    try:
        monkeypatch.setattr(relay, "_renew", lambda: 1 / 0)
        wait_until(lambda: supervised.errors().get("relay", 0) > before, 20, "it to raise")
        monkeypatch.setattr(relay, "_renew", original)
        found = relay.running()
        assert found is not None
        os.kill(found[0].pid, signal.SIGKILL)
        wait_until(lambda: (relay.running() or found)[0] != found[0], 30, "it to start another")
    finally:
        relay.stop()
