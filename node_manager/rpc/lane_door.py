"""OpenLane as JSON over HTTP on a Unix socket beside the one for gRPC: for producers that have no gRPC, such as a Spark executor's JVM.

Access is as for gRPC's socket: this user's only. The server answers this one call, and nothing else (docs/protocol.md).
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from concurrent import futures
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import structlog
from google.protobuf import json_format

from node_manager.rpc.service import THREADS, NodeService
from node_manager.rpc.wire import shortened
from udo_protocol import supervised
from udo_protocol.errors import (
    Conflict,
    NotFound,
    OperatorError,
    UdoError,
    Unauthorized,
    Unavailable,
    UsageError,
    WaitTimeout,
)
from udo_protocol.proto import node_manager_pb2 as pb

SOCKET_NAME = "lanes.sock"
PATH = "/udo.v1.NodeManager/OpenLane"
# A request has a schema and some names; gRPC's default bound is as large.
REQUEST_BYTES = 4 << 20
# A client that does not finish its request, or does not read the reply, in this time loses its thread to others.
CLIENT_S = 10.0
_STATUS: tuple[tuple[type[UdoError], HTTPStatus], ...] = (
    (NotFound, HTTPStatus.NOT_FOUND),
    (Conflict, HTTPStatus.CONFLICT),
    (Unauthorized, HTTPStatus.UNAUTHORIZED),
    (UsageError, HTTPStatus.BAD_REQUEST),
    (WaitTimeout, HTTPStatus.GATEWAY_TIMEOUT),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (OperatorError, HTTPStatus.BAD_GATEWAY),
)
_log = structlog.get_logger()


class LaneDoor:
    """The HTTP server of a node manager, started and stopped like RpcServer."""

    def __init__(self, service: NodeService, grpc_socket: Path) -> None:
        self._service, self._path = service, grpc_socket.absolute().with_name(SOCKET_NAME)
        self._server: _Server | None = None
        self._over = threading.Event()

    def start(self) -> None:
        """Listen; the home's lock ensures that a socket file found here is stale."""
        self._path.unlink(missing_ok=True)
        former = os.umask(0o077)
        try:
            server = self._server = _Server(str(self._path), self._service)
        except OSError as e:
            raise Unavailable(f"cannot listen on {self._path}: {e}") from e
        finally:
            os.umask(former)
        supervised.keep("lane-door", server.serve_forever, self._over)

    def stop(self) -> threading.Event:
        """Refuse new calls. Those under way end by themselves; the event is set at once, since their threads hold nothing."""
        self._over.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._path.unlink(missing_ok=True)
        return self._over


class _Server(socketserver.UnixStreamServer):
    """Takes as many calls at once as the gRPC server; further ones wait."""

    request_queue_size = socket.SOMAXCONN

    def __init__(self, path: str, service: NodeService) -> None:
        self.service = service
        self._pool = futures.ThreadPoolExecutor(THREADS, thread_name_prefix="lane-door")
        super().__init__(path, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._pool.submit(self._handle, request, client_address)

    def _handle(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception as e:  # its client has gone, or sends nothing
            _log.info("a request for a lane was not answered", error=f"{type(e).__name__}: {e}")
        finally:
            self.shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_S
    server: _Server

    def do_POST(self) -> None:
        """Answer OpenLane by POST, the only method: the base class answers all others with 501."""
        try:
            body = self._body()  # read in any case: a client that still sends would not see why it is refused
            if self.path != PATH:
                raise NotFound(f"there is no {self.path[:200]!r} here; expected POST {PATH}")
            reply = self.server.service.open_lane(_request(body))
        except UdoError as e:
            status = next((s for cls, s in _STATUS if isinstance(e, cls)), HTTPStatus.INTERNAL_SERVER_ERROR)
            self._send(status, {"code": e.code, "message": shortened(str(e)), "retry": e.retry})
        except Exception as e:
            _log.exception("call failed")
            text = f"the node manager failed: {type(e).__name__}: {e}; see its log"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"code": UdoError.code, "message": shortened(text), "retry": False})
        else:
            self._send(HTTPStatus.OK, json_format.MessageToDict(reply, preserving_proto_field_name=True))

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > REQUEST_BYTES:
            raise UsageError(f"expected a Content-Length of at most {REQUEST_BYTES} bytes, got {length[:40]!r}")
        return self.rfile.read(int(length))

    def _send(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
        """Log nothing: the replies hold passwords, and the base class knows only clients with an address."""


def _request(body: bytes) -> pb.OpenLaneRequest:
    try:
        return json_format.Parse(body, pb.OpenLaneRequest())
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as e:
        raise UsageError(f"expected an OpenLaneRequest as JSON: {str(e)[:500]}") from None
