"""The policy of a keyed deployment: a frame that fails is undone, repeated, then processed event by event without its bad events.

Every policy except plain `fail` costs a snapshot: the states of a frame's keys are packed before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from udo_runtime.execution.bad_events import BadEvent, again
from udo_runtime.execution.gathered import GatheredAnswers
from udo_runtime.failure import ProcessingError
from udo_runtime.state.groups import Group
from udo_runtime.state.snapshot import Snapshot, Timed


@dataclass(frozen=True)
class Policy:
    """The treatment of a frame that user code fails on: repeat it `retries` times, then fail it, or process it without its bad events."""

    dead_letter: bool = False
    retries: int = 0
    note: Callable[[], None] = lambda: None  # called for each retry

    @property
    def plain(self) -> bool:
        """Whether such a frame fails at once, so that nothing need be undone within an attempt."""
        return not self.dead_letter and not self.retries


@dataclass
class ResentLetters:
    """Dead letters that are processed again with an END: their events and key groups; `failed` is an output: row -> the bad event."""

    events: pa.RecordBatch
    groups: list[int]
    failed: dict[int, BadEvent] = field(default_factory=dict)


@dataclass(frozen=True)
class Unit:
    """One event or one due timer: the state that it may change, a function that processes it, and one that makes it a bad event."""

    state: dict[str, Any]
    run: Callable[[], GatheredAnswers]
    bad: Callable[[ProcessingError], BadEvent]


@dataclass(frozen=True)
class UserCalls:
    """The events of a frame, or the timers due at its END. `whole` processes all of them, `units` returns the single ones."""

    groups: dict[int, Group]
    journal: list[Timed]
    states: Sequence[dict[str, Any]]
    whole: Callable[[], pa.RecordBatch]
    units: Callable[[], Iterable[Unit]]

    def snapshot(self, states: Iterable[dict[str, Any]]) -> Snapshot:
        """A snapshot of these states and of the timers."""
        return Snapshot(self.groups, self.journal, states)


def run(frame: UserCalls, policy: Policy, output: pa.Schema) -> tuple[pa.RecordBatch, list[BadEvent]]:
    """The answer to a frame, and its bad events, whose changes are undone; ProcessingError under `fail`."""
    before = frame.snapshot(frame.states)  # states left by earlier frames have been checked

    def whole() -> pa.RecordBatch:
        try:
            answer = frame.whole()
            require_storable(before)
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
        return _singly(frame, output, each=False)
    except ProcessingError:  # an answer has a value of the wrong type: check each answer
        before.restore()
    return _singly(frame, output, each=True)


def _singly(frame: UserCalls, output: pa.Schema, *, each: bool) -> tuple[pa.RecordBatch, list[BadEvent]]:
    """The answers to the good units, and the bad events. `each`: a unit whose answers do not fit the schema is bad too."""
    good, bad = GatheredAnswers(output), list[BadEvent]()
    for unit in frame.units():
        before = frame.snapshot([unit.state])
        try:
            answers = unit.run()
            if each:
                answers.pack()
            require_storable(before)
        except ProcessingError as e:
            before.restore()
            bad.append(unit.bad(e))
        else:
            good.follow(answers)
    return good.batch(), bad


def require_storable(before: Snapshot) -> None:
    """Raise ProcessingError if one of the snapshot's states now contains a value that cannot be stored."""
    try:
        before.check()
    except (TypeError, ValueError, OverflowError) as e:  # an unsupported type, invalid Unicode, a number beyond 64 bits
        raise ProcessingError(str(e)) from e
