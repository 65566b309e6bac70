"""In the registry processes of tests: no commit changes what nodes are told without a new generation, which wakes their long polls.

A node that is not woken goes on with what it was told last, until something else changes. Imported by the fork server, before a registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.orm import Session

from registry.domain import nodes
from registry.store.store import Store

_write = Store.write


def _told(session: Session) -> dict[str, Any]:
    """What nodes are told, with the changes made so far: read by a session of its own, in the same transaction."""
    session.flush()
    with Session(session.connection(), join_transaction_mode="rollback_only") as reader:
        return {key: value for key, value in nodes.wanted(reader).document().items() if key != "generation"}


@contextmanager
def _checked(self: Store, **options: bool) -> Iterator[Session]:
    with _write(self, **options) as session:
        before = _told(session)
        yield session
        if "generation" not in session.info:
            changed = [key for key, value in _told(session).items() if value != before[key]]
            assert not changed, f"{', '.join(changed)} of what nodes are told changes, and the generation does not: call bump"


Store.write = _checked  # type: ignore[method-assign]
