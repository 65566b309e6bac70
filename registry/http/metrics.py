"""The registry's page for Prometheus: present deployments and nodes, requests since the start, and durations of updates' phases.

Phases come from the journal of updates in the database, each counted once, even if it ended between two scrapes.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flask import Response, g, request
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from registry.domain import deployments
from registry.store.models import Event, Update
from udo_protocol import supervised
from udo_protocol.lifecycle import UPDATE_OPEN

if TYPE_CHECKING:
    from flask import Flask
    from sqlalchemy.orm import Session

    from registry.http.web import Services

_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0)
# In some phases nodes pull gigabytes and load models, in others they change the owner.
_PHASE_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# Events per scrape: after a longer time without a scrape the rest follows with the next one.
_AT_A_TIME = 10_000


class RegistryMetrics(Collector):
    """The metrics of one application."""

    def __init__(self, parts: Services) -> None:
        self._parts = parts
        self.page = CollectorRegistry()
        self.requests = Histogram(
            "udo_registry_request_seconds", "Time until the answer begins.", ("endpoint", "status"), registry=self.page, buckets=_REQUEST_S
        )
        self._phases = Histogram(
            "udo_update_phase_seconds",
            "From the event before to this one, in updates and rollbacks.",
            ("action", "phase"),
            registry=self.page,
            buckets=_PHASE_S,
        )
        self._seen, self._last_ms = 0, dict[str, float]()  # the last event, and the time of each open update's last one
        self._lock = threading.Lock()
        self.page.register(self)

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not read the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The present figures of the database and the disk."""
        parts = self._parts
        nodes = GaugeMetricFamily("udo_registry_nodes", "Nodes that the registry knows.", labels=["live"])
        reports = GaugeMetricFamily("udo_deployment_nodes", "Nodes of a deployment by what they report.", labels=["deployment", "state"])
        with parts.store.read() as session:
            there = parts.presence(session)
            for live, count in (("true", len(there.live)), ("false", len(there.away))):
                nodes.add_metric([live], count)
            found = deployments.everything(session, there)
            open_updates = session.scalar(select(func.count()).select_from(Update).where(Update.state.in_(UPDATE_OPEN))) or 0
        for told in found:
            for state, count in Counter(n["state"] for n in told["nodes"]).items():
                reports.add_metric([told["name"], state], count)
        disk = shutil.disk_usage(parts.config.shared)
        yield from (nodes, reports)
        yield GaugeMetricFamily("udo_registry_deployments", "Deployments.", value=len(found))
        yield GaugeMetricFamily("udo_registry_open_updates", "Updates and canaries under way.", value=open_updates)
        yield GaugeMetricFamily("udo_registry_waiting_requests", "Long polls and streams that wait.", value=parts.hub.waiting)
        yield GaugeMetricFamily("udo_registry_disk_bytes", "Size of the disk that holds the registry's data.", value=disk.total)
        yield GaugeMetricFamily("udo_registry_disk_free_bytes", "What is free on it.", value=disk.free)
        background = CounterMetricFamily("udo_registry_background_errors", "Unexpected errors of background threads.", labels=["thread"])
        for kind, count in supervised.errors().items():
            background.add_metric([kind], count)
        yield background

    def text(self) -> bytes:
        """The page."""
        with self._lock:
            with self._parts.store.read() as session:
                self._observe(session)
            return generate_latest(self.page)

    def _observe(self, session: Session) -> None:
        """Count the new events."""
        new = select(Event.id, Event.update_id, Event.phase, Event.at_ms, Update.action).join(Update, Update.id == Event.update_id)
        for number, update, phase, at_ms, action in session.execute(new.where(Event.id > self._seen).order_by(Event.id).limit(_AT_A_TIME)):
            self._phases.labels(action, phase).observe(max(at_ms - self._last_ms.get(update, 0.0), 0.0) / 1000)
            self._seen, self._last_ms[update] = number, at_ms
        running = set(session.scalars(select(Update.id).where(Update.state.in_(UPDATE_OPEN))))
        self._last_ms = {update: at for update, at in self._last_ms.items() if update in running}


def measure(app: Flask, parts: Services) -> None:
    """Serve the page at /metrics, and time every request of the application."""
    metrics = RegistryMetrics(parts)

    def began() -> None:
        g.began = time.monotonic()

    def ended(response: Response) -> Response:
        taken_s = time.monotonic() - g.get("began", time.monotonic())
        metrics.requests.labels(request.endpoint or "none", str(response.status_code)).observe(taken_s)
        return response

    app.before_request_funcs.setdefault(None, []).insert(0, began)  # before the token is checked: refusals are timed, too
    app.after_request(ended)
    app.add_url_rule("/metrics", view_func=lambda: Response(metrics.text(), content_type=CONTENT_TYPE_LATEST), endpoint="metrics")
