"""Prometheus endpoint of a node: its slots' counters, read at each scrape."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from node_manager.manager import Manager
from node_manager.rpc.service import slot_stats
from udo_protocol import supervised
from udo_protocol.errors import ServerLost, UsageError

_COUNTERS = {
    "udo_events_in": ("events_in", "Events taken from the queue."),
    "udo_events_out": ("events_out", "Events answered."),
    "udo_frames": ("frames", "Frames answered."),
    "udo_errors": ("errors", "Frames answered with an error."),
    "udo_dead_letters": ("dead_letters", "Events that became dead letters."),
    "udo_retries": ("retries", "Batches passed to the operator's code again after a failure."),
    "udo_busy_seconds": ("busy_s", "Time inside the operator's code."),
    "udo_restarts": ("restarts", "Owners that died."),
}
_GAUGES = {
    "udo_queue_depth_frames": ("depth_frames", "Frames not yet answered."),
    "udo_retained_bytes": ("retained_bytes", "Bytes the slot's log holds."),
    "udo_resident_bytes": ("rss_bytes", "Resident memory of the owner."),
    "udo_cpu_percent": ("cpu_percent", "Share of one core the owner uses."),
}


class _Slots(Collector):
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        """All slots, in one pass over the queue server."""
        labels = ["deployment", "slot"]
        counters = {n: CounterMetricFamily(n, text, labels=labels) for n, (_, text) in _COUNTERS.items()}
        gauges = {n: GaugeMetricFamily(n, text, labels=labels) for n, (_, text) in _GAUGES.items()}
        rate = GaugeMetricFamily("udo_events_per_second", "Events taken per second, over the last few seconds.", labels=labels)
        latency = GaugeMetricFamily("udo_frame_milliseconds", "Time of a frame inside the operator's code.", labels=[*labels, "quantile"])
        version = InfoMetricFamily("udo_operator", "What answers.", labels=labels)
        load = GaugeMetricFamily("udo_load_seconds", "Time the owner's operator took to import and to open.", labels=[*labels, "part"])
        background = CounterMetricFamily("udo_background_errors", "Unexpected errors of background threads.", labels=["thread"])
        for kind, count in supervised.errors().items():
            background.add_metric([kind], count)
        yield background
        with contextlib.suppress(ServerLost), contextlib.closing(self._manager.servers.glance("queue")) as queue:
            for slot in self._manager.deployments.slots():
                view = slot.view()
                stats = slot_stats(self._manager, queue, view)
                at = [view.deployment, str(view.number)]
                for name, counter in counters.items():
                    counter.add_metric(at, getattr(stats, _COUNTERS[name][0]))
                for name, gauge in gauges.items():
                    gauge.add_metric(at, getattr(stats, _GAUGES[name][0]))
                rate.add_metric(at, view.events_per_s)
                for quantile, value in (("0.5", stats.p50_ms), ("0.99", stats.p99_ms)):
                    latency.add_metric([*at, quantile], value)
                for part, ms in (view.owner.record.get("load_ms", {}) if view.owner else {}).items():
                    load.add_metric([*at, part], ms / 1000)
                if view.wanted:
                    image = view.wanted.image
                    info = {"operator": image.manifest.name, "version": image.manifest.version, "digest": image.digest, "state": view.state}
                    version.add_metric(at, info)
        yield from counters.values()
        yield from gauges.values()
        yield from (rate, latency, load, version)


def serve(manager: Manager, host: str, port: int) -> str:
    """Start the endpoint; answers its address as others reach it, where that is more than this host."""
    registry = CollectorRegistry()
    registry.register(_Slots(manager))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as e:
        raise UsageError(f"the metrics cannot be served on {host}:{port}: {e.strerror or e}; see --metrics-host, --metrics-port") from e
    everywhere = ipaddress.ip_address(str(server.server_address[0])).is_unspecified
    shown = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{server.server_port}/metrics"
