"""Bodies of requests about canaries: the conditions of one, and what nodes report. The rules are in updates.py."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator

from udo_protocol.errors import UsageError
from udo_protocol.registry.canary import MEASURES, PATTERN, Condition

_MOST_S = 7 * 86400
_SHOWN = "^" + PATTERN.replace(r"\w+", "|".join(MEASURES)).replace(r"\s", " ") + "$"
ConditionText = Annotated[str, WithJsonSchema({"type": "string", "pattern": _SHOWN, "examples": ["errors>0", "p99_ms>5"]})]


class CanaryBody(BaseModel):
    """The canary of an update: `percent` of the new lanes for `for_s`, rolled back at once when a condition holds.

    Of a keyed operator: of the key groups, tried beside the serving version.
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


class MeasuredBody(BaseModel):
    """Counters of a node's canary since it began (udo_protocol.registry.canary.Measured)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    events: float = Field(default=0.0, ge=0)
    frames: float = Field(default=0.0, ge=0)
    errors: float = Field(default=0.0, ge=0)
    p50_ms: float = Field(default=0.0, ge=0)
    p99_ms: float = Field(default=0.0, ge=0)
    compared: float = Field(default=0.0, ge=0)
    different: float = Field(default=0.0, ge=0)
    answered: float = Field(default=0.0, ge=0)
