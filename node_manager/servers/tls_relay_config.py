"""Envoy's configuration: listen by TLS, ask for a certificate, pass the bytes to a Unix socket. JSON values only, no I/O."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from udo_protocol.certificates import Pem

_TYPES = "type.googleapis.com/envoy.extensions"
# Connections at a time: as many as the server behind it takes.
_CONNECTIONS = 10_000
# A client has to complete the handshake within this time.
_HANDSHAKE_S = 10
# A host that has vanished without a word is noticed after about a minute, and its lanes end: seconds until the first probe and between
# probes, and how many probes.
_IDLE_S, _PROBE_EVERY_S, _PROBES = 30, 10, 3
# (level, name, value), by the kernel's numbers: SOL_SOCKET, SO_KEEPALIVE; IPPROTO_TCP, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT.
_KEEPALIVE = ((1, 9, 1), (6, 4, _IDLE_S), (6, 5, _PROBE_EVERY_S), (6, 6, _PROBES))
OWN, AUTHORITIES = "own", "authorities"


def secrets(pem: Pem) -> dict[str, Any]:
    """The contents of the two files: this side's certificate, and the authorities that vouch for others."""
    certificate = {"certificate_chain": _inline(pem.certificate), "private_key": _inline(pem.key)}
    content = {OWN: {"tls_certificate": certificate}, AUTHORITIES: {"validation_context": {"trusted_ca": _inline(pem.ca)}}}
    kind = f"{_TYPES}.transport_sockets.tls.v3.Secret"
    return {name: {"resources": [{"@type": kind, "name": name, **secret}]} for name, secret in content.items()}


def whole(address: str, port: int, target: Path, directory: Path) -> dict[str, Any]:
    """The configuration; `directory` has the files of `secrets`, which Envoy reads again when they are replaced."""

    def watched(name: str) -> dict[str, Any]:
        source = {"path_config_source": {"path": str(directory / f"{name}.json")}, "resource_api_version": "V3"}
        return {"name": name, "sds_config": source}

    tls = {
        "@type": f"{_TYPES}.transport_sockets.tls.v3.DownstreamTlsContext",
        "require_client_certificate": True,
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "tls_certificate_sds_secret_configs": [watched(OWN)],
            "validation_context_sds_secret_config": watched(AUTHORITIES),
        },
    }
    # A lane may be silent for as long as it likes: its lease ends it.
    proxy = {"@type": f"{_TYPES}.filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": "queue", "cluster": "queue", "idle_timeout": "0s"}
    listener = {
        "name": "queue",
        "address": {"socket_address": {"address": address, "port_value": port}},
        "enable_reuse_port": False,  # a port that is taken is an error
        "socket_options": [{"level": level, "name": name, "int_value": value} for level, name, value in _KEEPALIVE],
        "filter_chains": [
            {
                "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
                "transport_socket_connect_timeout": f"{_HANDSHAKE_S}s",
                "filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config": proxy}],
            }
        ],
    }
    endpoint = {"endpoint": {"address": {"pipe": {"path": str(target)}}}}
    cluster = {
        "name": "queue",
        "type": "STATIC",
        "connect_timeout": f"{_HANDSHAKE_S}s",
        "circuit_breakers": {"thresholds": [{"max_connections": _CONNECTIONS, "max_pending_requests": _CONNECTIONS}]},
        "load_assignment": {"cluster_name": "queue", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    bound = {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {
            "@type": f"{_TYPES}.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
            "max_active_downstream_connections": _CONNECTIONS,
        },
    }
    return {
        "node": {"id": "udo", "cluster": "udo"},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
        "overload_manager": {"resource_monitors": [bound]},
    }


def _inline(content: bytes) -> dict[str, str]:
    return {"inline_string": content.decode()}
