"""Presence of nodes by their last heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.domain.audit import iso
from registry.store.models import Node, Setting

# Prefix of a node's name in the setting that is 1 if the node is drained.
_DRAINED = "drained:"


@dataclass(frozen=True)
class Presence:
    """Live nodes, and the others with the time of their last heartbeat."""

    live: list[str]
    away: dict[str, float]

    def named(self) -> str:
        """The nodes that are away, for people."""
        return ", ".join(f"{node} (away since {iso(since)})" for node, since in sorted(self.away.items()))


def signs(session: Session) -> dict[str, float]:
    """The time of the last heartbeat of every known node. A long poll does not count: one of a node that has died ends half a minute
    later, and those of its successor come before the death is known."""
    return {n.name: n.last_seen for n in session.scalars(select(Node).order_by(Node.name))}


def reachable(session: Session, there: Presence) -> list[str]:
    """Live nodes that listen for other hosts and are not drained."""
    listening = set(session.scalars(select(Node.name).where(Node.listen != "")))
    return sorted(n for n in there.live if n in listening and not is_drained(session, n))


def disks(session: Session, live: Sequence[str]) -> dict[str, str]:
    """The disks of these nodes, as each reports it."""
    found = session.execute(select(Node.name, Node.incarnation))
    return {name: disk for name, disk in found if name in live}


def drain(session: Session, node: str, *, drained: bool) -> None:
    """Mark the node as drained, so that it gets no slots of deployments over nodes, or clear the mark."""
    session.merge(Setting(key=f"{_DRAINED}{node}", value=int(drained)))


def drained(session: Session) -> list[str]:
    """The drained nodes."""
    rows = session.scalars(select(Setting.key).where(Setting.key.startswith(_DRAINED), Setting.value == 1))
    return [key.removeprefix(_DRAINED) for key in rows]


def is_drained(session: Session, node: str) -> bool:
    """Whether the node is drained."""
    row = session.get(Setting, f"{_DRAINED}{node}")
    return row is not None and row.value == 1


def presence(session: Session, since: float) -> Presence:
    """A node is live if its last heartbeat was at `since` or later."""
    seen = signs(session)
    return Presence([n for n, at in seen.items() if at >= since], {n: at for n, at in seen.items() if at < since})


def presumed(session: Session, started: float, now: float, live_s: float) -> Presence:
    """Presence for updates, which wait for live nodes. A registry that has just started includes nodes that were live at the last heartbeat
    that its predecessor got from any node, since they could not report in between."""
    since = now - live_s
    if now < started + live_s:
        since = min(since, max(signs(session).values(), default=now) - live_s)
    return presence(session, since)
