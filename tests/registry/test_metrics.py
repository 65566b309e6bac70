"""The registry's page for Prometheus: objects, durations of requests and of the phases of updates, each counted once."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.registry.conftest import FakeNode, Running
from udo_protocol.registry.api import Registry
from udo_protocol.registry.wanted import NodeReport


def page(registry: Running) -> dict[tuple[str, tuple[str, ...]], float]:
    """The metrics: (name, label values in the order of the labels' names) -> value."""
    reply = httpx.get(f"{registry.url}/metrics")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(reply.text)
    return {(s.name, tuple(v for _, v in sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_phases_of_updates_are_counted_once_each_and_add_up_to_what_the_update_took(
    registry: Running, deployed: tuple[Registry, str]
) -> None:
    client, name = deployed
    before = page(registry)
    with FakeNode(client, "a") as a:
        client.report("a", NodeReport(deployment=name, version="1", digest=client.deployment(name)["digest"], state="answering"))
        during = page(registry)
        events = list(client.update(name, "2"))
        assert a.polls
    for _ in range(2):  # a second scrape adds nothing
        seen = page(registry)
        for phase in ("preparing", "ready", "promoting", "answering", "done"):
            key = ("udo_update_phase_seconds_count", ("update", phase))
            assert seen[key] == before.get(key, 0) + 1
        sums = [{k: v for k, v in p.items() if k[0] == "udo_update_phase_seconds_sum"} for p in (before, seen)]
        assert abs(sum(sums[1].values()) - sum(sums[0].values()) - events[-1]["at_ms"] / 1000) < 1e-6
    assert during["udo_registry_nodes", ("true",)] == before.get(("udo_registry_nodes", ("true",)), 0) + 1
    assert during["udo_deployment_nodes", (name, "answering")] == 1
    assert seen["udo_registry_open_updates", ()] == 0 and seen["udo_registry_deployments", ()] >= 1
    assert 0 < seen["udo_registry_disk_free_bytes", ()] < seen["udo_registry_disk_bytes", ()]


def test_requests_are_timed_refused_ones_too(registry: Running) -> None:
    counts = [("udo_registry_request_seconds_count", ("api.collect_garbage", status)) for status in ("200", "401")]
    before = page(registry)
    registry.client().collect_garbage()
    assert httpx.post(f"{registry.url}/api/v1/gc").status_code == 401
    seen = page(registry)
    assert [seen[key] - before.get(key, 0) for key in counts] == [1, 1]
