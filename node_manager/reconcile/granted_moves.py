"""This node's part in a granted step of an application's deployment with state over nodes: it moves key groups from its slot to others.

The registry repeats what is left of a step until it is done (registry/domain/application_steps.py), so nothing is remembered here, and a
repetition does no harm: a move under way is waited for, a finished one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from node_manager.deployments.move_steps import CPAL
from node_manager.manager import Manager
from node_manager.rpc import move_service
from udo_protocol.errors import UdoError, Unavailable
from udo_protocol.proto import node_manager_pb2 as pb

# Only the wait ends after this time, the move goes on.
_MOVE_WAIT_S = 120.0
_log = structlog.get_logger()


class GrantedMoves:
    """The granted moves of one node. `over` gets a step's id and the error of this node's part in it, '' when that is done."""

    def __init__(self, manager: Manager, over: Callable[[str, str], None]) -> None:
        self._manager, self._over = manager, over
        self._under_way: set[str] = set()  # deployments

    def begin(self, step: Mapping[str, Any]) -> None:
        """Do what is left of this step, unless one of the deployment is under way. Called by one thread."""
        name = str(step["deployment"])
        if name not in self._under_way:
            self._under_way.add(name)
            self._manager.plant.beside(partial(self._carry_out, name, step), name)

    def _carry_out(self, name: str, step: Mapping[str, Any]) -> None:
        error = ""
        try:
            self._move(name, step)
        except UdoError as e:
            error = str(e)
            _log.info("a granted step does not get on yet", deployment=name, kind=step["kind"], error=error)
        finally:
            self._under_way.discard(name)
        self._over(str(step["id"]), error)

    def _move(self, name: str, step: Mapping[str, Any]) -> None:
        m, node = self._manager, self._manager.settings.node
        before_s = m.downtime.seconds(name)
        for place, groups in step["moves"]:
            to = move_service.places(m, pb.PlacesRequest(deployment=name)).slots[place]
            m.moves.taker(to.node).ready(name, to.slot)  # else the move would be noted, and wait for a node that may never come
            for _ in m.moves.move(name, groups, to.slot, CPAL, _MOVE_WAIT_S, to.node):
                pass
        if step["runs_to"]:
            move_service.hand_over_runs(m, pb.HandOverRunsRequest(deployment=name, from_node=node, to_node=step["runs_to"]))
        if step["slots"] is not None and (there := len(d.own) if (d := m.deployments.get(name)) else 0) != step["slots"]:
            raise Unavailable(f"node {node} has {there} slots of deployment {name!r} still, expected {step['slots']}: it follows")
        if step["moves"]:
            m.downtime.cost(name, step["kind"], 1000 * (m.downtime.seconds(name) - before_s))
            _log.info("key groups moved as granted", deployment=name, kind=step["kind"], groups=sum(len(g) for _, g in step["moves"]))
