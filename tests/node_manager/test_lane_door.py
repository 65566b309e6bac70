"""OpenLane over HTTP: the same answer as by gRPC, the same error codes, and for the same user only."""

from __future__ import annotations

import http.client
import json
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from node_manager.manager import Manager
from node_manager.rpc.lane_door import PATH, REQUEST_BYTES, SOCKET_NAME, LaneDoor, _Server
from node_manager.rpc.service import NodeService
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import add, put_image
from tests.support.lanes import opened
from udo_protocol import supervised
from udo_protocol.node.api import NodeClient
from udo_protocol.proto import node_manager_pb2 as pb


class _Http(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=bound(30))
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def door(manager: Manager) -> Iterator[Path]:
    """The socket of an open lane door."""
    served = LaneDoor(NodeService(manager), manager.settings.socket)
    served.start()
    path = manager.settings.socket.with_name(SOCKET_NAME)
    yield path
    assert served.stop().is_set()
    assert not path.exists()


@pytest.fixture
def ask(door: Path) -> Ask:
    """Send a request; return the status and JSON of its answer."""

    def send(body: Any, *, path: str = PATH, method: str = "POST", **headers: str) -> tuple[int, Any]:
        connection = _Http(door)
        try:
            connection.request(method, path, body if body is None or isinstance(body, (str, bytes)) else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    return send


def test_a_lane_is_opened_as_by_grpc(ask: Ask, api: NodeClient, manager: Manager) -> None:
    name = "d"
    api.deploy(name, "t", "1", put_image(manager.settings.home, add(1)), wait_ms=30_000)
    status, told = ask({"deployment": name, "lane": "by-http", "wait_ms": 30_000, "epoch": 3})
    assert status == 200
    reply = json_format.ParseDict(told, pb.OpenLaneReply())
    assert reply == opened(api, name, "by-grpc", epoch=3)
    assert reply.slots[0].password and reply.window_frames > 0


def test_errors_are_told_by_their_code(ask: Ask) -> None:
    status, told = ask({"deployment": "nothing", "lane": "x"})
    assert (status, told["code"], told["retry"]) == (404, "not_found", False) and "nothing" in told["message"]
    for body in ("{", '{"no_such_field": 1}', '{"epoch": "soon"}', b"\xff\xfe", "[" * 10_000):
        status, told = ask(body)
        assert (status, told["code"]) == (400, "usage"), told
    status, told = ask("{}", path="/udo.v1.NodeManager/Undeploy")
    assert (status, told["code"]) == (404, "not_found")
    status, told = ask(None, **{"Content-Length": str(REQUEST_BYTES + 1)})
    assert (status, told["code"]) == (400, "usage") and str(REQUEST_BYTES) in told["message"]


def test_only_this_user_reaches_the_socket(door: Path) -> None:
    assert stat.S_IMODE(door.stat().st_mode) == 0o700


def test_a_client_that_sends_nothing_keeps_nobody_else_waiting(ask: Ask, door: Path) -> None:
    silent = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    try:
        for s in silent:
            s.connect(str(door))
            s.sendall(b"POST ")
        assert ask({"deployment": "nothing", "lane": "x"})[0] == 404
    finally:
        for s in silent:
            s.close()


def test_the_door_is_served_on_after_serving_it_raised(door: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    before, raised = supervised.errors().get("lane-door", 0), []

    def actions(server: Any) -> None:
        if not raised:
            raised.append(1)
            raise RuntimeError("nobody expected it")

    monkeypatch.setattr(_Server, "service_actions", actions)
    wait_until(lambda: supervised.errors().get("lane-door", 0) == before + 1, 10, "it to raise")
    assert ask({}, path="/elsewhere")[0] == 404
