"""The code inside a Spark task: reads the task's context, opens a lane, exchanges batches, closes the lane.

Objects here are pickled by the driver and carry plain values only; everything that connects is made in the task.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row

from udo_interface.discovery import certificates, node_address, node_wait_s
from udo_interface.lane.columns import Picker, beside
from udo_interface.lane.lane import Collector, PendingFrame, Sender, exchange
from udo_interface.lane.opening import KeyedCall, Opened, Request, conversations
from udo_interface.lane.place import Place
from udo_interface.lane.split import SplitExchange
from udo_interface.spark.evaluation import Evaluation, marked, of_task, required, run_of_task, told_by_rows
from udo_interface.spark.held import held
from udo_interface.spark.progress import require_synchronous
from udo_interface.store.spark_partitions import groups_of
from udo_interface.store.store import SessionStore, StoreLocation
from udo_interface.store.store_lane import StoreLane
from udo_protocol.errors import OperatorError, SchemaError, UdoError, UsageError
from udo_protocol.formats.rows import as_values, has_struct, named
from udo_protocol.formats.schema import GROUP_COLUMN, from_ipc
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.state.dead_letters import DEAD_LETTER

# Rows gathered into one frame where Spark hands over single rows; Spark's own default for Arrow batches.
ROWS_PER_FRAME = 10_000
T = TypeVar("T")
_GROUP = pa.field(GROUP_COLUMN, pa.int32())


@dataclass(frozen=True)
class Keys:
    """The layout of a keyed call: the number of its partitions, and the id of the call in the query's plan."""

    partitions: int
    call: str
    start_empty: bool = False
    plan: int = 0  # its number, from the registry: runs of a query are ordered by it
    stored: StoreLocation | None = None  # a second store of its state
    key_groups: int = KEY_GROUPS
    marked: bool = False  # each partition begins with rows that say which one it is
    lasting: bool = False  # the call was made on a stream, or in foreachBatch


@dataclass(frozen=True)
class Task:
    """One call of an operator in a query; `input`, `output` and `delivered` are Arrow IPC schemas."""

    deployment: str
    what: str
    node: str | None
    app: str
    uid: str
    pin_epoch: bool
    window: int | None
    keep: tuple[str, ...]
    keyed: Keys | None
    input: bytes
    output: bytes
    delivered: bytes
    node_wait: str | None = None
    tls: str | None = None  # folder of certificates on the task's host
    never_null: tuple[str, ...] = ()  # columns of `keep` that hold no nulls
    columns: tuple[str, ...] = ()  # the batches' real column names, where Spark was given other names

    def sent(self) -> pa.Schema:
        """The schema of the events sent to the operator: its input columns, and for a keyed call the key group."""
        schema = from_ipc(self.input)
        return schema.append(_GROUP) if self.keyed else schema

    def named(self) -> NamedTask:
        """`arrow` under the name that Spark's plan and UI show."""
        return NamedTask(self, self.deployment)

    def arrow(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for DataFrame.mapInArrow: record batches in, record batches of the `delivered` columns out."""
        return _plainly(self._whole(batches))

    def _whole(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context, of = TaskContext.get(), None
        if self.columns:
            batches = (batch.rename_columns(list(self.columns)) for batch in batches)
        if self.keyed and self.keyed.marked:
            of, batches = marked(batches)
        elif context is not None:
            of = of_task(context)
            if self.keyed:
                of, batches = self._unmarked(self.keyed, of, batches)
                if of is None:
                    return
        answers = self._delivered(batches, of)
        yield from held(answers) if self.keyed and of and of.query else answers

    def _unmarked(
        self, keys: Keys, of: Evaluation, batches: Iterator[pa.RecordBatch]
    ) -> tuple[Evaluation | None, Iterator[pa.RecordBatch]]:
        """Return the evaluation of this partition (None if there is nothing to do), and its rows."""
        if keys.lasting and not of.query:
            raise UsageError(
                f"{self.what} keeps state, and Spark does not tell this task which streaming query it works for: another thread than the "
                "query's evaluates the call. Do it in the thread that foreachBatch is called in, or start the other one with "
                "pyspark.inheritable_thread_target"
            )
        if keys.stored is None:
            return told_by_rows(of, batches, keys.partitions, keys.key_groups, self.what)
        return of, required((b for b in batches if b.num_rows), of.partition, keys.partitions, keys.key_groups, self.what)

    def _delivered(self, batches: Iterator[pa.RecordBatch], of: Evaluation | None) -> Iterator[pa.RecordBatch]:
        sent = self.sent()
        pick, deliver = Picker(sent, self.what), Picker(from_ipc(self.delivered), self.what)
        items = ((pick(b), b if self.keep else None) for b in batches if b.num_rows)
        for asked, answer, place in self._exchange(items, sent, of):
            if self.keep and asked.rows + answer.num_rows:
                _one_each(asked, answer, place)
                part = asked.kept.slice(asked.at, asked.rows)
                yield beside(deliver(answer), part, self.keep, self.never_null)
            elif answer.num_rows:
                yield deliver(answer)

    def rows(self, rows: Iterable[Any]) -> Iterator[Row]:
        """The function for rdd.mapPartitions: Rows (or dicts) in, Rows of the output and kept columns out."""
        sent, output = from_ipc(self.input), from_ipc(self.output)
        make = Row(*output.names, *self.keep)
        of = of_task(context) if (context := TaskContext.get()) else None
        for asked, answer, place in _plainly(self._exchange(self._chunks(rows, sent), self.sent(), of)):
            columns = list(map(as_values, answer.columns))
            if self.keep and asked.rows + answer.num_rows:
                _one_each(asked, answer, place)
                columns += [c[asked.at : asked.at + asked.rows] for c in asked.kept]
            yield from itertools.starmap(make, zip(*columns, strict=True))

    def _exchange(
        self, items: Iterator[tuple[pa.RecordBatch, Any]], sent: pa.Schema, of: Evaluation | None
    ) -> Iterator[tuple[PendingFrame, pa.RecordBatch, Place]]:
        first = next(items, None)
        if first is None and not self.keyed:  # nothing to send in this partition
            return
        given = items if first is None else itertools.chain([first], items)
        request = self.request(of)
        wait_s = node_wait_s(self.node_wait)
        tls = certificates(self.tls)
        with conversations(node_address(self.node), request, sent, from_ipc(self.output), wait_s, tls) as (lanes, opened):
            for asked, answer in self._answers(lanes, opened, given):
                yield asked, answer, opened.place

    def _answers(
        self, lanes: list[tuple[Sender, Collector]], opened: Opened, given: Iterator[tuple[pa.RecordBatch, Any]]
    ) -> Iterator[tuple[PendingFrame, pa.RecordBatch]]:
        place, keyed = opened.place, self.keyed
        if keyed is None:
            ((sender, collector),) = lanes
            # Spark takes answers while input still comes: none may wait for an event.
            pipelined = os.environ.get("SPARK_PIPELINED_UDF") == "1"
            return exchange(sender, collector, given, 1 if pipelined else place.window_frames)
        # Also with one slot: there may be more before the attempt ends.
        split = SplitExchange(lanes, opened.group_slots or (0,), place.window_frames, open_lane=opened.open_lane)
        answers = split.run(given)
        if keyed.stored is None:
            return answers
        assert opened.stamp is not None
        store = SessionStore(keyed.stored, self.deployment, place.session)
        return StoreLane(store, split, place, opened.stamp, keyed.partitions, keyed.plan).around(answers)

    def request(self, of: Evaluation | None) -> Request:
        """The lane request of the current task, for the partition of that evaluation."""
        context = TaskContext.get()
        if context is None or of is None:
            return Request(self.deployment, self.app, uid=self.uid, pin_epoch=self.pin_epoch, epoch=0, window=self.window)
        session, keyed = of.session(self.app), None
        if self.keyed:
            require_synchronous(context, self.what, marked=of.asynchronous)
            session = f"{session}.{self.uid}" if self.uid else session
            run = of.run or (run_of_task(context, self.what) if of.query else "")
            # An RDD's partition is one group by itself: its keys occur in no other partition.
            count, there = self.keyed.partitions, self.keyed.key_groups
            if not count and of.partition >= there:
                raise UsageError(
                    f"{self.what} has {there} key groups, and each partition of an RDD is one of them: expected at most {there} "
                    f"partitions, got number {of.partition + 1}. Partition the RDD by the key into fewer (partitionBy), or deploy the "
                    "operator with more (udo deploy --key-groups)"
                )
            groups = groups_of(of.partition, count, there) if count else [of.partition]
            keyed = KeyedCall(
                run,
                self.keyed.call,
                tuple(groups),
                self.keyed.start_empty,
                self.keyed.plan,
                there,
                self.keyed.stored is not None,
                of.since,
            )
        return Request(
            self.deployment,
            session,
            of.partition,
            context.taskAttemptId(),
            of.epoch,
            self.pin_epoch,
            self.uid,
            self.window,
            keyed,
        )

    def _chunks(self, rows: Iterable[Any], sent: pa.Schema) -> Iterator[tuple[pa.RecordBatch, list[list[Any]]]]:
        source = iter(rows)
        partition = context.partitionId() if (context := TaskContext.get()) else 0
        while chunk := list(itertools.islice(source, ROWS_PER_FRAME)):
            columns = self._columns(chunk, [*sent.names, *self.keep])
            arrays = [self._array(column, f) for column, f in zip(columns, sent, strict=False)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=sent)
            if self.keyed:
                batch = batch.append_column(_GROUP, pa.array([partition] * len(chunk), _GROUP.type))
            yield batch, columns[len(sent) :]

    def _columns(self, chunk: list[Any], names: list[str]) -> list[list[Any]]:
        if isinstance(chunk[0], dict):
            rows: list[Any] = chunk
            have = list(chunk[0])
            keys: list[Any] = names
        elif hasattr(chunk[0], "__fields__"):
            have = list(chunk[0].__fields__)
            rows, keys = chunk, [have.index(n) if n in have else n for n in names]
            if any(getattr(r, "__fields__", None) != have for r in rows):
                raise SchemaError(f"{self.what}: Rows of one partition differ in their fields; expected {', '.join(have)} in each")
        else:
            raise UsageError(f"{self.what}: map_partitions takes pyspark.sql.Row or dict, got {type(chunk[0]).__name__}: {chunk[0]!r:.200}")
        if missing := [n for n in names if n not in have]:
            raise SchemaError(f"{self.what}: rows lack {', '.join(missing)}; they have {', '.join(have)}")
        try:
            return [[r[k] for r in rows] for k in keys]
        except (KeyError, IndexError, TypeError) as e:
            raise SchemaError(f"{self.what}: not every row has all of {', '.join(names)}: {e!r}") from e

    def _array(self, given: list[Any], field: pa.Field) -> pa.Array:
        try:
            return pa.array([named(v, field.type) for v in given] if has_struct(field.type) else given, field.type)
        except KeyError as e:
            raise SchemaError(f"{self.what}: column {field.name!r} expects {field.type}: a struct in it has no field {e}") from e
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as e:
            raise SchemaError(f"{self.what}: column {field.name!r} expects {field.type}: {e}") from e


class NamedTask:
    """A task's function for mapInArrow, under the operator's name: Spark's plan shows `__name__`."""

    def __init__(self, task: Task, name: str) -> None:
        self._task, self.__name__ = task, name

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._task.arrow(batches)


def _plainly(answers: Iterator[T]) -> Iterator[T]:
    """Strip our own frames from errors, whose text says everything: Spark shows the whole traceback to its user."""
    try:
        yield from answers
    except UdoError as e:
        raise e.with_traceback(None) from None


def _one_each(asked: PendingFrame, answer: pa.RecordBatch, place: Place) -> None:
    if answer.num_rows < asked.rows and place.policy == DEAD_LETTER:
        raise OperatorError(
            f"{place}: keep= needs exactly one answer per event, but {asked.rows} events got {answer.num_rows} answers. Under this "
            f"deployment's policy {DEAD_LETTER!r} an event that the operator fails on gets none (udo dead ls {place.deployment}): drop "
            "keep= and let the operator return those columns itself, or deploy it with --on-error fail"
        )
    if answer.num_rows != asked.rows:
        raise OperatorError(
            f"{place}: keep= needs exactly one answer per event, but {asked.rows} events got {answer.num_rows} answers; "
            "drop keep=, or let the operator return those columns itself"
        )
