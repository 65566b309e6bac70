"""Keyed frames for an operator in a process of its own: the touched keys' states are sent with the events, and return with the answer.

Nothing of a session stays in that process. Labels, undo, timers, expirations and checkpoints are those of any keyed operator. The
differences: a frame is one call, and states stay bytes: they are sent as stored, and stored as returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from udo_protocol.errors import ProtocolError
from udo_protocol.formats.body import validated
from udo_protocol.formats.state_types import StateTypes
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime.child.host import Child, Failed, Lost
from udo_runtime.child.keys import Changes, StoredKeys, changes
from udo_runtime.child.packed import apart, together
from udo_runtime.child.wire import INDEX, TIMES, Received
from udo_runtime.execution.bad_events import BadEvent, again, bad_row
from udo_runtime.execution.distinct_keys import distinct
from udo_runtime.execution.gathered import GatheredAnswers, empty, joined
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedProcessor, bad_timer
from udo_runtime.execution.timers import Due, KeyedContext
from udo_runtime.execution.typed import require_types
from udo_runtime.failure import ProcessingError, event_text, explained
from udo_runtime.sdk.api import Operator
from udo_runtime.state.codec import EMPTY, EXPIRY, pack, unpack, unpack_key
from udo_runtime.state.session import Session
from udo_runtime.state.snapshot import Snapshot

# Bytes of a request to migrate states: large enough that the round trip costs nothing, far below the bound of a message.
_MIGRATED_BYTES = 8 << 20
Outcome: TypeAlias = tuple[pa.RecordBatch, list[BadEvent]]  # the answer, and the bad events


class OneCall(NamedTuple):
    """One event or one due timer: a function for its answer, and one that turns it into a bad event."""

    run: Callable[[], pa.RecordBatch]
    bad: Callable[[ProcessingError], BadEvent]


class ChildOperator(Operator):
    """An operator in a process of its own."""

    def __init__(self, child: Child, output: pa.Schema, types: StateTypes | None = None) -> None:
        self._child, self._output, self._types = child, output, types

    def events(self, ctx: KeyedContext, batch: pa.RecordBatch, index: pa.Array, keys: StoredKeys) -> pa.RecordBatch:
        """The answer to events; `index` gives the key of each. Changes states and timers of these keys."""
        request = pb.Message(data=pb.Data(watermark_us=ctx._watermark_us))
        rows = pa.RecordBatch.from_arrays([index], schema=INDEX)
        try:
            reply = self._child.ask(request, [(pb.Part.EVENTS, batch), (pb.Part.INDEX, rows), (pb.Part.KEYS, keys.table())])
        except Failed as e:
            e.name_event(batch)
            raise
        return self._take(ctx, reply, keys)

    def timers(self, ctx: KeyedContext, due: Sequence[Due], index: list[int], keys: StoredKeys) -> pa.RecordBatch:
        """The answer to timers, in this order; `index` gives the key of each."""
        assert ctx._watermark_us is not None, "timers fire by a watermark"
        request = pb.Message(timers=pb.Timers(watermark_us=ctx._watermark_us))
        times = pa.RecordBatch.from_arrays([pa.array(index, pa.int32()), pa.array([at for at, *_ in due], pa.int64())], schema=TIMES)
        try:
            reply = self._child.ask(request, [(pb.Part.DUE, times), (pb.Part.KEYS, keys.table())])
        except Failed as e:
            if e.row is not None and e.row < len(due):
                e.event = bad_timer(e.row, due[e.row], e).event
            raise
        return self._take(ctx, reply, keys)

    def migrate(self, old: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Migrate one key's state."""
        return unpack(self.migrate_all([None], [pack(old)], from_version)[0])  # type: ignore[no-any-return]

    def migrate_all(self, keys: Sequence[Any], stored: Sequence[bytes], from_version: int) -> list[bytes]:
        """Migrate stored states of another version, in requests of bounded size."""
        made: list[bytes] = []
        while len(made) < len(stored):
            first, size, last = len(made), 0, len(made)
            while last < len(stored) and (last == first or size + len(stored[last]) <= _MIGRATED_BYTES):
                size, last = size + len(stored[last]), last + 1
            made += self._migrated(list(keys[first:last]), list(stored[first:last]), from_version)
        return made

    def _migrated(self, keys: list[Any], stored: list[bytes], from_version: int) -> list[bytes]:
        asked = StoredKeys(keys, [0] * len(keys), list(stored))
        try:
            reply = self._child.ask(pb.Message(migrate=pb.Migrate(from_version=from_version)), [(pb.Part.KEYS, asked.table())])
        except Failed as e:
            row = e.row if e.row is not None and e.row < len(keys) else None
            event = "" if row is None else event_text({"key": keys[row], "state": unpack(stored[row])})
            raise ProcessingError(f"migrate() from state version {from_version}: {e}", e.traceback, event) from e
        try:
            found = changes(reply, len(keys))
            states = {row: state for row, state, _ in found.states}
            if len(states) != len(keys):
                raise ProtocolError(f"migrate: expected {len(keys)} states, got {len(states)}")
        except ProtocolError as e:
            raise self._child.blame(e) from e
        self._require_types(found)
        return [together(states[row], apart(was)[1]) or EMPTY for row, was in enumerate(stored)]

    def _require_types(self, found: Changes) -> None:
        """Raise ProcessingError for a state whose types differ from those that the manifest declares."""
        if self._types is not None:
            require_types(self._types, (unpack(state) for _, state, _ in found.states if state))

    def _take(self, ctx: KeyedContext, reply: Received, keys: StoredKeys) -> pa.RecordBatch:
        """Validate the reply, then apply its changes to states and timers; returns the answer."""
        try:
            if (kind := reply.message.WhichOneof("kind")) != "answer":
                raise ProtocolError(f"expected an Answer, got {kind}")
            answer = reply.table(pb.Part.ROWS, self._output)
            found: Changes = changes(reply, len(keys.values))
        except ProtocolError as e:
            raise self._child.blame(e) from e
        self._require_types(found)
        keys.change(ctx, found)
        return empty(self._output) if answer is None else answer


class ChildKeyedProcessor(KeyedProcessor):
    """A KeyedProcessor for an operator in a process of its own."""

    _operator: ChildOperator

    def _plain(self, session: Session, batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
        try:
            columns = self._key_columns(batch)
            validated(batch)  # also its text, which was not checked before: no operator may get invalid UTF-8
            index, values, first = distinct(columns)
            keys = StoredKeys.of(session.groups, values, numbers.take(first).to_pylist())
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
            raise ProcessingError(explained(e)) from e
        return self._operator.events(self._ctx, batch, index, keys)

    def _tolerant(self, session: Session, batch: pa.RecordBatch, numbers: pa.Array, policy: Policy) -> Outcome:
        whole = partial(self._plain, session)

        def unit(row: int) -> OneCall:
            run = partial(whole, batch.slice(row, 1), numbers.slice(row, 1))
            return OneCall(run, lambda e: bad_row(batch, row, e, numbers[row].as_py()))

        return self._by_policy(partial(whole, batch, numbers), map(unit, range(batch.num_rows)), policy)

    def _fired(self, due: list[Due]) -> Outcome:
        def unit(row: int) -> OneCall:
            return OneCall(partial(self._all, [due[row]]), lambda e: bad_timer(row, due[row], e))

        return self._by_policy(partial(self._all, due), map(unit, range(len(due))), self.policy)

    def _by_policy(self, whole: Callable[[], pa.RecordBatch], units: Iterable[OneCall], policy: Policy) -> Outcome:
        """The answer, and the bad events. A failed call has changed nothing, since changes come with the answer."""
        try:
            try:
                return whole(), []
            except ProcessingError as e:
                if policy.plain or _final(e):
                    raise
                return again(whole, policy.retries, e, policy.note), []
        except ProcessingError as e:
            if not policy.dead_letter or _final(e):
                raise
        good, bad = GatheredAnswers(self._output), list[BadEvent]()
        for unit in units:
            try:
                answer = unit.run()
            except ProcessingError as e:
                if _final(e):
                    raise
                bad.append(unit.bad(e))
            else:
                good.add(answer)
        return good.batch(), bad

    def _all(self, due: Sequence[Due]) -> pa.RecordBatch:
        """The answer to timers and expirations, in order; after a failure none of them has changed anything."""
        ctx, groups = self._ctx, self._ctx._groups
        before = {(n, packed): groups[n].values.get(unpack_key(packed)) for _, _, n, packed in due}
        with self._journaled() as journal:
            timers = Snapshot(groups, journal, [])
            try:
                return joined([part for some in _runs(due) for part in self._run(ctx, some)], self._output)
            except ProcessingError:
                timers.restore()
                for (n, packed), state in before.items():
                    groups[n].replace({unpack_key(packed): state})
                raise

    def _run(self, ctx: KeyedContext, due: Sequence[Due]) -> Iterator[pa.RecordBatch]:
        """Run the timers in one call, then the expirations."""
        timers = [d for d in due if d[1] != EXPIRY]
        if timers:
            places = {packed: (row, n) for row, (packed, n) in enumerate({packed: n for _, _, n, packed in timers}.items())}
            values, numbers = [unpack_key(packed) for packed in places], [n for _, n in places.values()]
            yield self._operator.timers(
                ctx, timers, [places[packed][0] for *_, packed in timers], StoredKeys.of(ctx._groups, values, numbers)
            )
        for at_us, kind, n, packed in due:
            if kind == EXPIRY:
                StoredKeys.of(ctx._groups, [unpack_key(packed)], [n]).expire(ctx, at_us)


def _final(e: ProcessingError) -> bool:
    """Whether the process hung or broke the protocol: the batch is then not tried event by event."""
    return isinstance(e, Lost) and e.final


def _runs(due: Sequence[Due]) -> Iterator[list[Due]]:
    """Split `due` into as few parts as possible in which no key has a timer after its expiration, so that timers can go first."""
    run: list[Due] = []
    expiring: set[bytes] = set()
    for timer in due:
        if timer[3] in expiring:
            yield run
            run, expiring = [], set()
        if timer[1] == EXPIRY:
            expiring.add(timer[3])
        run.append(timer)
    yield run
