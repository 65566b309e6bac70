"""The policy of a keyed deployment: a frame that fails is taken back, tried again, then run event by event without its bad ones.

Only under a policy other than plain `fail` does a frame pay for its savepoint: its keys are packed before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from udo_runtime.execution.bad_events import BadEvent, again, joined
from udo_runtime.execution.failure import ProcessingError, rows_to_batch
from udo_runtime.state.groups import Group
from udo_runtime.state.savepoint import Savepoint, Timed

Answers = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Policy:
    """What becomes of a frame that user code fails on: given to it `retries` times more, then failed or freed of bad events."""

    dead_letter: bool = False
    retries: int = 0
    note: Callable[[], None] = lambda: None  # a retry

    @property
    def plain(self) -> bool:
        """`fail` at once: nothing is ever taken back within an attempt."""
        return not self.dead_letter and not self.retries


@dataclass
class ResentLetters:
    """Dead letters that are sent again with an END: the events, their key groups, and then which of them failed, by row."""

    events: pa.RecordBatch
    groups: list[int]
    failed: dict[int, BadEvent] = field(default_factory=dict)


@dataclass(frozen=True)
class Unit:
    """One event, or one due timer: what runs it, the state it may change, and itself as a bad event."""

    state: dict[str, Any]
    run: Callable[[], Answers]
    bad: Callable[[ProcessingError], BadEvent]


@dataclass(frozen=True)
class UserCalls:
    """The events of a frame, or the timers due at its END: `whole` runs all, `units` are they one by one."""

    groups: dict[int, Group]
    journal: list[Timed]
    states: Sequence[dict[str, Any]]
    whole: Callable[[], Answers]
    units: Callable[[], Iterable[Unit]]

    def savepoint(self, states: Iterable[dict[str, Any]]) -> Savepoint:
        """Of these states."""
        return Savepoint(self.groups, self.journal, states)


def run(frame: UserCalls, policy: Policy, output: pa.Schema) -> tuple[pa.RecordBatch, list[BadEvent]]:
    """The answer to a frame, and its bad events, which have left no trace; ProcessingError under `fail`."""
    before = frame.savepoint(frame.states)  # what an earlier frame left has been looked at then

    def whole() -> pa.RecordBatch:
        try:
            answer = rows_to_batch(list(frame.whole()), output)
            _storable(before)
        except ProcessingError:
            before.restore()
            raise
        return answer

    try:
        return whole(), []
    except ProcessingError as e:
        error = e
    try:
        return again(whole, policy.retries, error, policy.note), []
    except ProcessingError:
        if not policy.dead_letter:
            raise
    try:
        parts, bad = _singly(frame, None)
        return rows_to_batch([a for part in parts for a in part], output), bad
    except ProcessingError:  # a value of the wrong type in some answer: now each is looked at
        before.restore()
    parts, bad = _singly(frame, output)
    return joined([rows_to_batch(list(part), output) for part in parts], output), bad


def _singly(frame: UserCalls, output: pa.Schema | None) -> tuple[list[Answers], list[BadEvent]]:
    """The answers to each good one, and the bad ones; with `output`, one whose answer does not fit it is bad, too."""
    good: list[Answers] = []
    bad: list[BadEvent] = []
    for unit in frame.units():
        before = frame.savepoint([unit.state])
        try:
            answers = unit.run()
            if output is not None:
                rows_to_batch(list(answers), output)
            _storable(before)
            good.append(answers)
        except ProcessingError as e:
            before.restore()
            bad.append(unit.bad(e))
    return good, bad


def _storable(point: Savepoint) -> None:
    try:
        point.check()
    except (TypeError, ValueError, OverflowError) as e:  # of another type, text that is no Unicode, a number beyond 64 bits
        raise ProcessingError(str(e)) from e
