"""One bounded part of the world to explore: Spark's work, the possible faults, the rules in force."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tests.model.rules import Rules
from tests.model.state import Budget, Task

Rows = tuple[tuple[int, ...], ...]


class Content(NamedTuple):
    """The content of a frame."""

    groups: tuple[int, ...]
    end: bool


@dataclass(frozen=True)
class Case:
    """`rows`: for each partition, the group of each event, in order; each event has a frame."""

    name: str
    rows: Rows
    faults: Budget
    why: str
    epochs: int = 1
    retry_rows: Rows | None = None  # events of every attempt but the very first: the source is not repeatable
    restart_rows: Rows | None = None  # the partitioning after a restart of the driver
    window: int = 1  # answers that an instance may hold back
    instances: int = 2  # instances alive at once
    catches: tuple[str, ...] = ()  # the rules whose absence this case must notice

    @property
    def groups(self) -> int:
        """The number of key groups."""
        return 1 + max(g for rows in (self.rows, self.retry_rows or (), self.restart_rows or ()) for part in rows for g in part)

    def parts(self, run: int) -> int:
        """The number of partitions in that run."""
        return len(self.restart_rows if run and self.restart_rows else self.rows)

    def events(self, task: Task) -> tuple[int, ...]:
        """The groups of that attempt's events."""
        if task.run and self.restart_rows:
            return self.restart_rows[task.part]
        if self.retry_rows and (task.run or task.attempt):
            return self.retry_rows[task.part]
        return self.rows[task.part]


@dataclass(frozen=True)
class Scope:
    """A case and the rules in force."""

    case: Case
    rules: Rules


@cache
def contents(case: Case, task: Task) -> tuple[Content, ...]:
    """The frames of an attempt: its events, then END with every group of its partition."""
    restarted = task.run and case.restart_rows
    plans = (case.restart_rows,) if restarted else (case.rows, case.retry_rows or case.rows)
    owned = tuple(sorted({g for plan in plans if plan for g in plan[task.part]}))
    return (*(Content((g,), False) for g in case.events(task)), Content(owned, True))
