"""Which nodes are there, by their last sign of life: a heartbeat, or a long poll that began or ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.domain.audit import iso
from registry.store.models import Node


@dataclass(frozen=True)
class Presence:
    """Nodes that were heard of lately, and the others with the time of their last sign of life."""

    live: list[str]
    away: dict[str, float]

    def named(self) -> str:
        """Those that are away, for people."""
        return ", ".join(f"{node} (away since {iso(since)})" for node, since in sorted(self.away.items()))


def signs(session: Session, polled: Mapping[str, float]) -> dict[str, float]:
    """Every node known, and when it was last heard of; `polled`: node -> its last long poll."""
    return {n.name: max(n.last_seen, polled.get(n.name, 0.0)) for n in session.scalars(select(Node).order_by(Node.name))}


def presence(session: Session, since: float, polled: Mapping[str, float]) -> Presence:
    """Live is who was heard of at `since` or later."""
    seen = signs(session, polled)
    return Presence([n for n, at in seen.items() if at >= since], {n: at for n, at in seen.items() if at < since})


def presumed(session: Session, started: float, now: float, live_s: float, polled: Mapping[str, float]) -> Presence:
    """Whom an update waits for. A registry that has just started counts in the nodes that were live when its predecessor was last
    heard: while there was no registry they could give it no sign."""
    since = now - live_s
    if now < started + live_s:
        since = min(since, max(signs(session, polled).values(), default=now) - live_s)
    return presence(session, since, polled)
