"""What user code may change of a session in one frame, or for one event, so that it can be taken back: states and timers. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from udo_runtime.state.codec import TIMERS, pack, unpack
from udo_runtime.state.groups import Group


class Timed(NamedTuple):
    """A timer or an expiration that was set."""

    group: int
    kind: str
    key: bytes  # packed
    at_us: int
    former_us: int | None  # of an expiration: what it replaces


class Savepoint:
    """States (the dicts that user code changes in place) and the journal of timers as they are now; may be nested.

    TypeError, ValueError or OverflowError if a state holds what cannot be stored.
    """

    def __init__(self, groups: Mapping[int, Group], journal: list[Timed], states: Iterable[dict[str, Any]]) -> None:
        self._groups, self._journal, self._mark = groups, journal, len(journal)
        self._states = list(states)
        self._packed = list(map(pack, self._states))

    def check(self) -> None:
        """The same errors if a state now holds what cannot be stored."""
        deque(map(pack, self._states), maxlen=0)

    def restore(self) -> None:
        """Take everything since back."""
        for state, packed in zip(self._states, self._packed, strict=True):
            state.clear()
            state.update(unpack(packed))
        while len(self._journal) > self._mark:
            self._unset(self._journal.pop())

    def _unset(self, t: Timed) -> None:
        timers = self._groups[t.group].open(TIMERS)
        of_kind = timers[t.kind]
        if t.former_us is not None:
            of_kind[t.key] = t.former_us
            return
        if isinstance(of_kind[t.key], list):
            of_kind[t.key].remove(t.at_us)
        if not isinstance(of_kind[t.key], list) or not of_kind[t.key]:
            del of_kind[t.key]
        if not of_kind:
            del timers[t.kind]
