"""The registry gives a silent node's slots to nodes that hold them, as the slots' owners have reported, and to no others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.registry.conftest import Running, image
from udo_protocol import errors
from udo_protocol.registry.api import Registry

pytestmark = pytest.mark.long

NODES = ("a", "b", "c")


class Beating:
    """A registry that gets heartbeats before each question, and a deployment with two slots, on a and b."""

    def __init__(self, client: Registry) -> None:
        self.client, self.disks = client, {node: f"disk-{node}" for node in NODES}
        self.beat()
        client.deploy("op", "op", "1", slots=2, over_nodes=True, replicas=1)

    def beat(self) -> None:
        for node, disk in self.disks.items():
            with contextlib.suppress(errors.Conflict):  # its former disk still counts as live
                self.client.heartbeat(node, listen=f"{node}:7070", incarnation=disk)

    def placement(self) -> dict[str, Any]:
        self.beat()
        return dict(self.client.deployment("op")["placement"])

    def until(self, done: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        wait_until(lambda: done(self.placement()), 30, what)
        return self.placement()

    def in_step(self, place: int, replica: str, version: int, *, node: str = "") -> None:
        owner = node or self.placement()["nodes"][place]
        self.client.in_step("op", node=owner, replica=replica, place=place, version=version)

    def joining(self) -> list[dict[str, int]]:
        """The joining replicas of each slot, once both slots have one."""
        return list(self.until(lambda p: all(p["replication"]["joining"]), "replicas to be named")["replication"]["joining"])


@pytest.fixture
def it(start_registry: Callable[..., Running], tmp_path: Path) -> Beating:
    client = start_registry().client()
    image("op", "1", key=["card"]).push(client, tmp_path)
    return Beating(client)


@pytest.mark.short
def test_a_node_that_is_not_heard_of_is_replaced_once_its_slot_has_a_replica_that_counts(it: Beating) -> None:
    ((replica, version),) = it.joining()[0].items()
    it.in_step(0, replica, version - 1)
    it.in_step(0, replica, version, node="c" if replica != "c" else "b")
    assert it.placement()["replication"]["counted"][0] == [], "said by an older version, or by a node that does not have the slot"
    it.in_step(0, replica, version)
    it.in_step(0, replica, version)
    assert it.placement()["replication"]["counted"][0] == [replica]
    for node in ("a", "b"):
        assert it.client.claim("op", "q", node, it.disks[node])["granted"]
    del it.disks["a"]
    after = it.until(lambda p: "a" not in p["nodes"], "a to be replaced")
    assert after["nodes"][0] == replica and after["replication"]["terms"][0] == after["version"] or after["replication"]["terms"][0] > 1
    assert it.client.claim("op", "q", replica, it.disks[replica])["granted"], "it has the session's part of a"
    assert [m["nodes"] for m in it.client.group_maps("op")] == [sorted({"b", replica})]
    assert any("slot 0 goes to node" in entry["detail"] for entry in it.client.audit("op"))
    it.disks["a"] = "disk-a"
    assert "a" not in it.placement()["nodes"]


def test_a_node_with_another_disk_is_lost_and_without_a_replica_the_loss_is_told(it: Beating) -> None:
    it.joining()
    it.disks["a"] = "another"
    told = it.until(lambda p: "a" in p["replication"]["lost"], "the loss to be told")
    assert told["nodes"] == ["a", "b"], "nobody begins anew"
    it.disks["a"] = "disk-a"
    it.until(lambda p: not p["replication"]["lost"], "it to be back")


def test_replicas_are_for_keyed_deployments_over_nodes_whose_nodes_say_their_disks(it: Beating, tmp_path: Path) -> None:
    image("plain").push(it.client, tmp_path)
    with pytest.raises(errors.UsageError, match="that keeps state"):
        it.client.deploy("plain", "plain", slots=2, over_nodes=True, replicas=1)
    with pytest.raises(errors.UsageError, match="that is spread over nodes"):
        it.client.deploy("other", "op", "1", replicas=1)
    with pytest.raises(errors.Conflict, match="with other settings"):
        it.client.deploy("op", "op", "1", slots=2, over_nodes=True, replicas=2)
    assert it.client.deploy("op", "op", "1", slots=2, over_nodes=True, replicas=1)["name"] == "op"
    it.disks["a"] = ""
    it.beat()
    with pytest.raises(errors.Conflict, match="does not say which disk"):
        it.client.deploy("other", "op", "1", slots=3, over_nodes=True, replicas=1)
    with pytest.raises(errors.Conflict, match="has replicas"):
        it.client.move_groups("op", "begin", node="a", version=1, groups=[0], to=1)
