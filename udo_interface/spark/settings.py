"""Spark settings that concern a call: those that hold results back, those that are refused, and the one that a keyed call changes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from udo_protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.conf import RuntimeConfig

PIPELINED = "spark.python.udf.pipelined.enabled"
BUFFER = "spark.buffer.size"
# Real-time mode takes Python operators only with its allow list off: the sign that low latency is wanted.
REAL_TIME_CHECK = "spark.sql.streaming.realTimeMode.allowlistCheck"
LOW_LATENCY_BYTES = 4096
# With this setting Spark compares the schema of a Python worker's batches with the declared one.
VALIDATED = "spark.sql.execution.arrow.pyspark.validateSchema.enabled"

# The path of calls on DataFrames without path=: "auto" (the default), the JVM path where possible; "jvm", that or an error; or "python".
PATH = "spark.udo.path"
AUTO, PYTHON, JVM = PATHS = ("auto", "python", "jvm")

_EXCLUDED_RULES = "spark.sql.adaptive.optimizer.excludedRules"
_EMPTY_INPUT_RULE = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"


class DelayedResults(UserWarning):
    """Results will reach Spark later than they are available."""


def is_true(conf: Callable[[str, str], str | None], key: str, default: str = "false") -> bool:
    """Whether a setting is on, as Spark reads it: `SparkConf().set(key, True)` stores "True"."""
    return (conf(key, default) or "").strip().lower() == "true"


def check(conf: Callable[[str, str], str | None], streaming: bool) -> None:
    """Warn about settings that hold back a streaming query's results; `conf` looks up a setting with its default.

    This concerns only real-time mode: a micro-batch's answers are seen when it ends, whatever the settings.
    """
    if not streaming or is_true(conf, REAL_TIME_CHECK, "true"):
        return
    app = conf("spark.app.id", "") or ""
    if not is_true(conf, PIPELINED):
        _warn(app, f"Spark reads an operator's answers only once its input has ended; start the session with {PIPELINED}=true")
    if _bytes(conf(BUFFER, "65536") or "65536") > LOW_LATENCY_BYTES:
        _warn(app, f"batches below {BUFFER} wait in a buffer on their way to the operator; start the session with {BUFFER}=64")


def path(option: str | None, conf: Callable[[str, str], str | None]) -> str:
    """The one of PATHS that a call asks for: its option, the session's setting, else auto. UsageError for anything else."""
    chosen = option or conf(PATH, "") or AUTO
    if chosen not in PATHS:
        raise UsageError(f"{'path=' if option else PATH}: expected {', '.join(PATHS)}, got {chosen!r}")
    return chosen


def check_keyed(conf: Callable[[str, str], str | None]) -> None:
    """UsageError for settings under which state could not be kept exactly once."""
    if is_true(conf, "spark.speculation"):
        raise UsageError("key= needs spark.speculation=false: two running attempts would undo each other's changes")


def keep_empty_stages(conf: RuntimeConfig) -> None:
    """Switch off the rule of adaptive execution by which Spark runs no task of an operator whose input turns out to be empty.

    A micro-batch in which no event reaches a keyed operator is an epoch of the operator all the same: its timers fire, and the next
    epoch follows this one.
    """
    excluded = [rule for rule in (conf.get(_EXCLUDED_RULES, "") or "").split(",") if rule]
    if _EMPTY_INPUT_RULE not in excluded:
        conf.set(_EXCLUDED_RULES, ",".join([*excluded, _EMPTY_INPUT_RULE]))


def _bytes(text: str) -> int:
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    text = text.strip().lower().removesuffix("b")
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text or 0)


@functools.lru_cache(maxsize=64)
def _warn(app: str, text: str) -> None:
    warnings.warn(text, DelayedResults, stacklevel=5)
