"""Group maps in the database: how many are kept, and which ones are forgotten."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from registry.domain import group_maps
from registry.domain.audit import Caller
from registry.domain.group_maps import ClaimBody, ReleaseBody
from registry.store.hub import Hub
from registry.store.models import Deployment, Version
from registry.store.store import Store
from udo_protocol.errors import Conflict

BY = Caller("ada", "here", 100.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A database with the deployment `d`."""
    made = Store(f"sqlite:///{tmp_path / 'registry.db'}", Hub(1))
    version = Version(name="t", version="1", digest="x", manifest={}, layers=[], created_at=0.0, pushed_by="ada")
    empty: dict[str, object] = {"env": {}, "secrets": {}, "files": {}, "limits": {}, "previous": []}
    with made.write() as session:
        session.add(Deployment(name="d", version=version, slots=1, policy="fail", generation=1, made=1, created_at=0.0, **empty))
    return made


def claim(store: Store, name: str, at: float = 0.0) -> bool:
    with store.write() as session:
        return bool(group_maps.claim(session, "d", ClaimBody(session=name, node="a", incarnation="i"), at)["granted"])


def release(store: Store, name: str) -> None:
    with store.write() as session:
        group_maps.release(session, BY, "d", ReleaseBody(session=name), [])


@pytest.fixture
def over_nodes(store: Store) -> Store:
    """The same database; the deployment has slots on nodes a and b."""
    with store.write() as session:
        session.get_one(Deployment, "d").placement = {"version": 1, "nodes": ["a", "b", "a"]}
    return store


def part(store: Store, node: str, incarnation: str, **wish: Any) -> dict[str, Any]:
    with store.write() as session:
        return group_maps.claim(session, "d", ClaimBody(**{"session": "q", "node": node, "incarnation": incarnation, **wish}), 0.0)


def test_over_nodes_each_serves_its_part_with_the_disk_that_it_had_and_a_release_is_of_all_parts(over_nodes: Store) -> None:
    """The nodes may ask in any order; a node without slots serves nothing."""
    for node in "bab":
        assert part(over_nodes, node, f"disk of {node}")["granted"]
    with over_nodes.read() as session:
        (known,) = group_maps.everything(session, "d")
    assert (known["node"], known["nodes"], known["version"]) == ("b", ["a", "b"], 0)
    assert not part(over_nodes, "c", "disk of c")["granted"]
    for node in "ab":
        lost = part(over_nodes, node, "another")
        assert (lost["granted"], lost["part"], lost["node"]) == (False, True, node)

    dropped = ReleaseBody(session="q", node="a", incarnation="disk of a", version=0)
    for live, wish, error in (
        (["b"], ReleaseBody(session="q"), "node b, the home of session q of 'd', is live"),
        ([], ReleaseBody(session="q", node="a", incarnation="another", version=0), ""),
    ):
        with over_nodes.write() as session, pytest.raises(Conflict, match=error) if error else contextlib.nullcontext():
            assert group_maps.release(session, BY, "d", wish, live)["version"] == 0
    with over_nodes.write() as session:
        assert group_maps.release(session, BY, "d", dropped, ["a", "b"])["version"] == 1
    assert part(over_nodes, "a", "disk of a")["version"] == 1
    with over_nodes.write() as session:
        assert group_maps.release(session, BY, "d", dropped, ["a", "b"])["version"] == 1, "what it dropped was of version 0"


def test_with_a_store_over_nodes_another_disk_is_served_and_without_it_not_any_more(over_nodes: Store) -> None:
    for node in "ab":
        assert part(over_nodes, node, "first", stored=True)["granted"]
    assert part(over_nodes, "b", "first")["granted"], "the store may be left out while no disk was lost"
    assert part(over_nodes, "b", "second", stored=True)["granted"]
    for node, disk in ("a", "first"), ("b", "first"), ("b", "second"):
        assert not part(over_nodes, node, disk)["granted"], "b has what came from the store, and that in part"
        assert part(over_nodes, node, disk, stored=True)["granted"]


def test_a_session_over_nodes_that_began_without_a_store_does_not_begin_empty_on_another_disk(over_nodes: Store) -> None:
    assert part(over_nodes, "a", "first")["granted"]
    assert not part(over_nodes, "a", "second", stored=True, start_empty=True)["granted"]
    assert part(over_nodes, "a", "first", stored=True, start_empty=True)["granted"]
    assert part(over_nodes, "a", "second", stored=True)["granted"], "it asks its store, which lacks the state or not"


def test_homes_are_bounded_and_a_dropped_session_makes_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_maps, "MAPS_KEPT", 2)
    assert claim(store, "one") and claim(store, "two")
    with pytest.raises(Conflict, match="keeps the state of 2 sessions: remove those that no query continues"):
        claim(store, "three")
    assert claim(store, "two")

    release(store, "one")

    assert claim(store, "three")


def test_released_maps_are_told_to_the_nodes_and_forgotten_after_a_while(store: Store) -> None:
    assert claim(store, "one") and claim(store, "two")
    release(store, "one")
    for before, told in ((BY.now, ["one"]), (BY.now + 1, [])):
        with store.write() as session:
            group_maps.forget(session, before)
            assert [m.session for m in group_maps.moved(session)] == told
    assert claim(store, "two")
