"""Group maps in the database: how many are kept, and which are forgotten."""

from __future__ import annotations

from pathlib import Path

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
        session.add(Deployment(name="d", version=version, slots=1, policy="fail", generation=1, created_at=0.0, **empty))
    return made


def claim(store: Store, name: str, at: float = 0.0) -> bool:
    with store.write() as session:
        return bool(group_maps.claim(session, "d", ClaimBody(session=name, node="a", incarnation="i"), at)["granted"])


def release(store: Store, name: str) -> None:
    with store.write() as session:
        group_maps.release(session, BY, "d", ReleaseBody(session=name), [])


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
            assert [m["session"] for m in group_maps.moved(session)] == told
    assert claim(store, "two")


def test_a_map_says_over_how_many_slots_the_groups_are_spread_since_the_session_began(store: Store) -> None:
    def slots() -> int:
        with store.write() as session:
            return int(group_maps.claim(session, "d", ClaimBody(session="one", node="a", incarnation="i"), 0.0)["slots"])

    assert slots() == 1
    with store.write() as session:
        session.get_one(Deployment, "d").slots = 3
    assert slots() == 1, "its state lies in the slots that it began in"
    release(store, "one")
    assert slots() == 3
