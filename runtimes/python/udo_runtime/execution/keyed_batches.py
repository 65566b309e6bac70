"""Keyed frames for a vectorised operator: one call for all events of a frame, with its keys and their states.

The states are the dicts that the session has open, so labels, undo, timers and checkpoints are those of any keyed operator. The difference
is how bad events are found: a frame that fails is undone and halved until single events fail, which are left out. Such an operator is
therefore called for parts of a frame, in order, and the answers to the parts make up the frame's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from udo_protocol.formats.body import validated
from udo_runtime.execution.bad_events import BadEvent, again, bad_row, halved
from udo_runtime.execution.distinct_keys import distinct
from udo_runtime.execution.gathered import joined
from udo_runtime.execution.keyed_bad_events import Policy, require_storable
from udo_runtime.execution.keyed_processor import KeyedConfig, KeyedProcessor
from udo_runtime.execution.timers import KeyedContext
from udo_runtime.failure import ProcessingError, explained
from udo_runtime.sdk.api import Context, Operator
from udo_runtime.sdk.frame_keys import FrameKeys, FrameStates
from udo_runtime.state.session import Session
from udo_runtime.state.snapshot import Snapshot, Timed

# (keys, events, states, context) -> the answer, in the output schema; ProcessingError.
Call: TypeAlias = Callable[[FrameKeys, pa.RecordBatch, FrameStates, KeyedContext], pa.RecordBatch]
# The group number of a context that has no key, such as that of a whole frame.
NO_GROUP = -1


class KeyedBatchProcessor(KeyedProcessor):
    """Runs a vectorised operator over keyed frames."""

    def __init__(self, target: Operator, keyed: KeyedConfig, output: pa.Schema, ctx: Context, call: Call) -> None:
        super().__init__(target, keyed, output, ctx)
        self._call = call

    def _plain(self, session: Session, batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
        answer = self._call(*self._opened(session, batch, numbers), self._ctx)
        return self._nothing if self.on_trial else answer

    def _tolerant(
        self, session: Session, batch: pa.RecordBatch, numbers: pa.Array, policy: Policy
    ) -> tuple[pa.RecordBatch, list[BadEvent]]:
        with self._journaled() as journal:

            def part(first: int, rows: int) -> pa.RecordBatch:
                return self._undoable(session, batch.slice(first, rows), numbers.slice(first, rows), journal)

            def whole() -> pa.RecordBatch:
                return part(0, batch.num_rows)

            try:
                return whole(), []
            except ProcessingError as e:
                error = e
            try:
                return again(whole, policy.retries, error, policy.note), []
            except ProcessingError as e:
                if not policy.dead_letter:
                    raise
                error = e
            good, bad = halved(part, batch.num_rows, error, batch.num_rows)
            return joined(good, self._output), [bad_row(batch, row, e, numbers[row].as_py()) for row, e in bad]

    def _undoable(self, session: Session, batch: pa.RecordBatch, numbers: pa.Array, journal: list[Timed]) -> pa.RecordBatch:
        """The answer to these events; if they fail, their changes are undone."""
        keys, events, states = self._opened(session, batch, numbers)
        before = Snapshot(session.groups, journal, states)
        try:
            answer = self._call(keys, events, states, self._ctx)
            require_storable(before)
        except ProcessingError:
            before.restore()
            raise
        return answer

    def _opened(self, session: Session, batch: pa.RecordBatch, numbers: pa.Array) -> tuple[FrameKeys, pa.RecordBatch, FrameStates]:
        """The keys of these events, opened in their groups."""
        try:
            columns = self._key_columns(batch)
            validated(batch)  # also its text, which was not checked before: no operator may get invalid UTF-8
            index, values, first = distinct(columns)
            column = numbers.take(first).to_pylist()
            session.open(values, column)
        except ProcessingError:
            raise
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
            raise ProcessingError(explained(e)) from e
        states, ctx = [session.states[value] for value in values], self._ctx
        ctx._at(None, NO_GROUP, {})

        def select(number: int) -> KeyedContext:
            ctx._at(values[number], column[number], states[number])
            return ctx

        return FrameKeys(values, index, select), batch, FrameStates(states)
