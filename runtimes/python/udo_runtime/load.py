"""From an entry point `module:attribute` to a Processor: record batch in, record batch out, failures with their event."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pyarrow as pa

from udo_protocol.errors import OperatorError, SchemaError
from udo_protocol.schema import conform, misfits, type_text
from udo_runtime.api import Context, Operator

Batchwise = Callable[[pa.RecordBatch], Any]


class ProcessingError(OperatorError):
    """User code failed on a batch; `traceback` is its own, `event` the offending one as JSON where it is known."""

    def __init__(self, message: str, traceback_text: str = "", event: str = "", code: str = "operator") -> None:
        super().__init__(message)
        self.traceback, self.event, self.wire_code = traceback_text, event, code


def own_traceback(e: BaseException) -> str:
    """The traceback as the operator's author would see it: without the runtime's own frames."""
    tb: TracebackType | None = e.__traceback__
    while tb is not None and tb.tb_frame.f_globals.get("__name__", "").startswith(("udo_runtime.", "importlib.", "importlib")):
        tb = tb.tb_next
    return "".join(traceback.format_exception(type(e), e, tb)).rstrip()


def event_text(event: dict[str, Any]) -> str:
    """An event as JSON for messages, at most 2,000 characters."""
    return json.dumps(event, default=str, ensure_ascii=False)[:2000]


class Processor:
    """A loaded operator. `open` it once, call it per batch, `close` it at the end."""

    def __init__(self, target: Operator | Batchwise, output: pa.Schema, ctx: Context) -> None:
        self._target, self._output, self._ctx = target, output, ctx
        self._names = set(output.names)
        self._operator = target if isinstance(target, Operator) else None
        self._per_event = self._operator is not None and type(self._operator).process_batch is Operator.process_batch

    def open(self) -> None:
        """Run the operator's own open."""
        if self._operator is not None:
            self._operator.open(self._ctx)

    def close(self) -> None:
        """Run the operator's own close."""
        if self._operator is not None:
            self._operator.close()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The answer, in the output schema. ProcessingError if user code raises or answers something else."""
        if self._per_event:
            return self._each(batch)
        try:
            return self._whole(batch)
        except ProcessingError as e:
            if not e.event:
                e.event = self._culprit(batch)
            raise

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            answer = self._operator.process_batch(batch, self._ctx) if self._operator else self._target(batch)  # type: ignore[operator]
        except Exception as e:
            raise ProcessingError(f"{type(e).__name__}: {e}", own_traceback(e)) from e
        return self._checked(answer)

    def _culprit(self, batch: pa.RecordBatch) -> str:
        """The one event on which user code fails alone, found by halving; '' if no half of it fails."""
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
        return event_text(batch.to_pylist()[0]) if batch.num_rows else ""

    def _checked(self, answer: Any) -> pa.RecordBatch:
        if isinstance(answer, pa.RecordBatch) and answer.schema.equals(self._output, check_metadata=False):
            return answer
        if answer is None:
            return pa.RecordBatch.from_pylist([], schema=self._output)
        if isinstance(answer, dict):
            try:
                answer = pa.RecordBatch.from_pydict(answer)
            except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError) as e:
                raise ProcessingError(f"the operator's dict of columns is not a record batch: {e}", code=SchemaError.code) from e
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
        return conform(answer, self._output)

    def _each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        operator, ctx, names = self._operator, self._ctx, self._names
        assert operator is not None
        out: list[dict[str, Any]] = []
        event: dict[str, Any] = {}
        try:
            for event in batch.to_pylist():
                for answer in operator.process(event, ctx) or ():
                    if answer.keys() != names:
                        raise self._wrong_columns(answer, event)
                    out.append(answer)
        except ProcessingError:
            raise
        except Exception as e:
            raise ProcessingError(f"{type(e).__name__}: {e}", own_traceback(e), event_text(event)) from e
        return rows_to_batch(out, self._output)

    def _wrong_columns(self, answer: Any, event: dict[str, Any]) -> ProcessingError:
        got = ", ".join(sorted(answer)) if isinstance(answer, dict) else type(answer).__name__
        want = ", ".join(self._output.names)
        return ProcessingError(
            f"expected an event with the columns {want}; the operator answered {got}", "", event_text(event), SchemaError.code
        )


def rows_to_batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Answered events as a record batch; ProcessingError names column, types and event that do not fit."""
    try:
        return pa.RecordBatch.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError) as e:
        raise ProcessingError(*_wrong_type(rows, schema, e), code=SchemaError.code) from e


def _wrong_type(rows: list[dict[str, Any]], schema: pa.Schema, error: Exception) -> tuple[str, str, str]:
    for row in rows:
        for field in schema:
            try:
                pa.array([row[field.name]], field.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError) as e:
                value = row[field.name]
                wanted = f"column {field.name!r}: expected {type_text(field.type)}"
                return f"{wanted}, the operator answered {value!r:.200} ({type(value).__name__}): {e}", "", event_text(row)
    return str(error), "", ""


def load(entry: str, path: list[str], output: pa.Schema, ctx: Context) -> Processor:
    """Import `module:attribute` with `path` in front of sys.path. OperatorError with the traceback if it cannot be."""
    sys.path[0:0] = path
    module_name, _, attribute = entry.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as e:  # an operator may even call sys.exit() while it is imported
        raise ProcessingError(
            f"cannot import {module_name!r} of {ctx.operator}@{ctx.version}: {type(e).__name__}: {e}", own_traceback(e)
        ) from e
    target = getattr(module, attribute, None)
    if target is None:
        there = ", ".join(n for n in vars(module) if not n.startswith("_"))
        raise ProcessingError(f"module {module_name!r} of {ctx.operator}@{ctx.version} has no {attribute!r}; it has: {there}")
    if isinstance(target, type) and issubclass(target, Operator):
        try:
            target = target()
        except Exception as e:
            raise ProcessingError(f"{entry} cannot be created: {type(e).__name__}: {e}", own_traceback(e)) from e
    if not callable(target) and not isinstance(target, Operator):
        raise ProcessingError(f"{entry} is a {type(target).__name__}; expected an @operator function or an Operator class")
    return Processor(target, output, ctx)
