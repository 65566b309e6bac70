"""A session's state that is exported and imported again between two runs of its query, alongside everything else that happens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

from benchmarks.chaos.judge import Mismatch
from benchmarks.chaos.node import ChaosNode
from udo_protocol.errors import Conflict, NotFound, ProtocolError, SchemaError, StateLost, UdoError
from udo_protocol.queue.connection import ReplyError

CARRIED, DROPPED = "state exported and imported", "state exported, dropped and imported"
# Node, servers and instances may be away at any moment, stopped for 90 s and then killed.
_WITHIN_S, _AGAIN_S = 200.0, 0.3
# Errors that no command on a session may end with, whatever happens to the platform.
_ILLEGAL = (ProtocolError, SchemaError, StateLost)
T = TypeVar("T")


def carry(node: ChaosNode, deployment: str, session: str, last_ended: int, *, drop: bool) -> str:
    """Export the session's state, with `drop` remove it, and import it; return '' if that took place, or why not.

    No version may change meanwhile: a file holds state in the form of one version. Mismatch if the export is not of the epoch `last_ended`,
    or the export cannot be imported within _WITHIN_S.
    """
    try:
        parts = _until_done(lambda: list(node.api.export_state(deployment, session)))
    except NotFound as e:  # no epoch has had an event yet
        return str(e)
    if parts[0].header.last_ended != last_ended:
        raise Mismatch(f"the export is of epoch {parts[0].header.last_ended}, expected {last_ended}")
    if drop:
        with contextlib.suppress(NotFound):  # an earlier try that failed has dropped it
            _until_done(lambda: node.api.drop_state(deployment, session))
    parts[0].header.replace = True
    _until_done(lambda: node.api.import_state(iter(parts)))
    return ""


def _until_done(step: Callable[[], T]) -> T:
    """Try a step until it succeeds. NotFound ends it."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        try:
            return step()
        except NotFound:
            raise
        except (UdoError, ReplyError, OSError) as e:
            if isinstance(e, _ILLEGAL):
                raise Mismatch(f"{type(e).__name__}: {e}") from e
            if time.monotonic() > deadline:
                kind = "refused" if isinstance(e, Conflict) else "failed"
                raise Mismatch(f"{kind} for {_WITHIN_S:g} s: {e}") from e
        time.sleep(_AGAIN_S)
