"""A snapshot of the states and timers that user code may change while it processes a frame or an event, to undo its changes. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from udo_runtime.state.codec import TIMERS, pack_all, unpack
from udo_runtime.state.groups import Group


class Timed(NamedTuple):
    """A timer or an expiration that user code has set. `kind`: codec.TIMER or EXPIRY; times in µs since 1970."""

    group: int
    kind: str
    key: bytes  # packed
    at_us: int
    former_us: int | None  # for an expiration: the one that it replaces


class Snapshot:
    """The current states (the dicts that user code changes in place) and timers; may be nested.

    `journal`: the timers set so far in this frame, to which further ones are appended. Raises TypeError, ValueError or OverflowError if a
    state contains a value that cannot be stored.
    """

    def __init__(self, groups: Mapping[int, Group], journal: list[Timed], states: Iterable[dict[str, Any]]) -> None:
        self._groups, self._journal, self._mark = groups, journal, len(journal)
        self._states = list(states)
        self._packed = pack_all(self._states)

    def check(self) -> None:
        """Raise the same errors if a state now contains a value that cannot be stored."""
        pack_all(self._states)

    def restore(self) -> None:
        """Undo all changes since the snapshot."""
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
