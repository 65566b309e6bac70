"""The part of udo_protocol.registry.api.Registry that a node uses to bring about what is wanted, and to report."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from threading import Event
from typing import Any, Protocol

import structlog

from node_manager.deployments.lanes import Catalogue
from udo_protocol import supervised
from udo_protocol.errors import UdoError, Unavailable
from udo_protocol.registry.wanted import NodeReport

_log = structlog.get_logger()
# Pauses between tries, much shorter than the time after which a node counts as away.
_RETRY_FIRST_S, RETRY_MOST_S = 0.2, 3.0


class RegistryCalls(Catalogue, Protocol):
    """See the module."""

    def wanted(self, node: str, after: int, wait_s: float, incarnation: str) -> Mapping[str, Any]:
        """Return a WantedState as its document, at once if its generation is newer than `after`. Conflict, here and below: there is another
        node of this name, with another incarnation."""

    def report(self, node: str, report: NodeReport, incarnation: str) -> Any:
        """Report the state of a deployment, or of a step of its update, on this node."""

    def heartbeat(self, node: str, **properties: Any) -> Any:
        """Tell the registry that the node is alive, and what it has. `anew` in the reply: it does not know of any report of this node."""

    def leave(self, node: str, incarnation: str) -> Any:
        """Tell the registry that the node is shutting down."""

    def in_step(self, deployment: str, *, node: str, replica: str, place: int, version: int) -> Mapping[str, Any]:
        """Report that a replica holds what its slot on this node has ENDed; return the placement after that."""


def keep_asking(stopping: Event, step: Callable[[], None], what: str, failed: Callable[[str], None] = lambda _: None) -> None:
    """Run `step` over and over; a registry that is away, or refuses, is asked ever more rarely, and `failed` gets the reason."""
    pause_s = 0.0
    while not stopping.is_set():
        try:
            step()
            if pause_s:
                _log.info("registry is back", step=what)
            pause_s = 0.0
        except UdoError as e:
            failed(str(e))
            if not pause_s:
                said = "registry does not answer" if isinstance(e, Unavailable) else "registry refuses"
                _log.warning(f"{said}; the last wanted state stays in effect", step=what, error=str(e))
            pause_s = min(max(pause_s * 2, _RETRY_FIRST_S), RETRY_MOST_S)
            stopping.wait(pause_s * random.uniform(0.5, 1.0))
        except Exception:
            supervised.failed("reconcile", what)
            stopping.wait(RETRY_MOST_S)
