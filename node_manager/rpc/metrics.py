"""Prometheus endpoint of a node: its slots' counters, read at each scrape."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from node_manager.manager import Manager
from node_manager.rpc.slot_status import look, slot_stats, totals
from node_manager.servers.embedded import ROLES
from udo_protocol import supervised
from udo_protocol.errors import ServerLost, UsageError
from udo_protocol.limits import FRAME_TIMES_MS
from udo_protocol.listening import on_this_host, reached_at, require_tls_beyond
from udo_protocol.queue.slot import TIMES
from udo_protocol.serving_tls import ServerTls
from udo_protocol.state import replication

_log = structlog.get_logger()
_COUNTERS = {
    "udo_events_in": ("events_in", "Events taken from the queue."),
    "udo_events_out": ("events_out", "Events answered."),
    "udo_frames": ("frames", "Frames answered."),
    "udo_errors": ("errors", "Frames answered with an error."),
    "udo_dead_letters": ("dead_letters", "Events that became dead letters."),
    "udo_retries": ("retries", "Batches passed to the operator's code again after a failure."),
    "udo_busy_seconds": ("busy_s", "Time inside the operator's code."),
    "udo_restarts": ("restarts", "Owners that died, and operators in processes of their own."),
}
_GAUGES = {
    "udo_queue_depth_frames": ("depth_frames", "Frames not yet answered."),
    "udo_retained_bytes": ("retained_bytes", "Bytes the slot's log holds."),
    "udo_resident_bytes": ("rss_bytes", "Resident memory of the owner."),
    "udo_cpu_percent": ("cpu_percent", "Share of one core the owner uses."),
}
# The monitor's figures over its window (node_manager/control/looks.py), in the units of Prometheus.
_SEEN = {
    "udo_backlog_events": ("backlog", 1, "Events that wait, estimated from the frames that do."),
    "udo_busy_ratio": ("busy", 1, "Share of the time in which the operator's code ran."),
    "udo_response_seconds": ("response_ms", 1000, "From a frame's arrival in the queue to its answer, by Little's law."),
    "udo_open_lanes": ("lanes", 1, "Producers at once, at most, over the window."),
    "udo_held_back_ratio": ("held", 1, "Share of the looks at which producers had as many frames under way as they may."),
}


class _Slots(Collector):
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all slots, in one pass over the queue server, and those of the node."""
        labels = ["deployment", "slot"]
        counters = {n: CounterMetricFamily(n, text, labels=labels) for n, (_, text) in _COUNTERS.items()}
        gauges = {n: GaugeMetricFamily(n, text, labels=labels) for n, (_, text) in _GAUGES.items()}
        rate = GaugeMetricFamily("udo_events_per_second", "Events taken per second, over the last few seconds.", labels=labels)
        latency = GaugeMetricFamily("udo_frame_milliseconds", "Time of a frame inside the operator's code.", labels=[*labels, "quantile"])
        version = InfoMetricFamily("udo_operator", "What answers.", labels=labels)
        load = GaugeMetricFamily("udo_load_seconds", "Time the owner's operator took to import and to open.", labels=[*labels, "part"])
        times = HistogramMetricFamily("udo_frame_seconds", "Time of a frame inside the operator's code.", labels=labels)
        seen = {n: GaugeMetricFamily(n, text, labels=labels) for n, (_, _, text) in _SEEN.items()}
        wait = GaugeMetricFamily(
            "udo_queue_wait_seconds", "Of udo_response_seconds what is not time inside the operator's code.", labels=labels
        )
        background = CounterMetricFamily("udo_background_errors", "Unexpected errors of background threads.", labels=["thread"])
        for kind, count in supervised.errors().items():
            background.add_metric([kind], count)
        yield background
        yield CounterMetricFamily("udo_monitor_cpu_seconds", "Processor time of the monitor of slots.", value=self._manager.monitor.cpu_s)
        with contextlib.suppress(ServerLost), contextlib.closing(self._manager.servers.glance("queue")) as queue:
            for slot in self._manager.deployments.slots():
                view = slot.view()
                looked = look(queue, None, view)
                stats, counted = slot_stats(self._manager, queue, view, looked), totals(view, looked)
                at = [view.deployment, str(view.number)]
                times.add_metric(at, _buckets(counted), counted["busy_s"])
                rates = self._manager.monitor.rates(view.deployment, view.number)
                if not isinstance(rates, str):
                    for name, (figure, unit, _) in _SEEN.items():
                        if (value := getattr(rates, figure)) is not None:
                            seen[name].add_metric(at, value / unit)
                    if rates.response_ms is not None:
                        wait.add_metric(at, (rates.response_ms - rates.service_ms) / 1000)
                for name, counter in counters.items():
                    counter.add_metric(at, getattr(stats, _COUNTERS[name][0]))
                for name, gauge in gauges.items():
                    gauge.add_metric(at, getattr(stats, _GAUGES[name][0]))
                rate.add_metric(at, view.events_per_s)
                for quantile, value in (("0.5", stats.p50_ms), ("0.99", stats.p99_ms)):
                    latency.add_metric([*at, quantile], value)
                for part, ms in (view.owner.assigned.load_ms or {} if view.owner else {}).items():
                    load.add_metric([*at, part], ms / 1000)
                if view.wanted:
                    image = view.wanted.image
                    info = {"operator": image.manifest.name, "version": image.manifest.version, "digest": image.digest, "state": view.state}
                    version.add_metric(at, info)
        yield from counters.values()
        yield from gauges.values()
        yield from seen.values()
        yield from (rate, latency, load, version, times, wait)
        yield self._replication(labels)
        yield from self._of_node()

    def _replication(self, labels: list[str]) -> Metric:
        """The replication lag of slots that have replicas."""
        lag = GaugeMetricFamily("udo_replication_lag_bytes", "Written by the slot's owner, and not on all of its replicas.", labels=labels)
        with contextlib.suppress(ServerLost), contextlib.closing(self._manager.servers.glance("state")) as state:
            for deployment in self._manager.deployments.all():
                for slot in deployment.own:
                    if (size := replication.lag_bytes(state, slot.keys)) is not None:
                        lag.add_metric([deployment.name, str(slot.number)], size)
        return lag

    def _of_node(self) -> Iterator[Metric]:
        """The metrics of the node itself: its name, its servers, and the disk of its home."""
        settings = self._manager.settings
        yield InfoMetricFamily("udo_node", "The node.", value={"node": settings.node, "driver": self._manager.driver.name})
        memory = GaugeMetricFamily("udo_server_used_bytes", "Memory of the node's servers; 0 while one is away.", labels=["role"])
        for role in ROLES:
            memory.add_metric([role], self._manager.servers.used_bytes(role))
        yield memory
        disk = shutil.disk_usage(settings.home)
        yield GaugeMetricFamily("udo_disk_bytes", "Size of the disk that holds the node's home.", value=disk.total)
        yield GaugeMetricFamily("udo_disk_free_bytes", "What is free on it.", value=disk.free)


def _buckets(counted: dict[str, float]) -> list[tuple[str, float]]:
    """(bound in seconds, frames up to it) of a slot's counters. If a whole image counts no times, all its frames are in the last one."""
    below, found = 0.0, []
    for bound, name in zip(FRAME_TIMES_MS, TIMES, strict=True):
        below += counted[name]
        found.append((f"{bound / 1000:g}", below))
    return [*found, ("+Inf", max(below, counted["frames"]))]


def serve(manager: Manager, host: str, port: int) -> str:
    """Start the endpoint, with mutual TLS on an address that other hosts reach; return its URL for other hosts. UsageError if it cannot."""
    registry = CollectorRegistry()
    registry.register(_Slots(manager))
    listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    tls = None if on_this_host(host) else manager.settings.certificates
    if tls is None:
        require_tls_beyond(listen, "the metrics page")
    serving = ServerTls(tls) if tls else None
    own, key, ca = (str(tls.certificate), str(tls.key), str(tls.ca)) if tls else (None, None, None)
    try:
        server, _ = start_http_server(port, host, registry, own, key, ca, client_auth_required=True)
    except OSError as e:
        raise UsageError(f"the metrics cannot be served on {listen}: {e.strerror or e}; see --metrics-host, --metrics-port") from e
    if serving:
        _follow(server, serving)
    address = reached_at(f"{listen.rpartition(':')[0]}:{server.server_port}")
    return f"{'https' if tls else 'http'}://{address}/metrics"


def _follow(server: WSGIServer, serving: ServerTls) -> None:
    """Let the server, which read its certificates once, serve each connection with the present ones."""
    listener = server.socket

    def accept() -> tuple[socket.socket, Any]:
        plain, client = socket.socket.accept(listener)
        # The thread that serves the connection does the handshake, so that no other waits for a client that sends nothing.
        return serving.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False), client

    def failed(_request: object, client_address: object) -> None:
        _log.warning("a connection to the metrics page failed", client=client_address, error=str(sys.exc_info()[1]))

    server.get_request = accept  # type: ignore[method-assign]
    server.handle_error = failed  # type: ignore[method-assign,assignment]
