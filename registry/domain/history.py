"""The last updates of a deployment, in short, and whether any is under way."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.domain.audit import iso
from registry.store.models import Update
from udo_protocol.lifecycle import UPDATE_OPEN


def are_open(session: Session) -> bool:
    """Whether an update of some deployment is under way."""
    return session.scalar(select(Update.id).where(Update.state.in_(UPDATE_OPEN)).limit(1)) is not None


def updates(session: Session, deployment: str, limit: int) -> list[dict[str, Any]]:
    """At most `limit` updates, the latest first."""
    names = ("id", "action", "who", "from_version", "to_version", "state")
    query = select(Update).where(Update.deployment == deployment).order_by(Update.started_at.desc()).limit(limit)
    return [{**{n: getattr(u, n) for n in names}, "started_at": iso(u.started_at)} for u in session.scalars(query)]
