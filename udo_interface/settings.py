"""Tells once, by name, which Spark settings would hold an operator's results back."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

from udo_protocol.errors import UsageError

PIPELINED = "spark.python.udf.pipelined.enabled"
BUFFER = "spark.buffer.size"
# Real-time mode takes Python operators only with its allow list off: the sign that low latency is wanted.
REAL_TIME_CHECK = "spark.sql.streaming.realTimeMode.allowlistCheck"
LOW_LATENCY_BYTES = 4096


class DelayedResults(UserWarning):
    """Results will reach Spark later than they are there."""


def check(conf: Callable[[str, str], str | None], streaming: bool) -> None:
    """Warn about settings that hold back a streaming query's results; `conf` looks up a setting with its default.

    Only real-time mode is concerned: a micro-batch's answers are seen when it ends, whatever is set.
    """
    if not streaming or conf(REAL_TIME_CHECK, "true") != "false":
        return
    app = conf("spark.app.id", "") or ""
    if conf(PIPELINED, "false") != "true":
        _warn(app, f"Spark reads an operator's answers only once its input has ended; start the session with {PIPELINED}=true")
    if _bytes(conf(BUFFER, "65536") or "65536") > LOW_LATENCY_BYTES:
        _warn(app, f"batches below {BUFFER} wait in a buffer on their way to the operator; start the session with {BUFFER}=64")


def check_keyed(conf: Callable[[str, str], str | None]) -> None:
    """UsageError for settings under which state could not be kept exactly once."""
    if conf("spark.speculation", "false") == "true":
        raise UsageError("key= needs spark.speculation=false: two running attempts would undo each other's changes")


def _bytes(text: str) -> int:
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    text = text.strip().lower().removesuffix("b")
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text or 0)


@functools.lru_cache(maxsize=64)
def _warn(app: str, text: str) -> None:
    warnings.warn(text, DelayedResults, stacklevel=5)
