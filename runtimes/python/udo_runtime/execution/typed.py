"""An operator whose manifest declares the types of its state: its states are checked event by event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from udo_protocol.formats.state_types import StateTypes
from udo_runtime.failure import ProcessingError, event_text
from udo_runtime.sdk.api import Batches, Context, Operator
from udo_runtime.sdk.frame_keys import FrameKeys, FrameStates


def require_types(types: StateTypes, states: Iterable[dict[str, Any]]) -> None:
    """Raise ProcessingError unless all these states have the declared types."""
    for state in states:
        if problem := types.problem(state):
            raise ProcessingError(problem)


class TypedOperator(Operator):
    """Runs another operator and checks the states after each call."""

    def __init__(self, operator: Operator, types: StateTypes) -> None:
        self._operator, self._types = operator, types

    def process(self, event: dict[str, Any], ctx: Any) -> Any:
        """The operator's answers; the state is checked after the last one: a generator may change it until its end."""
        return self._checked(self._operator.process(event, ctx), ctx, event)

    def on_timer(self, key: Any, at: datetime, ctx: Any) -> Any:
        """The operator's answers, as in `process`."""
        return self._checked(self._operator.on_timer(key, at, ctx), ctx, {"key": key, "at": at})

    def _checked(self, answers: Any, ctx: Any, event: dict[str, Any]) -> Any:
        if isinstance(answers, Iterator):
            return self._until_end(answers, ctx, event)
        self._require(ctx, event)
        return answers

    def _until_end(self, answers: Iterator[Any], ctx: Any, event: dict[str, Any]) -> Iterator[Any]:
        yield from answers
        self._require(ctx, event)

    def _require(self, ctx: Any, event: dict[str, Any]) -> None:
        if problem := self._types.problem(ctx.state):
            raise ProcessingError(problem, "", event_text(event))

    def process_keys(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: Context) -> Batches:
        """The answer of a vectorised operator."""
        answer = self._operator.process_keys(keys, events, states, ctx)
        require_types(self._types, states.opened())
        return answer

    def migrate(self, old: dict[str, Any], from_version: int) -> dict[str, Any]:
        """The migrated state."""
        new = self._operator.migrate(old, from_version)
        if isinstance(new, dict):
            require_types(self._types, [new])
        return new
