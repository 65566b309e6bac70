"""The registry's API of applications: deployments grouped under a name, with an SLA; decisions about them; proposals of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from udo_protocol.registry.http import BRIEFLY_S, HttpClient, Json


class ApplicationsClient(HttpClient):
    """Part of udo_protocol.registry.api.Registry."""

    def applications(self) -> list[Json]:
        """All applications, each as `application` returns it."""
        return list(self._json("GET", "/api/v1/applications")["applications"])

    def application(self, name: str) -> Json:
        """{name, deployments, mode, response_ms, downtime_percent, interval_s, settings, created_at, now: null | {at, response_ms,
        downtime_percent, kept, chain: [{deployment, response_ms, missing, down_ms}]}}"""
        return self._json("GET", _path(name))

    def create_application(self, name: str, deployments: Sequence[str], **wish: object) -> Json:
        """Group deployments under a name, in the order of their chain. wish: mode, response_ms, downtime_percent, interval_s, settings.
        Repeating the same call is fine; a different one is a Conflict."""
        return self._json("POST", "/api/v1/applications", {"name": name, "deployments": list(deployments), **wish}, retry_s=BRIEFLY_S)

    def change_application(self, name: str, **wish: object) -> Json:
        """Change the given fields: deployments, mode, response_ms, downtime_percent, interval_s, settings (None removes one)."""
        return self._json("POST", _path(name), wish, retry_s=BRIEFLY_S)

    def remove_application(self, name: str) -> None:
        """Remove the application and its journal; its deployments stay."""
        self._json("DELETE", _path(name))

    def application_journal(self, name: str) -> list[Json]:
        """The application's journal: [{segment, lines}], oldest first (elasticity/scaling/application_journal.py)."""
        return list(self._json("GET", f"{_path(name)}/journal")["segments"])

    def propose(self, node: str, told: Mapping[str, object]) -> Json:
        """Send a node's figures and proposals (registry.domain.application_managers.ToldBody); the answer: {hosts: {node: {use, room}},
        grants: [{id, application, number, before, plan}]}. A grant is repeated until the node has reported its outcome."""
        return self._json("POST", f"/api/v1/nodes/{quote(node, safe='')}/proposals", dict(told))


def _path(name: str) -> str:
    return f"/api/v1/applications/{quote(name, safe='')}"
