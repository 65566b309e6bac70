"""The registry gives each move of key groups between nodes a version of the map, one at a time; each step of a move may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.registry.conftest import Running, image
from udo_protocol import errors
from udo_protocol.registry.api import Registry
from udo_protocol.state.placement import Placement


@pytest.fixture
def client(start_registry: Callable[..., Running], tmp_path: Path) -> Registry:
    """A client of a registry with keyed deployment `op` over the nodes a and b: slots 0 and 2 on a, 1 on b."""
    client = start_registry().client()
    for version in ("1", "2"):
        image("op", version, key=["card"]).push(client, tmp_path)
    for node in ("a", "b"):
        client.heartbeat(node, listen=f"{node}:7070")
    client.deploy("op", "op", "1", slots=3, over_nodes=True, limits={"key_groups": 9})
    return client


def placed(client: Registry) -> Placement:
    return Placement.parse(client.deployment("op")["placement"], keyed=True)


def test_a_move_has_one_version_however_often_its_steps_are_asked_for(client: Registry) -> None:
    for _ in range(2):
        begun = client.move_groups("op", "begin", node="a", version=1, groups=[2, 1], to=1)
        assert (begun["version"], begun["moving"]) == (1, {"version": 2, "node": "a", "source": 0, "to": 1, "groups": [1, 2]})
    assert "moving" not in client.wanted("a", wait_s=0)["deployments"][0]["placement"], "nodes go by what is in force"
    generation = client.wanted("b", wait_s=0)["generation"]
    for _ in range(2):
        client.move_groups("op", "in force", node="a", version=2)
        assert placed(client).map(9).groups == (0, 1, 1, 1, 1, 1, 2, 2, 2)
    told = client.wanted("b", after=generation, wait_s=0)
    assert told["generation"] > generation
    assert Placement.parse(told["deployments"][0]["placement"], keyed=True).map(9).routes == {0: 2, 1: 2, 2: 0}
    for _ in range(2):
        assert client.move_groups("op", "done", node="a", version=2).get("moving") is None
    assert any(entry["action"] == "move" and "1-2 to b/0" in entry["detail"] for entry in client.audit("op"))


def test_one_move_at_a_time_by_the_map_that_is_in_force_and_no_update_meanwhile(client: Registry) -> None:
    def refused(error: type[errors.UdoError], why: str, **asked: object) -> None:
        given = {"node": "a", "version": 1, "groups": [0], "to": 1, **asked}
        with pytest.raises(error, match=why):
            client.move_groups("op", "begin", **given)  # type: ignore[arg-type]

    refused(errors.Conflict, "of version 1 by now, expected 3", version=3)
    refused(errors.UsageError, "expected key groups of one slot of node a", groups=[0, 8])
    refused(errors.UsageError, "expected key groups of one slot of node a", groups=[4])
    refused(errors.UsageError, "to another slot", to=0)
    refused(errors.UsageError, "has 9 key groups and 3 slots", groups=[9])
    refused(errors.UsageError, "has 9 key groups and 3 slots", to=3)
    client.move_groups("op", "begin", node="a", version=1, groups=[0], to=1)
    refused(errors.Conflict, "are being moved by node a", groups=[1])
    refused(errors.Conflict, "are being moved by node a", node="b", groups=[4], to=0)
    with pytest.raises(errors.Conflict, match="are being moved by node a"):
        client.update("op", "2")
    with pytest.raises(errors.Conflict, match="not in force yet"):
        client.move_groups("op", "done", node="a", version=2)
    with pytest.raises(errors.Conflict, match="has no move 3 under way"):
        client.move_groups("op", "in force", node="a", version=3)


def test_a_deployment_that_is_not_keyed_or_not_over_nodes_has_no_placement_to_change(client: Registry, tmp_path: Path) -> None:
    image("plain").push(client, tmp_path)
    client.deploy("plain", "plain", slots=2, over_nodes=True)
    client.deploy("alone", "op", "1")
    for name in ("plain", "alone"):
        with pytest.raises(errors.UsageError, match="expected one that keeps state, over nodes"):
            client.move_groups(name, "begin", node="a", version=1, groups=[0], to=1)
