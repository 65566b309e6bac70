"""One bounded piece of the world to explore: the work Spark has, the faults that may happen, the rules that hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tests.model.rules import Rules
from tests.model.state import Budget, Task

Rows = tuple[tuple[int, ...], ...]


class Content(NamedTuple):
    """What a frame carries."""

    groups: tuple[int, ...]
    end: bool


@dataclass(frozen=True)
class Case:
    """`rows`: per partition, the group of each event in order; one frame an event."""

    name: str
    rows: Rows
    faults: Budget
    why: str
    epochs: int = 1
    retry_rows: Rows | None = None  # what any attempt but the very first brings: the source is not repeatable
    restart_rows: Rows | None = None  # the partitioning after a restart of the driver
    window: int = 1  # answers an instance may hold back
    instances: int = 2  # alive at once
    catches: tuple[str, ...] = ()  # the rules whose absence this case must notice

    @property
    def groups(self) -> int:
        """Number of key groups."""
        return 1 + max(g for rows in (self.rows, self.retry_rows or (), self.restart_rows or ()) for part in rows for g in part)

    def parts(self, run: int) -> int:
        """Number of partitions in that run."""
        return len(self.restart_rows if run and self.restart_rows else self.rows)

    def events(self, task: Task) -> tuple[int, ...]:
        """Groups of the events that attempt brings."""
        if task.run and self.restart_rows:
            return self.restart_rows[task.part]
        if self.retry_rows and (task.run or task.attempt):
            return self.retry_rows[task.part]
        return self.rows[task.part]


@dataclass(frozen=True)
class Scope:
    """A case under rules."""

    case: Case
    rules: Rules


@cache
def contents(case: Case, task: Task) -> tuple[Content, ...]:
    """The frames of an attempt: its events, then END with every group its partition is responsible for."""
    restarted = task.run and case.restart_rows
    plans = (case.restart_rows,) if restarted else (case.rows, case.retry_rows or case.rows)
    owned = tuple(sorted({g for plan in plans if plan for g in plan[task.part]}))
    return (*(Content((g,), False) for g in case.events(task)), Content(owned, True))
