"""The node manager's port for other hosts, by mutual TLS: for the calls in forwarding.py. All others need the node's own socket."""

from __future__ import annotations

import threading
from concurrent import futures

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from node_manager.manager import Manager
from node_manager.rpc.forwarding import OnlyPeers
from node_manager.rpc.service import CLOSE_GRACE_S, OPTIONS, SERVICE, THREADS, NodeService
from udo_protocol.certificates import Tls
from udo_protocol.errors import UsageError
from udo_protocol.proto import node_manager_pb2_grpc as rpc

_log = structlog.get_logger()


class RemoteServer:
    """The gRPC server on TCP. It checks the certificates' files for changes at every connection."""

    def __init__(self, manager: Manager, listen: str, tls: Tls) -> None:
        self._listen, self._tls = listen, tls
        self._pool = futures.ThreadPoolExecutor(THREADS, thread_name_prefix="rpc-remote")
        self._server = grpc.server(self._pool, options=OPTIONS, interceptors=[OnlyPeers(manager)])
        self._health = health.HealthServicer()
        rpc.add_NodeManagerServicer_to_server(NodeService(manager, manager.relay.address), self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._stamp: object = None

    def start(self) -> None:
        """Listen; UsageError if that is not possible there."""
        first = self._new_certificates()
        assert first is not None
        fetch = self._new_certificates
        credentials = grpc.dynamic_ssl_server_credentials(first, fetch, require_client_authentication=True)  # type: ignore[arg-type]
        try:
            self._server.add_secure_port(self._listen, credentials)
        except RuntimeError as e:
            raise UsageError(f"cannot listen on {self._listen}: {e}; expected an address of this host and a free port (--listen)") from e
        self._server.start()
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> threading.Event:
        """As RpcServer.stop."""
        self._health.enter_graceful_shutdown()
        closed = self._server.stop(CLOSE_GRACE_S)
        self._pool.shutdown(wait=False)
        return closed

    def _new_certificates(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificates; None if they have not changed, or cannot be used: then the former ones stay in effect."""
        first = self._stamp is None
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return None
            pem = self._tls.pem()
        except UsageError as e:
            if first:
                raise
            _log.error("new certificates cannot be used; the former ones stay in effect", error=str(e))
            return None
        self._stamp = stamp
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)
