"""A keyed attempt over all slots of a deployment, made as by a Spark task, but without Spark; it ends, or dies between two ENDs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from tests.support.attempt import T0
from udo_interface.lane.lane import Collector, PendingFrame, Sender
from udo_interface.lane.opening import KeyedCall, Request, conversations
from udo_interface.lane.split import SplitExchange
from udo_interface.store.spark_partitions import partition_of
from udo_interface.store.store import SessionStore, StoreLocation
from udo_interface.store.store_lane import StoreLane
from udo_protocol.certificates import Tls
from udo_protocol.formats.schema import GROUP_COLUMN
from udo_protocol.queue.frame import Kind

KEY_GROUPS = 128
Lanes = list[tuple[Sender, Collector]]


class Job:
    """The epochs of one query, on a single partition by default. Each attempt gets a higher number. `store`: that of its state."""

    def __init__(
        self,
        node: str,
        deployment: str = "d",
        session: str = "q",
        *,
        times: bool = False,
        tls: Tls | None = None,
        store: Path | None = None,
    ) -> None:
        self._tls, self.store, self.wait_s = tls, store, 0.0
        self.node, self._deployment, self._session, self._attempts = node, deployment, session, 0
        columns = [("a", pa.int64()), ("t", pa.timestamp("us"))] if times else [("a", pa.int64())]
        self._sent = pa.schema([*columns, (GROUP_COLUMN, pa.int32())])
        self._answers = pa.schema([("b", pa.int64())])
        self.run, self.plan = "r1", 1

    def restart(self) -> None:
        """Start the query again, as a newer run."""
        self.plan += 1
        self.run = f"r{self.plan}"

    def request(self, epoch: int, partition: int = 0, partitions: int = 1, **keyed: Any) -> Request:
        """A task's request."""
        self._attempts += 1
        groups = tuple(g for g in range(KEY_GROUPS) if self.partition_of(g, partitions) == partition)
        call = KeyedCall(self.run, "c", groups, plan=self.plan, **{"stored": self.store is not None, **keyed})
        return Request(self._deployment, self._session, partition, self._attempts, epoch, keyed=call)

    def partition_of(self, key: int, partitions: int) -> int:
        """The partition that answers for a key: with a store the one that Spark takes, else one that is easy to compute."""
        group = key % KEY_GROUPS
        return group % partitions if self.store is None else partition_of(group, partitions)

    def batch(self, keys: Sequence[int], second: float = 0.0) -> pa.RecordBatch:
        """Events of these keys, all at that second since T0 if events have a time."""
        columns: list[Any] = [pa.array(keys, pa.int64()), pa.array([k % KEY_GROUPS for k in keys], pa.int32())]
        if len(self._sent) > len(columns):
            columns.insert(1, pa.array([T0 + dt.timedelta(seconds=second)] * len(keys), pa.timestamp("us")))
        return pa.RecordBatch.from_arrays(columns, schema=self._sent)

    def epoch(self, epoch: int, batches: Iterable[Sequence[int]], second: float = 0.0, **where: int) -> list[int]:
        """Run a whole attempt; return all answers, those of its timers last."""
        with self._attempt(epoch, batches, second, **where) as (_, answers):
            return [b for _, answer in answers for b in answer.column(0).to_pylist()]

    def is_cut_short(self, epoch: int, batches: Iterable[Sequence[int]], between: Callable[[], None]) -> None:
        """Run an attempt that a limit cuts short, and call `between` between the ENDs for its first two slots."""
        with self._attempt(epoch, batches, window=1) as (lanes, answers):
            sender, calls = lanes[1][0], iter([between])
            push_end = sender.push_end

            def second_end(**fields: Any) -> None:
                for call in calls:
                    call()
                push_end(**fields)

            sender.push_end = second_end  # type: ignore[method-assign]
            next(answers)
            answers.close()

    @contextmanager
    def _attempt(
        self, epoch: int, batches: Iterable[Sequence[int]], second: float = 0.0, window: int = 0, **where: int
    ) -> Iterator[tuple[Lanes, Generator[tuple[PendingFrame, pa.RecordBatch]]]]:
        """The lanes of an attempt, and a generator of its answers."""
        with conversations(self.node, self.request(epoch, **where), self._sent, self._answers, self.wait_s, self._tls) as (lanes, opened):
            window = window or opened.place.window_frames
            exchange = SplitExchange(lanes, opened.group_slots or (0,), window, open_lane=opened.open_lane)
            answers = exchange.run((self.batch(keys, second), None) for keys in batches)
            if self.store is not None:
                store = SessionStore(StoreLocation(str(self.store), (("a", "int64"),)), self._deployment, self._session)
                assert opened.stamp is not None
                answers = StoreLane(store, exchange, opened.place, opened.stamp, where.get("partitions", 1), self.plan).around(answers)
            yield lanes, cast("Generator[tuple[PendingFrame, pa.RecordBatch]]", answers)

    def forges(self, epoch: int, kind: Kind, groups: Sequence[int]) -> None:
        """Send the first slot a frame of this kind in a new attempt."""
        with conversations(self.node, self.request(epoch), self._sent, self._answers) as (lanes, _):
            sender, collector = lanes[0]
            sender.push_control(kind, groups=groups)
            sender.settle()
            while collector.number < sender.number:
                collector.wait()

    def dies(self, epoch: int, batches: Iterable[Sequence[int]], ended: Iterable[int], **where: int) -> None:
        """Run an attempt that sends all its events, and dies once these slots have answered its END, which the others never get."""
        with conversations(self.node, self.request(epoch, **where), self._sent, self._answers, self.wait_s, self._tls) as (lanes, opened):
            exchange = SplitExchange(lanes, opened.group_slots, opened.place.window_frames)
            for keys in batches:
                exchange._send(self.batch(keys), None)
            for _ in exchange._drain(0):
                pass
            for slot in ended:
                sender, collector = lanes[slot]
                sender.push_end()
                sender.settle()
                while collector.number < sender.number:
                    collector.wait()
