"""Short errors in notebooks: `%load_ext udo_interface.notebook`.

An operator's error reaches a notebook below the frames of Spark, its bridge to Java and its workers. Only the last part helps: the
failure, its place, and the operator's own traceback. The extension shows this part; `%tb` shows everything afterwards.
Errors raised by a call itself are short without the extension (UdoError._render_traceback_).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

# "udo_protocol.errors.OperatorError: ..." up to Spark's own frames.
_OURS = re.compile(r"udo_protocol\.errors\.(\w+: .*?)(?=\n\s*(?:at |\tat |JVM stacktrace|Driver stacktrace|SQLSTATE)|\Z)", re.DOTALL)


def brief(text: str) -> str | None:
    """The operator's error within Spark's error message; None if the message holds none of our errors."""
    found = _OURS.findall(text)
    return found[-1].rstrip() if found else None


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext`: from now on, a Spark error caused by an operator shows only the operator's error."""
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
