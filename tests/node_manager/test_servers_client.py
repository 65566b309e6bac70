"""redis-py for the administration of servers: its errors become this project's, and it waits no longer than it is told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from node_manager.servers.client import administered
from tests.conftest import Servers
from udo_protocol.errors import ServerLost, Unauthorized
from udo_protocol.queue.connection import Login, ReplyError

DEFAULT = Login("default", "")


def test_a_server_is_administered_with_hiredis(servers: Servers) -> None:
    with administered(Path(servers.queue_socket), DEFAULT, 10) as client:
        assert client.set("udo:x", "1", px=60_000)
        assert client.info("server")["run_id"] == servers.queue().run_id
        connection = client.connection_pool.get_connection()
        assert type(connection._parser).__name__ == "_HiredisParser"


def test_refusals_are_told_as_this_projects_own(servers: Servers) -> None:
    with pytest.raises(ReplyError, match="WRONGTYPE|wrong kind"), administered(Path(servers.queue_socket), DEFAULT, 10) as client:
        client.rpush("udo:l", "1")
        client.get("udo:l")
    with pytest.raises(Unauthorized, match="nobody"), administered(Path(servers.queue_socket), Login("nobody", "x"), 10) as client:
        client.ping()


def test_a_server_that_is_away_or_hangs_is_lost_in_time(tmp_path: Path) -> None:
    with pytest.raises(ServerLost, match="no server answers"), administered(tmp_path / "none", DEFAULT, 0.2) as client:
        client.ping()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen(1)
        with pytest.raises(ServerLost, match="no server answers"), administered(tmp_path / "s", DEFAULT, 0.2) as client:
            client.ping()
