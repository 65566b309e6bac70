"""Moves of key groups that, according to the registry, this node began, and forgot when it lost its disk (`store=`).

The groups are restored from the store wherever the map has them. A deployment has one move at a time, so this one is brought to its end.
"""

from __future__ import annotations

import time

import structlog

from node_manager.manager import Manager
from node_manager.rpc import move_service
from udo_protocol.errors import UdoError
from udo_protocol.proto import node_manager_pb2 as pb

AGAIN_S = 2.0
_log = structlog.get_logger()


class LostMoves:
    """See the module. Used by one thread."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._looked: set[tuple[str, int]] = set()  # deployments (name, number); once is enough: a manager that loses its disk ends
        self._next = 0.0

    def go_on(self) -> float:
        """Go on with those of each deployment that is here; return the seconds after which others are to be looked at."""
        m, left = self._manager, False
        if (wait_s := self._next - time.monotonic()) > 0:
            return wait_s
        for name, known in m.across.placements():
            if not known.keyed or (name, known.made) in self._looked:
                continue
            if m.deployments.get(name) is None:
                left = True
                continue
            try:
                slots = move_service.places(m, pb.PlacesRequest(deployment=name)).slots  # asks the registry, which says what is under way
                placed = m.across.find(name)
                if placed is not None and (pending := placed.moving) is not None and pending.node == m.settings.node:
                    m.moves.go_on(name, pending, slots[pending.to].node, slots[pending.to].slot)
                self._looked.add((name, known.made))
            except UdoError as e:
                left = True
                _log.info("whether a move of key groups is under way is not known yet", deployment=name, error=str(e))
        self._next = time.monotonic() + (AGAIN_S if left else 0.0)
        return AGAIN_S if left else float("inf")
