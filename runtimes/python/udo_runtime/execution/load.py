"""Loads an entry point `module:attribute` as a Processor: record batch in, record batch out, failures with their event."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from udo_protocol.errors import ProtocolError, SchemaError
from udo_protocol.formats.rows import as_events
from udo_protocol.formats.schema import conform, misfits
from udo_protocol.formats.state_types import StateTypes
from udo_runtime.execution.bad_events import BadEvent, bad_row, bisect, rows_of
from udo_runtime.execution.gathered import FIRST, GatheredAnswers, joined, taking
from udo_runtime.execution.typed import TypedOperator
from udo_runtime.failure import PassedOn, ProcessingError, columns_to_batch, event_text, failed, not_answers, rows_to_batch
from udo_runtime.sdk.api import Context, Operator

if TYPE_CHECKING:
    from udo_runtime.counters import Counters
    from udo_runtime.execution.keyed_processor import KeyedConfig, KeyedProcessor
    from udo_runtime.execution.timers import KeyedContext
    from udo_runtime.sdk.frame_keys import FrameKeys, FrameStates
    from udo_runtime.state.layout import Layout
    from udo_runtime.state.versions import MigrateAll

Batchwise = Callable[[pa.RecordBatch], Any]


class Processor:
    """A loaded operator. `open` it once, call it per batch, `close` it at the end. `types`: those of a keyed state, if declared."""

    def __init__(self, target: Operator | Batchwise, output: pa.Schema, ctx: Context, types: StateTypes | None = None) -> None:
        self._target, self._output, self._ctx = target, output, ctx
        self._names, self._types, self._take = set(output.names), types, taking(output)
        self._operator = target if isinstance(target, Operator) else None
        self._keyed_operator = self._operator
        if types is not None and self._operator is not None:
            self._keyed_operator = TypedOperator(self._operator, types)
        self._per_event = self._operator is not None and type(self._operator).process_batch is Operator.process_batch

    @property
    def types(self) -> StateTypes | None:
        """The types of a keyed operator's state; None: not declared."""
        return self._types

    @property
    def per_event(self) -> Operator:
        """The operator, if it does not override process_batch; ProcessingError if it does, or is a function: it cannot be keyed."""
        if self._keyed_operator is None or not self._per_event:
            raise ProcessingError(
                f"{self._ctx.operator}@{self._ctx.version} is keyed: expected an Operator class with process(event, ctx) or "
                "process_keys(keys, events, states, ctx)"
            )
        return self._keyed_operator

    def require_stateless(self) -> None:
        """Raise ProcessingError if the operator overrides a method that only keyed operators have."""
        own = [n for n in ("process_keys", "on_timer", "migrate") if getattr(type(self._operator), n, None) is not getattr(Operator, n)]
        if self._operator is not None and own:
            raise ProcessingError(
                f"{type(self._operator).__name__} has {own[0]}, which is for operators that keep state by key, and operator.toml names no "
                'key: add key = ["COLUMN", ...], the columns that make it up',
                code=SchemaError.code,
            )

    @property
    def migrate_all(self) -> MigrateAll | None:
        """A function that migrates many states in one call, if that is better than one by one."""
        return None

    def keyed(self, keyed: KeyedConfig) -> KeyedProcessor:
        """The processor of its keyed frames."""
        from udo_runtime.execution.keyed_batches import KeyedBatchProcessor
        from udo_runtime.execution.keyed_processor import (
            KeyedProcessor,  # needs MessagePack; a stateless operator may bring its own version
        )

        if self.layout is not None:
            from udo_runtime.execution.keyed_columns import KeyedColumnProcessor

            return KeyedColumnProcessor(self.per_event, keyed, self._output, self._ctx, self.whole_keyed, self.layout)
        if self.by_frame:
            return KeyedBatchProcessor(self.per_event, keyed, self._output, self._ctx, self.whole_keyed)
        return KeyedProcessor(self.per_event, keyed, self._output, self._ctx)

    @property
    def by_event(self) -> bool:
        """Whether user code gets the events one by one, as Python objects."""
        return self._per_event

    @property
    def by_frame(self) -> bool:
        """Whether a keyed operator gets its events frame by frame."""
        return self._operator is not None and type(self._operator).process_keys is not Operator.process_keys

    @cached_property
    def layout(self) -> Layout | None:
        """The columns of its states, if it gets whole frames and declares types of a fixed width; None: states are kept as rows."""
        from udo_runtime.state.layout import Layout

        return Layout.of(self._types) if self.by_frame else None

    def whole_keyed(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: KeyedContext) -> pa.RecordBatch:
        """The answer to a frame of keyed events, in the output schema."""
        assert self._keyed_operator is not None
        try:
            answer = self._keyed_operator.process_keys(keys, events, states, ctx)
            ctx._require_own()
        except (ProcessingError, PassedOn):
            raise
        except BaseException as e:
            raise failed(e) from e
        return self._checked(answer)

    def check(self) -> None:
        """Check the operator without opening it. Code in this process needs nothing: it has been imported."""

    def open(self) -> None:
        """Run the operator's own open."""
        if self._operator is not None:
            self._operator.open(self._ctx)

    def look_after(self, counters: Counters) -> None:
        """Look after the operator; called periodically between frames. Code in this process needs nothing."""

    def close(self) -> None:
        """Run the operator's own close."""
        if self._operator is not None:
            self._operator.close()

    def named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The answer, in the output schema. ProcessingError, with the event, if user code raises or its answer has another schema."""
        try:
            return self._run(batch)
        except ProcessingError as e:
            self.name_event(e, batch)
            raise

    def once(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Like `named`, but without a search for a vectorised operator's bad event."""
        return self._run(batch)

    def _run(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._each(batch) if self._per_event else self._whole(batch)

    def name_event(self, error: ProcessingError, batch: pa.RecordBatch) -> None:
        """Find the event at fault, if `error` does not name it and there is one."""
        if not error.event and not self._per_event:
            error.event = self._culprit(batch)

    def without_bad(self, batch: pa.RecordBatch, error: ProcessingError, room: int) -> tuple[pa.RecordBatch, list[BadEvent]]:
        """After `once` failed with `error`: the answer to the good events, and the bad events; `room` + 1 of these mean too many."""
        if self._per_event:
            return self._singly(batch, room)
        good, bad = bisect(self._whole, batch, error, room)
        return joined(good, self._output), bad

    def _singly(self, batch: pa.RecordBatch, room: int) -> tuple[pa.RecordBatch, list[BadEvent]]:
        good, bad, waiting, count = GatheredAnswers(self._output), list[BadEvent](), list[tuple[int, GatheredAnswers]](), 0
        for row, event in enumerate(rows_of(batch)):
            try:
                waiting.append((row, self._one(event)))
                count += len(waiting[-1][1])
            except ProcessingError as e:
                bad.append(bad_row(batch, row, e))
                if len(bad) > room:
                    break
            if count >= good.room or (waiting and waiting[-1][1].packed):
                good.add(*self._fitting(waiting, batch, bad))
                waiting, count = [], 0
        good.add(*self._fitting(waiting, batch, bad))
        return good.batch(), sorted(bad, key=lambda b: b.row)

    def _fitting(self, waiting: list[tuple[int, GatheredAnswers]], batch: pa.RecordBatch, bad: list[BadEvent]) -> list[pa.RecordBatch]:
        """The answers to these rows of the batch; a row with an answer that has a value of the wrong type is bad."""
        if not any(answers.packed for _, answers in waiting):
            with suppress(ProcessingError):
                return [rows_to_batch([a for _, answers in waiting for a in answers], self._output)]
        parts = []
        for row, answers in waiting:
            try:
                parts.append(answers.batch())
            except ProcessingError as e:
                bad.append(bad_row(batch, row, e))
        return parts

    def _one(self, event: dict[str, Any] | ProcessingError) -> GatheredAnswers:
        if isinstance(event, ProcessingError):
            raise event
        assert self._operator is not None
        answers, room = GatheredAnswers(self._output), FIRST
        given: Any = ()
        try:
            given = self._operator.process(event, self._ctx) or ()
            for answer in given:
                if not isinstance(answer, dict) or answer.keys() != self._names:
                    told = given if isinstance(given, (dict, str, bytes)) else [answer]
                    raise not_answers(told, self._output.names, event) or self._wrong_columns(answer, event)
                answers.append(self._take(answer))
                if len(answers) >= room:
                    room = answers.pack()
        except (ProcessingError, PassedOn):
            raise
        except BaseException as e:
            raise self._failed(e, given, event) from e
        return answers

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            answer = self._operator.process_batch(batch, self._ctx) if self._operator else self._target(batch)  # type: ignore[operator]
        except PassedOn:
            raise
        except BaseException as e:
            raise failed(e) from e
        return self._checked(answer)

    def _culprit(self, batch: pa.RecordBatch) -> str:
        """The event on which user code fails by itself, found by halving; '' if a batch fails and neither half does."""
        while batch.num_rows > 1:
            half = batch.num_rows // 2
            for part in (batch.slice(0, half), batch.slice(half)):
                try:
                    self._whole(part)
                except ProcessingError:
                    batch = part
                    break
            else:
                return ""
        return event_text(as_events(batch)[0]) if batch.num_rows else ""

    def _checked(self, answer: Any) -> pa.RecordBatch:
        if isinstance(answer, pa.RecordBatch) and answer.schema.equals(self._output, check_metadata=False):
            return answer
        if answer is None:
            return pa.RecordBatch.from_pylist([], schema=self._output)
        if isinstance(answer, dict):
            answer = columns_to_batch(answer, self._output)
        if isinstance(answer, pa.Table):
            answer = answer.combine_chunks()
            batches = answer.to_batches()
            answer = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=answer.schema)
        if not isinstance(answer, pa.RecordBatch):
            raise ProcessingError(
                f"expected a RecordBatch, Table or dict of columns, the operator answered {type(answer).__name__}", code=SchemaError.code
            )
        if problems := misfits(answer.schema, self._output):
            raise ProcessingError("the operator's answer does not fit its output schema: " + "; ".join(problems), code=SchemaError.code)
        try:
            return conform(answer, self._output)
        except ProtocolError as e:
            raise ProcessingError(f"the operator's answer does not fit its output schema: {e}", code=SchemaError.code) from e

    def _each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        operator, ctx, take, width = self._operator, self._ctx, self._take, len(self._names)
        assert operator is not None
        out, room = GatheredAnswers(self._output), FIRST
        event: dict[str, Any] = {}
        answer: Any = None
        answers: Any = ()
        try:
            for event in as_events(batch):
                for answer in (answers := operator.process(event, ctx)) or ():
                    if type(answer) is not dict:
                        answer = dict(answer.items())  # without the defaults that a Counter has
                    if len(answer) != width:
                        raise self._wrong_columns(answer, event)
                    try:
                        out.append(take(answer))
                    except KeyError:
                        raise self._wrong_columns(answer, event) from None
                    if len(out) >= room:
                        room = out.pack()
        except (ProcessingError, PassedOn):
            raise
        except BaseException as e:
            raise self._failed(e, answers, event, answer) from e
        return out.batch()

    def _failed(self, e: BaseException, answers: Any, event: dict[str, Any], last: Any = None) -> ProcessingError:
        """The error for invalid `answers` of user code, else for the exception that it raised."""
        return not_answers(answers, self._output.names, event, last) or failed(e, event)

    def _wrong_columns(self, answer: Any, event: dict[str, Any]) -> ProcessingError:
        got = ", ".join(sorted(answer)) if isinstance(answer, dict) else type(answer).__name__
        want = ", ".join(self._output.names)
        return ProcessingError(
            f"expected an event with the columns {want}; the operator answered {got}", "", event_text(event), SchemaError.code
        )


def load(entry: str, path: Sequence[str], output: pa.Schema, ctx: Context, types: StateTypes | None = None) -> Processor:
    """Find the operator and make a Processor of it."""
    return Processor(find(entry, path, ctx), output, ctx, types)


def find(entry: str, path: Sequence[str], ctx: Context) -> Operator | Batchwise:
    """Import `module:attribute` with `path` in front of sys.path. ProcessingError with the traceback if that fails."""
    sys.path[0:0] = path
    module_name, _, attribute = entry.partition(":")
    try:
        module = importlib.import_module(module_name)
    except PassedOn:
        raise
    except BaseException as e:
        raise failed(e, before=f"cannot import {module_name!r} of {ctx.operator}@{ctx.version}: ") from e
    target = getattr(module, attribute, None)
    if target is None:
        there = ", ".join(n for n in vars(module) if not n.startswith("_"))
        raise ProcessingError(f"module {module_name!r} of {ctx.operator}@{ctx.version} has no {attribute!r}; it has: {there}")
    if isinstance(target, type):
        if not issubclass(target, Operator):
            raise ProcessingError(
                f"{entry} is a class that does not derive from Operator; expected an @operator function or an Operator class"
            )
        try:
            target = target()
        except PassedOn:
            raise
        except BaseException as e:
            raise failed(e, before=f"{entry} cannot be created: ") from e
    if not callable(target) and not isinstance(target, Operator):
        raise ProcessingError(f"{entry} is a {type(target).__name__}; expected an @operator function or an Operator class")
    return target  # type: ignore[no-any-return]
