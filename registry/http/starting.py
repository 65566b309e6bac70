"""Starting an update or a rollback, and promoting a canary, for the API and the console alike."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from registry.domain import audit, updates
from registry.domain.audit import Caller
from registry.domain.updates import WantedUpdate
from registry.http.web import services
from registry.store.models import Update
from udo_protocol.errors import UsageError

# Nodes may have to pull gigabytes and load a model; each of the two phases has this long.
TIMEOUT_S = 120.0


def start(by: Caller, wish: WantedUpdate) -> str:
    """Start an update; returns its id. A refused one is in the audit trail, too."""
    s = services()
    return _begun(by, wish.deployment, wish.action, lambda session: updates.start(session, by, wish, s.presumed(session)))


def promote(by: Caller, name: str) -> str:
    """End the canary as passed; returns the id of its update."""
    return _begun(by, name, "promote", lambda session: updates.promote_canary(session, by, name))


def _begun(by: Caller, name: str, action: str, begin: Callable[[Session], Update]) -> str:
    s = services()
    try:
        with s.store.write() as session:
            return begin(session).id
    except UsageError as e:
        with s.store.write() as session:
            audit.record(session, by, f"{action}.refused", deployment=name, detail=str(e))
        raise
