"""Canaries: request bodies, checks, and descriptions for people. updates.py carries them out."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator

from registry.store.models import Deployment, Version
from udo_protocol.errors import Conflict, UsageError
from udo_protocol.limits import SlotLimits
from udo_protocol.registry.canary import DIFFERENT, MEASURES, PATTERN, Condition, share_of_groups

_MOST_S = 7 * 86400
_SHOWN = "^" + PATTERN.replace(r"\w+", "|".join(MEASURES)).replace(r"\s", " ") + "$"
ConditionText = Annotated[str, WithJsonSchema({"type": "string", "pattern": _SHOWN, "examples": ["errors>0", "p99_ms>5"]})]


class CanaryBody(BaseModel):
    """The canary of an update: `percent` of the new lanes for `for_s`, rolled back at once when a condition holds.

    For a keyed operator: `percent` of the key groups, tried beside the serving version.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    percent: float = Field(gt=0, le=100)
    for_s: float = Field(default=60.0, gt=0, le=_MOST_S)
    rollback_if: list[ConditionText] = Field(default=[], max_length=20)
    min_events: int = Field(default=1, ge=0, lt=1 << 53)

    @field_validator("rollback_if")
    @classmethod
    def _conditions_are_understood(cls, conditions: list[str]) -> list[str]:
        try:
            return [str(Condition.parse(text)) for text in conditions]
        except UsageError as e:
            raise ValueError(str(e)) from None


def is_keyed(deployment: Deployment) -> bool:
    """Whether the deployment keeps state: then no caller receives its canary's answers."""
    return bool(deployment.version.manifest.get("key"))


def tries(deployment: Deployment, canary: dict[str, Any]) -> str:
    """The share that the canary gets, for people."""
    if not is_keyed(deployment):
        return f"{canary['percent']:g} % of the new lanes"
    groups = SlotLimits.of(deployment.limits).key_groups
    return f"{len(share_of_groups(canary['percent'], groups))} of {groups} key groups, tested beside {deployment.version.version}"


def conditions(canary: dict[str, Any]) -> str:
    """The conditions for its rollback, for people."""
    return " or ".join([*canary["rollback_if"], f"fewer than {canary['min_events']} events came"])


def require_canary(deployment: Deployment, new: Version, canary: dict[str, Any], *, moves: bool) -> None:
    """UsageError or Conflict if the canary could show nothing."""
    if not is_keyed(deployment) and any(Condition.parse(text).measure == DIFFERENT for text in canary["rollback_if"]):
        raise UsageError(
            f"condition {DIFFERENT!r}: expected a keyed deployment, {deployment.name!r} is not: its canary answers events that the serving "
            "version does not, so there is nothing to compare. Use a diff before"
        )
    if not moves:
        raise Conflict(f"deployment {deployment.name!r} serves @{new.version} already: nothing to update to")
