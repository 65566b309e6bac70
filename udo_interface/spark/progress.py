"""Refuses asynchronous progress tracking in a streaming query with a keyed call, before its first event.

Such a query writes offsets now and then, not with every micro-batch. After a restart it runs the events of several epochs as one epoch,
under the last one's number, and these events would count twice. Spark refuses the option for its own stateful operators, but treats Python
operators as stateless. The option belongs to the query's writer, which comes after the call, so a listener checks it when the query
starts, in the query's own thread: every task of the query can read the local property that the listener sets there.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from udo_protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

PROPERTY = "udo.asyncProgressTracking"
# This class also runs real-time mode, in which nobody has shown yet that a keyed stream is exact.
_EXECUTION = "AsyncProgressTrackingMicroBatchExecution"
_watched: weakref.WeakSet[SparkSession] = weakref.WeakSet()
log = logging.getLogger(__name__)


class _Listener:
    """Called by Spark's JVM; the methods have the names that its interface requires."""

    def __init__(self, session: SparkSession) -> None:
        self._context, self._shared = session.sparkContext, session._jsparkSession.sharedState()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        try:
            self._context.setLocalProperty(PROPERTY, "true" if _asynchronous(self._shared, event.id()) else None)
        except Exception:  # in a Spark that keeps its queries elsewhere; Spark would drop the exception
            log.exception("cannot determine whether the query tracks its progress asynchronously; with a keyed call it must not")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def watch(session: SparkSession) -> None:
    """Let the tasks of the session's queries know from now on whether their query tracks its progress asynchronously."""
    if not hasattr(session, "_jsparkSession") or session in _watched:  # Spark Connect has no JVM on this side
        return
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = session.sparkContext._gateway
    ensure_callback_server_started(gateway)
    listener = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(_Listener(session))
    session._jsparkSession.streams().addListener(listener)
    _watched.add(session)


def require_synchronous_query(session: SparkSession, query: str, what: str) -> None:
    """In foreachBatch, on the driver: UsageError if the query tracks its progress asynchronously."""
    uuid = session.sparkContext._gateway.jvm.java.util.UUID.fromString(query)
    if _asynchronous(session._jsparkSession.sharedState(), uuid):
        raise _refusal(what)


def require_synchronous(context: TaskContext, what: str, *, marked: bool) -> None:
    """In a task: UsageError if its query tracks its progress asynchronously; `marked`: its partition's mark says so."""
    if marked or context.getLocalProperty(PROPERTY) == "true":
        raise _refusal(what)


def _refusal(what: str) -> UsageError:
    return UsageError(
        f"{what} keeps state, and this query was started with asyncProgressTrackingEnabled: a restart would run several of its epochs "
        "as one, and their events would count twice. Start it without that option (and not in real-time mode)"
    )


def _asynchronous(shared: Any, query: Any) -> bool:
    execution = shared.activeStreamingQueries().get(query)
    return execution is not None and execution.getClass().getSimpleName() == _EXECUTION
