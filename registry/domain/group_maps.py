"""Group maps: the nodes that hold the keyed state of a session. A map names one node, the session's home, which knows itself which of its
slots has which key group (udo_protocol/state/group_map.py); for a deployment over nodes also the other nodes that have slots.

The first node that asks becomes the home. A node asks once for each session and remembers the answer with the state itself
(node_manager/homes.py), so a registry that is away holds up new sessions only. A node is identified by its disk (incarnation): otherwise
state lost with a disk would begin anew, unnoticed as long as no epoch has been completed. A release makes a new version of the map:
nodes' records of an older version no longer count.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from registry.domain import audit, deployments
from registry.domain.audit import Caller, iso
from registry.store.models import GroupMap
from registry.store.store import bump
from udo_protocol.errors import Conflict, NotFound
from udo_protocol.registry.wanted import MovedSession

# Per deployment; a map takes about 200 bytes. Sessions that no query continues stay until somebody drops them, and one new session a
# minute makes this many in ten weeks.
MAPS_KEPT = 100_000


class ClaimBody(BaseModel):
    """Body of POST .../group-maps: a node is about to serve the session."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session: str = Field(min_length=1, max_length=1000)
    node: str = Field(min_length=1, max_length=100)
    incarnation: str = Field(min_length=1, max_length=64)
    stored: bool = False
    start_empty: bool = False


class ReleaseBody(BaseModel):
    """Body of POST .../group-maps/release; with a node, only if that is the home."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session: str = Field(min_length=1, max_length=1000)
    node: str = Field(default="", max_length=100)
    incarnation: str = Field(default="", max_length=64)
    version: int | None = None  # of the map by which that node had the state
    force: bool = False


def claim(session: Session, name: str, wish: ClaimBody, now: float) -> dict[str, Any]:
    """The session's map, made now if there is none, and `granted`: whether the asking node may serve the session.

    With a store any node may, since it brings the state from there each epoch; but no node may begin a session with empty
    state if it began elsewhere without a store. Over nodes each node with slots may serve its part, without a store only with the disk
    that it had when it first asked.
    """
    over = (deployments.find(session, name).placement or {}).get("nodes", ())
    found = session.get(GroupMap, (name, wish.session))
    if found is None:
        kept = select(func.count()).select_from(GroupMap).where(GroupMap.deployment == name, GroupMap.node != "")
        if (session.scalar(kept) or 0) >= MAPS_KEPT:
            raise Conflict(
                f"deployment {name!r} keeps the state of {MAPS_KEPT} sessions: remove those that no query continues (udo state ls {name}, "
                f"udo state drop {name} SESSION)"
            )
        empty = {"version": 0, "node": "", "incarnation": "", "others": {}, "stored": False, "spread": False}
        found = GroupMap(deployment=name, session=wish.session, at=now, **empty)
        session.add(found)
    if not found.node:
        found.node, found.incarnation, found.stored, found.at = wish.node, wish.incarnation, wish.stored, now
    part = wish.node in over
    if part and wish.node not in _nodes(found):
        found.others = {**found.others, wish.node: wish.incarnation}
    known = _nodes(found) if part else {found.node: found.incarnation}
    here = known.get(wish.node) == wish.incarnation
    granted = here and not found.spread
    if wish.stored:
        granted = here or found.stored or not wish.start_empty
        found.spread |= granted and not here
    return {**describe(found), **({"node": wish.node} if part else {}), "granted": granted, "part": part}


def _nodes(found: GroupMap) -> dict[str, str]:
    """The nodes that have state of the session, with their incarnations."""
    return {found.node: found.incarnation, **found.others} if found.node else {}


def describe(found: GroupMap) -> dict[str, Any]:
    """A map as shown without a token."""
    return {
        "session": found.session,
        "version": found.version,
        "node": found.node,
        "incarnation": found.incarnation,
        "nodes": sorted(_nodes(found)),
        "spread": found.spread,
        "at": iso(found.at),
    }


def everything(session: Session, name: str) -> list[dict[str, Any]]:
    """The maps of a deployment, by session."""
    deployments.find(session, name)
    return [describe(m) for m in session.scalars(select(GroupMap).where(GroupMap.deployment == name).order_by(GroupMap.session))]


def release(session: Session, caller: Caller, name: str, wish: ReleaseBody, live: Collection[str]) -> dict[str, Any]:
    """Release the session from its home; the next node that asks becomes the home. Conflict while the home lives, unless forced.

    A node that has dropped its state names itself, which releases its own home only. Over nodes one part releases the others with it:
    their state of the session is old.
    """
    found = session.get(GroupMap, (name, wish.session))
    if found is None or not found.node:
        if wish.node:
            return {}
        raise NotFound(f"session {wish.session!r} of deployment {name!r} has no home")
    known = _nodes(found)
    if wish.node:
        over = deployments.find(session, name).placement is not None
        former = over and wish.version not in (None, found.version)  # the present map has it only because it asked for the session
        if found.spread or former or known.get(wish.node) != wish.incarnation:
            return describe(found)
    elif (there := sorted(known.keys() & live)) and not wish.force:
        raise Conflict(
            f"node {', '.join(there)}, the home of session {wish.session} of {name!r}, is live: move the state with udo state export, drop "
            "and import, or give it up with --force"
        )
    audit.record(session, caller, "release", deployment=name, detail=f"session {wish.session}, home {', '.join(known)}")
    found.version, found.node, found.incarnation, found.others, found.at = found.version + 1, "", "", {}, caller.now
    found.stored = found.spread = False
    bump(session)
    return describe(found)


def replaced(session: Session, name: str, lost: str, heir: str, disk: str) -> None:
    """Give a lost node's part of each session to its heir, with the heir's disk."""
    for found in session.scalars(select(GroupMap).where(GroupMap.deployment == name, GroupMap.node != "")):
        known = _nodes(found)
        if known.pop(lost, None) is None:
            continue
        home = heir if found.node == lost else found.node
        known[heir] = disk
        found.node, found.incarnation = home, known.pop(home)
        found.others = known


def moved(session: Session) -> tuple[MovedSession, ...]:
    """Sessions whose map has been released, for every node: older versions that a node remembers do not count."""
    maps = session.scalars(select(GroupMap).where(GroupMap.version > 0))
    return tuple(MovedSession(m.deployment, m.session, m.version) for m in maps)


def forget(session: Session, before: float) -> None:
    """Drop maps that were released before `before` and have not been claimed since."""
    session.execute(delete(GroupMap).where(GroupMap.node == "", GroupMap.at < before))
