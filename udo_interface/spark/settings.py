"""Spark settings that concern a call: those that hold results back, those that are refused, and the one that a keyed call changes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from udo_protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.conf import RuntimeConfig

# Real-time mode takes operators only with its allow list off: the sign that low latency is wanted.
REAL_TIME_CHECK = "spark.sql.streaming.realTimeMode.allowlistCheck"
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


def check_python_path(conf: Callable[[str, str], str | None], streaming: bool) -> None:
    """Warn, once per application, that real-time mode holds back the answers of operators on the Python path."""
    if streaming and not is_true(conf, REAL_TIME_CHECK, "true"):
        _warn(
            conf("spark.app.id", "") or "",
            "in real-time mode Spark sends events to Python when a batch is full (spark.sql.execution.arrow.maxRecordsPerBatch) or the "
            "mode's own batch ends, and answers wait for that; on the JVM path they do not",
        )


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


@functools.lru_cache(maxsize=64)
def _warn(app: str, text: str) -> None:
    warnings.warn(text, DelayedResults, stacklevel=5)
