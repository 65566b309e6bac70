"""What went wrong in user code, as its author and the Spark user are to see it."""

from __future__ import annotations

import json
import traceback
from types import TracebackType
from typing import Any

import pyarrow as pa

from udo_protocol.errors import OperatorError, SchemaError
from udo_protocol.schema import type_text


class ProcessingError(OperatorError):
    """User code failed on a batch; `traceback` is its own, `event` the offending one as JSON where it is known."""

    def __init__(self, message: str, traceback_text: str = "", event: str = "", code: str = "operator") -> None:
        super().__init__(message)
        self.traceback, self.event, self.wire_code = traceback_text, event, code


def own_traceback(e: BaseException) -> str:
    """The traceback as the operator's author would see it: without the runtime's own frames, and without former failures."""
    last: BaseException | None = e
    while last is not None:  # when a batch is tried again, that happens while its first failure is handled
        if isinstance(last.__context__, ProcessingError):
            last.__context__ = None
        last = last.__context__
    return "".join(traceback.format_exception(type(e), e, own_frames(e))).rstrip()


def own_frames(e: BaseException) -> TracebackType | None:
    """Where it was raised, from the operator's first frame on; None if the runtime itself raised it."""
    tb: TracebackType | None = e.__traceback__
    while tb is not None and tb.tb_frame.f_globals.get("__name__", "").startswith(("udo_runtime.", "importlib.", "importlib")):
        tb = tb.tb_next
    return tb


def event_text(event: dict[str, Any]) -> str:
    """An event as JSON for messages, at most 2,000 characters."""
    return json.dumps(event, default=str, ensure_ascii=False)[:2000]


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
