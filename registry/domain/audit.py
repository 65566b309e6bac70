"""The audit trail: who, when, what, from which digest to which. Appended in the same commit as the action; never holds values."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.store.models import Audit

log = logging.getLogger("registry.domain.audit")


@dataclass(frozen=True)
class Caller:
    """The caller's name as given, its address, and the time."""

    who: str
    address: str
    now: float


def iso(at: float) -> str:
    """Seconds since the epoch as UTC text."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def record(
    session: Session, caller: Caller, action: str, *, deployment: str = "", before: str = "", after: str = "", detail: str = ""
) -> None:
    """Append one row; `before` and `after` are digests."""
    session.add(
        Audit(
            at=caller.now,
            who=caller.who,
            address=caller.address,
            action=action,
            deployment=deployment,
            from_digest=before,
            to_digest=after,
            detail=detail,
        )
    )
    log.info("%s by %s (%s) deployment=%s from=%s to=%s %s", action, caller.who, caller.address, deployment, before, after, detail)


def rows(session: Session, deployment: str | None, limit: int) -> list[dict[str, Any]]:
    """The latest rows first, at most `limit`."""
    query = select(Audit).order_by(Audit.id.desc()).limit(limit)
    if deployment:
        query = query.where(Audit.deployment == deployment)
    names = ("who", "address", "action", "deployment", "from_digest", "to_digest", "detail")
    return [{"at": iso(r.at), **{n: getattr(r, n) for n in names}} for r in session.scalars(query)]
