"""Python's debugger for a replayed operator: stops at its breakpoints and, on request, where it raises. Never part of an instance."""

from __future__ import annotations

import bdb
import pdb
import sys
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any

from udo_runtime.failure import PassedOn, ProcessingError, own_frames


class Quit(PassedOn):
    """Raised when `q` was typed, to end the replay."""


class Debugger(pdb.Pdb):
    """Pdb whose `quit` ends the replay, wherever the operator is."""

    def do_quit(self, arg: str) -> bool:
        """End the replay."""
        raise Quit

    do_q = do_exit = do_EOF = do_quit


class Watch:
    """Stops at breakpoints while `armed`; `post_mortem` also opens the debugger where the operator raises."""

    def __init__(self, *, post_mortem: bool) -> None:
        self.armed = True
        self._post_mortem = post_mortem
        self._opened: ProcessingError | None = None
        sys.breakpointhook = self._breakpoint

    def _breakpoint(self, *_: Any, **__: Any) -> None:
        if self.armed:
            Debugger().set_trace(sys._getframe(1))

    def __call__(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to run under the debugger."""

        @wraps(run)
        def watched(*args: Any) -> Any:
            try:
                return run(*args)
            except ProcessingError as e:
                if isinstance(e.__cause__, bdb.BdbQuit):  # from a pdb that the operator made itself
                    raise Quit from None
                if self._post_mortem and self.armed and e.__cause__ is not None and e is not self._opened:
                    self._opened = e  # the code for retries may raise it again
                    self._open(e, own_frames(e.__cause__))
                raise

        return watched

    def _open(self, error: ProcessingError, tb: TracebackType | None) -> None:
        print(f"\n{error}" + (f"\nthe event: {error.event}" if error.event else ""))
        debugger = Debugger()
        debugger.reset()
        debugger.interaction(None, tb)
