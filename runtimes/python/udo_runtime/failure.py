"""Failures of user code, in the form shown to its author and to the Spark user."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from udo_protocol.cut import cut
from udo_protocol.errors import OperatorError, SchemaError
from udo_protocol.formats.schema import type_text
from udo_protocol.limits import EVENT_CHARS, MESSAGE_CHARS, SHOWN_CAUSES, TRACEBACK_CHARS
from udo_runtime import children
from udo_runtime.hints import hint

# The values of an answer, in the order of its columns.
Row = tuple[Any, ...]


class ProcessingError(OperatorError):
    """User code failed on a batch; `traceback` is its own, `event` the offending event as JSON, if known. All bounded."""

    def __init__(self, message: str, traceback_text: str = "", event: str = "", code: str = "operator") -> None:
        super().__init__(cut(message, MESSAGE_CHARS))
        self.traceback, self.event, self.wire_code = cut(traceback_text, TRACEBACK_CHARS), cut(event, EVENT_CHARS), code


class PassedOn(BaseException):
    """Raised by the runtime itself, or for its user, in the middle of user code; not a failure of user code."""


class KeyboardStop(PassedOn, KeyboardInterrupt):
    """Ctrl-C, typed while user code runs."""


def failed(e: BaseException, event: dict[str, Any] | None = None, before: str = "") -> ProcessingError:
    """The error for any exception of user code: only signals and lack of memory end a process. `before`: a prefix of the message."""
    children.end_if_forked(e)
    return ProcessingError(before + explained(e), own_traceback(e), "" if event is None else event_text(event))


def said(e: BaseException) -> str:
    """`Type: message`, bounded; works even if the exception's __str__ raises."""
    return f"{type(e).__name__}: {_text(e)}"


def explained(e: BaseException) -> str:
    """`said`, plus a hint for the author if the message does not say what to do."""
    return said(e) + hint([link for link, _ in _chain(e)])


def _text(e: BaseException) -> str:
    try:
        return cut(str(e), MESSAGE_CHARS)
    except Exception as why:
        return f"(its __str__ raised {type(why).__name__})"


def own_traceback(e: BaseException) -> str:
    """The traceback for the operator's author: without the runtime's own frames, and without earlier failures."""
    chain = _chain(e)
    beyond = len(chain) - SHOWN_CAUSES
    parts: list[str] = []
    for n, (link, joint) in enumerate(reversed(chain)):  # the first cause first, as Python does
        if beyond > 0 and SHOWN_CAUSES // 2 <= n < SHOWN_CAUSES // 2 + beyond:
            if n == SHOWN_CAUSES // 2:
                parts.append(f"\n… {beyond:,} exceptions of the chain cut …\n\n")
            continue
        parts.append(_formatted(link, own_frames(link) if link is e else link.__traceback__) + joint)
    return "".join(parts).rstrip()


def _chain(e: BaseException) -> list[tuple[BaseException, str]]:
    """The exception, its causes and contexts, each with Python's words for how it led to the exception before it in the list."""
    found: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    link: BaseException | None = e
    joint = ""
    # A batch is retried while its first failure is handled: that context is not part of this exception's chain.
    while link is not None and id(link) not in seen and not (found and isinstance(link, ProcessingError)):
        seen.add(id(link))
        found.append((link, joint))
        if link.__cause__ is not None:
            link, joint = link.__cause__, "\nThe above exception was the direct cause of the following exception:\n\n"
        else:
            context = None if link.__suppress_context__ else link.__context__
            link, joint = context, "\nDuring handling of the above exception, another exception occurred:\n\n"
    return found


def _formatted(e: BaseException, tb: TracebackType | None) -> str:
    """One exception of a chain, bounded."""
    cause, context, suppressed = e.__cause__, e.__context__, e.__suppress_context__
    try:
        e.__cause__ = e.__context__ = None  # else Python walks the whole chain for each exception
        return cut("".join(traceback.format_exception(type(e), e, tb)), TRACEBACK_CHARS)
    except Exception as why:  # a hostile or broken exception class
        return f"{said(e)} (its traceback cannot be shown: {type(why).__name__})\n"
    finally:
        e.__cause__, e.__context__ = cause, context
        e.__suppress_context__ = suppressed


def own_frames(e: BaseException) -> TracebackType | None:
    """The traceback from the operator's first frame on; None if the runtime itself raised the exception."""
    tb: TracebackType | None = e.__traceback__
    while tb is not None and tb.tb_frame.f_globals.get("__name__", "").startswith(("udo_runtime.", "importlib.", "importlib")):
        tb = tb.tb_next
    return tb


def event_text(event: dict[str, Any]) -> str:
    """An event as JSON for messages, bounded."""
    try:
        return cut(json.dumps(event, default=str, ensure_ascii=False), EVENT_CHARS)
    except Exception as e:  # a value of the operator's own class, or one that contains itself
        return f"(cannot be shown: {type(e).__name__})"


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.200}"
    except Exception as e:
        return f"(a value whose __repr__ raised {type(e).__name__})"


def not_answers(given: Any, columns: Iterable[str], event: dict[str, Any], last: Any = None) -> ProcessingError | None:
    """The error for a result of process() or on_timer() that is not a series of events; None if it is one.

    `last`: the last item of a result that cannot be iterated again.
    """
    if isinstance(given, Iterator) and last is not None:
        given = [last]
    if given is None:
        return None
    want = f"expected events with the columns {', '.join(columns)}"
    if isinstance(given, Mapping):
        what = "a dict: write `yield {...}` instead of `return {...}`, or return a list of dicts"
    elif isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        what = f"{_shown(given)} ({type(given).__name__}): yield a dict for each answer, or return a list of dicts"
    elif isinstance(given, (list, tuple)) and (others := [a for a in given if not isinstance(a, dict)]):
        what = f"{_shown(others[0])} ({type(others[0]).__name__}) among them: each answer is a dict"
    else:
        return None
    return ProcessingError(f"{want}; the operator returned {what}", "", event_text(event), SchemaError.code)


def columns_to_batch(columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """A dict of columns as a record batch. Python's numbers have no width, so a list takes the type of its column."""
    arrays = {name: _column(name, values, schema) for name, values in columns.items()}
    try:
        return pa.RecordBatch.from_pydict(arrays)
    except Exception as e:
        raise ProcessingError(f"the operator's dict of columns is not a record batch: {_text(e)}", code=SchemaError.code) from e


def _column(name: str, values: Any, schema: pa.Schema) -> Any:
    if not isinstance(values, (list, tuple)) or name not in schema.names:
        return values
    wanted = schema.field(name).type
    try:
        return pa.array(values, wanted)
    except Exception as e:
        row, value = next(((n, v) for n, v in enumerate(values) if not _fits(v, wanted)), (0, values))
        message = (
            f"column {name!r}: expected {type_text(wanted)}, the operator answered {_shown(value)} ({type(value).__name__}) in row {row}"
        )
        raise ProcessingError(f"{message}: {_text(e)}", code=SchemaError.code) from e


def _fits(value: Any, wanted: pa.DataType) -> bool:
    try:
        pa.array([value], wanted)
    except Exception:
        return False
    return True


def rows_to_batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Answered events as a record batch; ProcessingError names the column, types and event that do not fit."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    try:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except Exception as e:  # also exceptions of the operator's own classes
        raise ProcessingError(*_wrong_type(rows, schema, e), code=SchemaError.code) from e


def _wrong_type(rows: Sequence[Row], schema: pa.Schema, error: Exception) -> tuple[str, str, str]:
    for row in rows:
        for value, field in zip(row, schema, strict=True):
            try:
                pa.array([value], field.type)
            except Exception as e:
                wanted = f"column {field.name!r}: expected {type_text(field.type)}"
                return (
                    f"{wanted}, the operator answered {_shown(value)} ({type(value).__name__}): {_text(e)}",
                    "",
                    event_text(dict(zip(schema.names, row, strict=True))),
                )
    return _text(error), "", ""
