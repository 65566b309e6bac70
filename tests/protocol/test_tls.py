"""A TCP connection with mutual TLS does what one over a Unix socket does, and says what is wrong with a certificate."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Servers
from tests.support.certificates import signed
from tests.support.slots import BATCH, SCHEMA, answer
from tests.support.tls_front import tls_front
from udo_protocol.certificates import Tls
from udo_protocol.errors import ServerLost, Unauthorized, Untrusted, UsageError
from udo_protocol.node import channels
from udo_protocol.queue import slot
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.frame import DATA, Header, decode, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.lane_end import LaneEnd, Push
from udo_protocol.queue.slot_reader import Emit, SlotReader

P = SlotKeys("t", 0)


@dataclass
class Server:
    """A server that is reached over TLS, and requires certificates of its clients."""

    address: str
    authority: Path
    client: Tls

    def connect(self, tls: Tls | None = None, **options: object) -> Connection:
        return Connection(self.address, tls=tls or self.client, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(running_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    authority = tmp_path_factory.mktemp("tls")
    with tls_front(signed(authority, "server"), running_servers.queue_socket) as address:
        yield Server(address, authority, signed(authority, "client"))


def test_frames_of_every_size_pass_and_are_answered(server: Server) -> None:
    with contextlib.closing(server.connect()) as manager, contextlib.closing(server.connect()) as by_lane:
        manager.call("FLUSHALL")
        slot.promote(manager, manager, P, 1)
        lane, owner = LaneEnd(by_lane, P, "l"), SlotReader(manager, P, "i1", 1)
        lane.open(SCHEMA)
        traces = [b"", b"x" * 9_000, b"y" * 700_000]
        for n, trace in enumerate(traces, 1):
            frame = encode(Header(lane="l", number=n, kind=DATA, trace=trace), BATCH)
            assert lane.push(n, n - 1, [*frame]).status is Push.ACCEPTED

        read = owner.read(1)
        assert [decode(f).header.trace for f in read.frames] == traces
        assert owner.emit(1, answer(read)) is Emit.EMITTED
        assert [f.header.number for f in lane.collect(1000)] == [1, 2, 3]
        assert lane.collect(10) == [], "a wait that ends without an answer"
    with contextlib.closing(server.connect(run_id=manager.run_id)) as again:
        assert again.call("GET", f"{P}emitted") == b"3"


def test_a_login_is_asked_for_as_on_a_unix_socket(server: Server) -> None:
    with pytest.raises(Unauthorized, match="failed for user nobody at the server on rediss://127.0.0.1"):
        server.connect(login=Login("nobody", "x"))


def test_a_reply_that_does_not_come_in_time_ends_the_connection(server: Server) -> None:
    with contextlib.closing(server.connect(timeout_s=0.2)) as conn, pytest.raises(ServerLost, match=r"did not answer within 0\.2 s"):
        conn.call("BLPOP", "nothing", 30)


def test_a_server_of_another_authority_is_not_spoken_to(server: Server, tmp_path: Path) -> None:
    other = signed(tmp_path / "another", "x")
    with pytest.raises(Untrusted, match=r"not accepted: .*; expected a valid one for '127\.0\.0\.1' that .*another.*ca\.crt vouches for"):
        server.connect(replace(server.client, ca=other.ca))


def test_a_client_of_another_authority_is_told_that_it_is_refused(server: Server, tmp_path: Path) -> None:
    other = signed(tmp_path / "another", "intruder")
    with pytest.raises(Untrusted, match=r"the server on rediss://.* refuses this side's certificate: .*unknown ca"):
        server.connect(replace(other, ca=server.client.ca))


def test_a_client_whose_certificate_has_expired_is_told_so(server: Server) -> None:
    with pytest.raises(Untrusted, match=r"refuses this side's certificate: .*certificate expired"):
        server.connect(signed(server.authority, "late", expired=True))


@pytest.mark.parametrize(("host", "expired", "why"), [("127.0.0.1", True, "certificate has expired"), ("10.9.9.9", False, "mismatch")])
def test_a_server_with_a_certificate_that_is_expired_or_of_another_host_is_not_spoken_to(
    running_servers: Servers, tmp_path: Path, host: str, expired: bool, why: str
) -> None:
    with (
        tls_front(signed(tmp_path, "server", host, expired=expired), running_servers.queue_socket) as address,
        pytest.raises(Untrusted, match=f"not accepted: .*{why}"),
    ):
        Connection(address, tls=signed(tmp_path, "client"))


def test_a_port_where_nobody_listens_or_speaks_tls_is_named(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"rediss://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerLost, match="did not answer within"):
            Connection(address, tls=server.client, timeout_s=0.2)
    with pytest.raises(ServerLost, match=f"no server answers on {address}: .*refused"):
        Connection(address, tls=server.client)


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1", "rediss://127.0.0.1", "rediss://:6379", "rediss://h:99999", "rediss://h:1/2"])
def test_an_address_without_tls_or_without_a_port_is_refused(server: Server, address: str) -> None:
    with pytest.raises(UsageError, match=r"expected .*rediss://host:port, got"):
        Connection(address, tls=server.client)


def test_files_that_hold_no_certificate_are_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    for tls in (replace(server.client, ca=tmp_path / "none"), replace(server.client, key=tmp_path / "empty")):
        with pytest.raises(UsageError, match=r"expected .*(none|empty)"):
            server.connect(tls)
    with pytest.raises(UsageError, match="needs certificates"):
        Connection(server.address)


class Closable:
    """Stands in for a channel."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_channel_of_former_certificates_is_kept_no_longer_and_its_calls_go_on() -> None:
    def kept(path: str, stamp: int) -> Any:
        return channels.kept(path, (stamp,), Closable)  # type: ignore[arg-type]

    former, other = kept("one", 1), kept("other", 1)
    assert kept("one", 1) is former
    renewed = kept("one", 2)
    assert renewed is not former and kept("one", 2) is renewed and kept("other", 1) is other
    channels.close("one")
    assert (former.closed, renewed.closed, other.closed) == (False, True, False)
    channels.close("other")
    assert other.closed
