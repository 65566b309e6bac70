"""The reports of a node to the registry: of a deployment, of a step of its update, and of its canary."""

from __future__ import annotations

from typing import Any

from node_manager.trials.canaries import Canary
from node_manager.trials.keyed_canaries import KeyedCanary
from udo_protocol.registry.wanted import DETAIL_CHARS, NodeReport, UpdateStep, WantedDeployment

# The state of a deployment that is served.
ANSWERING = "answering"


def state(wish: WantedDeployment, state: str, detail: str = "", error_code: str | None = None) -> NodeReport:
    """The report of a deployment outside of an update."""
    about = {"deployment": wish.name, "version": wish.version, "digest": wish.digest}
    return NodeReport.model_validate({**about, "state": state, "detail": detail[:DETAIL_CHARS], "error_code": error_code})


def step(wish: WantedDeployment, update: UpdateStep, step: str, detail: str = "", error_code: str | None = None) -> NodeReport:
    """The report of a step of an update."""
    about = {"deployment": wish.name, "version": update.version, "digest": update.digest, "update_id": update.id, "phase": step}
    return NodeReport.model_validate({**about, "state": step, "detail": detail[:DETAIL_CHARS], "error_code": error_code})


def counts(name: str, canary: Canary | KeyedCanary) -> NodeReport:
    """The report of what a canary has counted, or of the error because of which it cannot go on."""
    about: dict[str, Any] = {"deployment": name, "version": canary.version, "digest": canary.digest, "update_id": canary.update_id}
    if isinstance(canary, KeyedCanary):
        about["detail"] = canary.first_error[:DETAIL_CHARS]
        if why := canary.failure:
            failed = {"state": "failed", "phase": "failed", "detail": str(why)[:DETAIL_CHARS], "error_code": why.code}
            return NodeReport.model_validate({**about, **failed})
    return NodeReport.model_validate({**about, "state": "canary", "phase": "observed", "measured": canary.measured()})
