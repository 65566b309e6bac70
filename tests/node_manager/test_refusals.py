"""A refused version holds up nobody, is reported with its reason, and is not tried again until something changes."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.verification.hostile_layers import HOSTILE, OPERATOR, packed
from node_manager.images.images import Images
from node_manager.manager import Manager
from node_manager.reconcile import reconcile
from node_manager.reconcile.reconcile import Reconciler
from node_manager.settings import NodeSettings
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Lane, add
from tests.registry.conftest import Image, image, sha
from tests.support.cluster import SCHEMAS, Cluster
from tests.support.fake_driver import FakeDriver
from udo_cli.platform import remote
from udo_protocol.errors import Refused, Unavailable
from udo_protocol.formats.manifest import Manifest
from udo_protocol.registry.wanted import NodeReport

pytestmark = pytest.mark.long

NEGATIVE = HOSTILE["negative_size"][1]()


def digest_of(operator: str) -> str:
    """Return the digest of the operator's only version."""
    return "sha256:" + hashlib.sha256(operator.encode()).hexdigest()


class OperatorSource:
    """A registry of operators with one layer each, and the names fetched from it; a fetch waits for the operator's `open`."""

    def __init__(self, **layers: bytes) -> None:
        self.layers, self.fetched = layers, list[str]()
        self.open = {name: threading.Event() for name in layers}
        for event in self.open.values():
            event.set()

    def version(self, name: str, ref: str) -> Mapping[str, Any]:
        if name not in self.layers:
            raise Unavailable(f"nobody knows {name}")
        manifest = Manifest(name=name, version="1", entry="op:run", input={"a": "int64"}, output={"b": "int64"})
        found = [{"digest": sha(self.layers[name]), "size": len(self.layers[name]), "kind": "code"}]
        return {"name": name, "version": "1", "digest": digest_of(name), "manifest": manifest.model_dump(), "layers": found}

    def fetch_blob(self, name: str, digest: str, path: Path) -> None:
        self.fetched.append(name)
        assert self.open[name].wait(bound(30))
        path.write_bytes(self.layers[name])


def test_requests_for_one_image_share_one_pull_and_nobody_else_waits(tmp_path: Path) -> None:
    source = OperatorSource(slow=packed([OPERATOR]), quick=packed([OPERATOR]))
    images = Images(tmp_path, source)
    source.open["slow"].clear()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(images.get, "slow", "1") for _ in range(3)]
        wait_until(lambda: source.fetched == ["slow"], 10, "the pull to begin")

        assert threads.submit(images.get, "quick", "1").result(bound(10)).has_code

        assert not any(w.done() for w in waiting)
        source.open["slow"].set()
        assert {w.result(bound(20)).directory for w in waiting} == {tmp_path / digest_of("slow").replace(":", "-")}
    assert source.fetched == ["slow", "quick"]


def test_of_a_refused_image_nothing_is_left_and_only_who_asks_explicitly_has_it_pulled_again(tmp_path: Path) -> None:
    source = OperatorSource(bad=NEGATIVE)
    images = Images(tmp_path, source)
    for again, pulls in ((True, 1), (False, 1), (True, 2)):
        with pytest.raises(Refused, match="refused: layer code: .* has the size '-1536'"):
            images.get("bad", "1", again=again)
        assert len(source.fetched) == pulls
    assert list(tmp_path.iterdir()) == []


def test_drafts_of_a_killed_node_manager_are_removed_at_start(tmp_path: Path) -> None:
    (tmp_path / ".pull-x" / "image" / "code").mkdir(parents=True)
    Images(tmp_path).clean()
    assert list(tmp_path.iterdir()) == []


class WishingRegistry(OperatorSource):
    """A registry with wishes for one node; it keeps the node's reports."""

    def __init__(self, operators: list[str], **layers: bytes) -> None:
        super().__init__(**layers)
        self.reports: list[tuple[str, str, str]] = []
        self.wishes = [
            {"name": o, "operator": o, "version": "1", "digest": digest_of(o), "config": {}, "update": None, "generation": 1}
            for o in operators
        ]

    def wanted(self, node: str, after: int, wait_s: float, incarnation: str) -> Mapping[str, Any]:
        time.sleep(0.01)
        return {"generation": after + 1, "deployments": [dict(w) for w in self.wishes], "moved": []}

    def report(self, node: str, report: NodeReport, incarnation: str) -> None:
        self.reports.append((report.deployment, report.state, report.detail))

    def heartbeat(self, node: str, **properties: Any) -> dict[str, Any]:
        """Ignore it."""
        return {}

    def leave(self, node: str, incarnation: str) -> None:
        """Ignore it."""

    def epoch(self, name: str, session: str, epoch: int) -> Mapping[str, Any]:
        raise NotImplementedError

    def of(self, deployment: str) -> list[tuple[str, str]]:
        """Return (state, detail) of all reports about the deployment."""
        return [(state, detail) for name, state, detail in self.reports if name == deployment]


@pytest.fixture
def reconciling(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start reconcilers for a node without processes; failures are tried again at once."""
    monkeypatch.setattr(reconcile, "_AGAIN_S", 0.05)
    started = []

    def begin(registry: WishingRegistry) -> None:
        settings = NodeSettings(home, "n")
        settings.prepare()
        started.append(Reconciler(Manager(settings, registry, FakeDriver()), registry))
        started[-1].start()

    yield begin
    for one in started:
        one.stop()


def test_a_refused_version_is_tried_again_only_when_its_wish_has_changed(reconciling: Any) -> None:
    registry = WishingRegistry(["bad", "away"], bad=NEGATIVE)
    reconciling(registry)
    wait_until(lambda: len(registry.of("away")) >= 5, 30, "the other deployment to be tried again and again")
    wait_until(lambda: bool(registry.of("bad")), 30, "the refusal to be reported")
    assert registry.fetched == ["bad"]
    assert [(state, "has the size '-1536'" in detail) for state, detail in registry.of("bad")] == [("refused", True)]

    registry.wishes[0]["generation"] = 2

    wait_until(lambda: len(registry.of("bad")) == 2, 30, "it to be tried again")
    assert registry.fetched == ["bad", "bad"]


def test_an_error_that_nobody_foresaw_is_reported_for_its_deployment_alone(reconciling: Any) -> None:
    registry = WishingRegistry(["odd", "bad"], odd=packed([OPERATOR]), bad=NEGATIVE)
    registry.wishes[0]["config"] = {"limits": 7}
    reconciling(registry)
    wait_until(lambda: len(registry.of("odd")) >= 1 and len(registry.of("bad")) == 1, 30, "both to be reported")
    state, detail = registry.of("odd")[0]
    assert state == "failed" and "Error in node manager n: " in detail and "its log says where" in detail


def test_a_step_of_an_update_that_this_release_does_not_know_is_not_taken_for_another(reconciling: Any) -> None:
    registry = WishingRegistry(["bad"], bad=NEGATIVE)
    polls = []
    known = registry.wanted
    registry.wanted = lambda *asked: polls.append(asked) or known(*asked)  # type: ignore[method-assign,func-returns-value]
    registry.wishes[0]["update"] = {"id": "u", "version": "2", "digest": digest_of("bad"), "phase": "pause"}
    reconciling(registry)
    wait_until(lambda: len(polls) >= 3, 30, "the state to be refused, and asked for again")
    assert (registry.reports, registry.fetched) == ([], [])

    registry.wishes[0]["update"] = None

    wait_until(lambda: len(registry.of("bad")) == 1, 30, "the state to be carried out")


def test_more_failing_deployments_than_threads_hold_up_nobody(reconciling: Any) -> None:
    registry = WishingRegistry([*(f"away{n}" for n in range(20)), "bad"], bad=NEGATIVE)
    reconciling(registry)
    wait_until(lambda: len(registry.of("bad")) == 1, 30, "the last deployment's turn")


def hostile_version(name: str, version: str, blob: bytes) -> Image:
    """Return an image whose code layer is this blob."""
    made = image(name, version, "", **SCHEMAS)
    manifest = json.loads(made.manifest)
    manifest["layers"][0] |= {"digest": sha(blob), "size": len(blob)}
    return Image(name, version, json.dumps(manifest).encode(), (made.blobs[0], blob))


@pytest.mark.short
def test_a_hostile_version_blocks_no_deploy_or_update_and_says_why_it_is_refused(cluster: Cluster) -> None:
    client = cluster.client
    cluster.deploy(add(1))
    cluster.push("2", add(100))
    hostile_version("evil", "1", NEGATIVE).push(client, cluster.blobs)
    client.deploy("e", "evil", "1")

    # `udo deploy` and `udo inspect` say why; an innocent update and another deployment go on.
    with pytest.raises(Refused, match=r"node n1: refused: layer code: .* has the size '-1536'"):
        remote.await_answering(client, "e", 30, lambda _: None)
    assert cluster.state("e") == ("refused", "1")
    # A caller from Spark or a client gets the same message.
    with pytest.raises(Refused, match=r"deployment 'e' is not served on node n1: .* has the size '-1536'"):
        Lane(cluster.node.api, "e", "l")
    assert list(client.update("d", "2"))[-1]["phase"] == "done"
    image("other", "1", add(7), **SCHEMAS).push(client, cluster.blobs)
    client.deploy("o", "other", "1")
    remote.await_answering(client, "o", 30, lambda _: None)

    # Deployed again, it is tried again; an update to such a version is refused, and the old version serves.
    first = client.deployment("e")["nodes"][0]["at"]
    client.deploy("e", "evil", "1")
    wait_until(lambda: any(n["at"] > first for n in client.deployment("e")["nodes"]), 30, "another try")
    hostile_version("t", "3", HOSTILE["link_circle"][1]()).push(client, cluster.blobs)
    last = list(client.update("d", "3"))[-1]
    assert (last["phase"], last["error_code"]) == ("failed", "refused") and "40 links" in last["detail"]
    assert cluster.lane().ask(1) == 101
    assert not list((cluster.node.home / "images").glob(".pull-*"))


def test_a_refused_deployment_can_be_updated_to_a_version_that_is_sound(cluster: Cluster) -> None:
    hostile_version("t", "1", NEGATIVE).push(cluster.client, cluster.blobs)
    cluster.client.deploy("d", "t", "1")
    wait_until(lambda: cluster.state() == ("refused", "1"), 30, "the refusal")
    cluster.push("2", add(1))

    assert list(cluster.client.update("d", "2"))[-1]["phase"] == "done"

    assert cluster.lane().ask(1) == 2
