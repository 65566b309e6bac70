"""Errors short in a notebook: `%load_ext udo_interface.notebook`.

An error of an operator reaches a notebook below the frames of Spark, its bridge to Java and its workers. What helps is its last part: what
failed, where, and the operator's own traceback. The extension shows that; `%tb` shows all of it afterwards.
Our own errors of a call are short without it (UdoError._render_traceback_).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

# "udo_protocol.errors.OperatorError: ..." up to Spark's own frames.
_OURS = re.compile(r"udo_protocol\.errors\.(\w+: .*?)(?=\n\s*(?:at |\tat |JVM stacktrace|Driver stacktrace|SQLSTATE)|\Z)", re.DOTALL)


def brief(text: str) -> str | None:
    """The part of Spark's error message that an operator's error is, None if it is none of ours."""
    found = _OURS.findall(text)
    return found[-1].rstrip() if found else None


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext`: from here on Spark's errors that are an operator's show the operator's."""
    from pyspark.errors import PySparkException

    def show(self: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, tb_offset: int | None = None) -> Any:
        said = brief(str(error))
        if said is None:
            self.showtraceback((kind, error, trace), tb_offset=tb_offset)
            return None
        import sys

        sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
        self._showtraceback(kind, error, [said, "(the whole traceback: %tb)"])
        return None

    shell.set_custom_exc((PySparkException,), show)


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext`."""
    shell.set_custom_exc((), None)
