"""The middle of the demo: feed the query, watch it, update the operator at the planned row, stop when all rows are answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from udo_cli.demo.probe import Probe
from udo_cli.demo.source import Feeder
from udo_cli.platform import remote
from udo_cli.text.rates import Rates
from udo_protocol.errors import OperatorError, UdoError, WaitTimeout
from udo_protocol.node.api import NodeClient
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOOK_S = 0.05
_SLOTS_S = 0.5
# A query that commits nothing for this long is stuck.
STALL_TIMEOUT_S = 90.0
UPDATE_TIMEOUT_S = 60.0


@dataclass
class LiveFigures:
    """The present figures of the stream, which the live table shows."""

    rows: int
    update_at: int
    fed: int = 0
    committed: int = 0
    answered: int = 0  # rows `fraud` has answered, also of the micro-batch under way
    batches: int = 0
    durations: list[dict[str, int]] = field(default_factory=list)  # Spark's `durationMs` of each micro-batch
    elapsed_s: float = 0.0
    slots: list[dict[str, Any]] = field(default_factory=list)
    update: str = ""
    requested_row: int = 0
    took_ms: float = 0.0
    update_began: float = 0.0
    update_ended: float = 0.0


@contextmanager
def stopping(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query at the end of the block, whatever happens; errors of a Spark that is gone already are ignored."""
    try:
        yield query
    finally:
        try:
            query.stop()
        except Exception as e:  # py4j has many errors for an interrupted connection
            if isinstance(e, UdoError):
                raise


class Stream:
    """One run of the query to its end."""

    def __init__(self, query: StreamingQuery, feeder: Feeder, node: NodeClient, api: Registry, watched: LiveFigures, probe: Probe) -> None:
        self._query, self._feeder, self._node, self._api, self._probe = query, feeder, node, api, probe
        self.watched = watched
        self._rates = Rates()
        self._seen: set[int] = set()

    def run(self, show: Callable[[LiveFigures], None]) -> LiveFigures:
        """Run until every row is committed and the update is over. OperatorError if the query or the update fails."""
        w = self.watched
        started = moved = time.monotonic()
        looked = 0.0
        update: Future[float] | None = None
        with ThreadPoolExecutor(1, "update") as background:
            while w.committed < w.rows or update is None or not update.done():
                now = time.monotonic()
                if w.committed < w.rows:  # the end of an update that takes longer is not part of it
                    w.elapsed_s = now - started
                self._feeder.feed(now - started)
                w.fed = self._feeder.rows
                before = w.committed
                self._progress()
                if w.committed > before or not w.answered:
                    moved = now
                if now - looked >= _SLOTS_S or update is None:
                    self._slots(now)
                    looked = now
                if update is None and max(w.answered, w.committed) >= w.update_at:
                    update = background.submit(self._update)
                if now - moved > STALL_TIMEOUT_S:
                    raise WaitTimeout(f"the query has committed nothing for {STALL_TIMEOUT_S:.0f} s at row {w.committed:,} of {w.rows:,}")
                show(w)
                self._query.awaitTermination(_LOOK_S)
            w.took_ms = update.result()
        return w

    def _progress(self) -> None:
        if (error := self._query.exception()) is not None:
            raise OperatorError(f"the query failed at row {self.watched.committed:,}: {_cause(str(error))}")
        for progress in self._query.recentProgress:
            if progress["batchId"] not in self._seen and progress["numInputRows"]:
                self._seen.add(progress["batchId"])
                self.watched.committed += progress["numInputRows"]
                self.watched.batches += 1
                self.watched.durations.append(dict(progress["durationMs"]))

    def _slots(self, now: float) -> None:
        self.watched.slots = self._rates.look(self._node.stats(), now)
        fraud = [s["events_out"] for s in self.watched.slots if s["deployment"] == "fraud"]
        # Some of these events are the probe's, one of which may be on its way back; a new version counts from zero.
        probed = self._probe.answered + 1
        self.watched.answered = max([self.watched.answered, self.watched.committed, *(n - probed for n in fraud)])

    def _update(self) -> float:
        w = self.watched
        w.requested_row, w.update_began = max(w.answered, w.committed), time.monotonic()

        def tell(text: str) -> None:
            w.update = text.strip()

        done = remote.follow(self._api.update("fraud", "2", UPDATE_TIMEOUT_S), tell)
        w.update_ended = time.monotonic()
        w.update = f"fraud@2 answers after {done['at_ms']:.0f} ms"
        return float(done["at_ms"])


def _cause(text: str) -> str:
    """The part of a streaming exception that names our error, instead of Spark's plan and Java's stack."""
    lines = [line for line in text.splitlines() if "udo_protocol.errors." in line or "Error:" in line]
    return (lines[-1] if lines else text.splitlines()[0] if text else "no reason given").strip()[:2000]
