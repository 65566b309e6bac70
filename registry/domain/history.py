"""The last updates of a deployment, in short."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.domain.audit import iso
from registry.store.models import Update


def updates(session: Session, deployment: str, limit: int) -> list[dict[str, Any]]:
    """At most `limit` updates, the latest first."""
    names = ("id", "action", "who", "from_version", "to_version", "state")
    query = select(Update).where(Update.deployment == deployment).order_by(Update.started_at.desc()).limit(limit)
    return [{**{n: getattr(u, n) for n in names}, "started_at": iso(u.started_at)} for u in session.scalars(query)]
