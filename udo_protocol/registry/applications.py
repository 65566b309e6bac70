"""The registry's API of applications: deployments named together, with an SLA; what was decided about them; proposals of nodes."""

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
        """Name deployments together, in the order of their chain. wish: mode, response_ms, downtime_percent, interval_s, settings. The
        same again is fine, else Conflict."""
        return self._json("POST", "/api/v1/applications", {"name": name, "deployments": list(deployments), **wish}, retry_s=BRIEFLY_S)

    def change_application(self, name: str, **wish: object) -> Json:
        """Change what is given: deployments, mode, response_ms, downtime_percent, interval_s, settings (those of None are removed)."""
        return self._json("POST", _path(name), wish, retry_s=BRIEFLY_S)

    def remove_application(self, name: str) -> None:
        """Its deployments stay; its journal goes."""
        self._json("DELETE", _path(name))

    def application_journal(self, name: str) -> list[Json]:
        """[{segment, lines}], oldest first (elasticity/scaling/application_journal.py)."""
        return list(self._json("GET", f"{_path(name)}/journal")["segments"])

    def propose(self, node: str, told: Mapping[str, object]) -> Json:
        """A node tells its figures and proposals (registry.domain.application_managers.ToldBody): {hosts: {node: {use, room}}, grants:
        [{id, application, number, before, plan}]}. A grant comes again until the node has said what became of it."""
        return self._json("POST", f"/api/v1/nodes/{quote(node, safe='')}/proposals", dict(told))


def _path(name: str) -> str:
    return f"/api/v1/applications/{quote(name, safe='')}"
