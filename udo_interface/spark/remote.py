"""Spark Connect, where Spark's driver is another process: the errors for calls that would need facts unknown on this side.

The operator's input, its answers and a stream's epochs travel as always: the tasks know their query and its epoch. But this side cannot
see how a query is started, and Spark tells neither query nor epoch to code that runs inside foreachBatch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from udo_interface.spark.settings import is_true
from udo_protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SYNCHRONOUS_SETTING = "spark.udo.synchronousProgress"
# Set by a Connect server for the Python process in which it runs foreachBatch.
_IN_SERVER = "SPARK_CONNECT_LOCAL_URL"


def is_remote(session: Any) -> bool:
    """Whether the session is one of Spark Connect."""
    return not hasattr(session, "_jsparkSession")


def check_keyed(df: DataFrame, what: str) -> None:
    """UsageError where a Connect session could not keep a keyed call's state exactly once."""
    if not is_remote(df.sparkSession):
        return
    if not df.isStreaming:
        if _IN_SERVER in os.environ:
            raise UsageError(
                f"{what} keeps state, and inside of foreachBatch Spark Connect tells a call neither its query nor its epoch: each batch "
                "would begin without state. Call it on the stream, before writeStream, and use its answers in foreachBatch"
            )
        return
    if not is_true(df.sparkSession.conf.get, SYNCHRONOUS_SETTING):
        raise UsageError(
            f"{what} keeps state, so its query must not be started with asyncProgressTrackingEnabled or in real-time mode: a restart would "
            "run several of its epochs as one. With Spark Connect a call cannot see how its query is started. Say that it is not: "
            f"spark.conf.set('{SYNCHRONOUS_SETTING}', 'true')"
        )


def require_rdds(call: str) -> None:
    """UsageError if this process uses Spark Connect, which has no RDDs."""
    session = SparkSession.getActiveSession()
    if session is not None and is_remote(session):
        raise UsageError(f"{call}.map_partitions is for RDDs, and Spark Connect has none: call {call}(df) on a DataFrame")
