"""A keyed operator's context: state, timers and expirations of the event's key, and the watermark by which they are due."""

from __future__ import annotations

import datetime as dt
from typing import Any

from udo_runtime.sdk.api import Context
from udo_runtime.state.codec import EXPIRES, EXPIRY, TIMER, TIMERS, pack
from udo_runtime.state.groups import Group
from udo_runtime.state.snapshot import Timed

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# A timer or an expiration that is due: time (µs since the epoch), kind, group, packed key.
Due = tuple[int, str, int, bytes]


def to_us(when: dt.datetime) -> int:
    """µs since the epoch; a time without zone counts as UTC."""
    when = when if when.tzinfo else when.replace(tzinfo=dt.UTC)
    return (when - EPOCH) // dt.timedelta(microseconds=1)


class KeyedContext(Context):
    """The context of a keyed operator: the state of the event's key, timers, the watermark."""

    key: Any = None
    state: dict[str, Any]
    _groups: dict[int, Group]
    _number: int  # the number of the key's group
    _watermark_us: int | None = None
    _own: Any = None  # the dict that is the state of the event's key
    _journal: list[Timed] | None = None  # timers set, if they may have to be undone
    # Attributes change for every event: skip the check of a frozen dataclass, which is Python code.
    __setattr__ = object.__setattr__

    def _at(self, key: Any, number: int, state: Any) -> None:
        """Set the current key, of that group."""
        self.key, self._number, self.state, self._own = key, number, state, state

    def _keep(self) -> None:
        """Make the dict that the operator has assigned to `state` the key's state; it keeps its expiration."""
        given, own = self.state, self._own
        if given is own:
            return
        if not isinstance(given, dict):
            raise TypeError(f"ctx.state expects a dict, got {type(given).__name__}: {given!r:.80}")
        new = dict(given)
        if new and EXPIRES in own:
            new.setdefault(EXPIRES, own[EXPIRES])
        own.clear()
        own.update(new)
        self.state = own

    def _require_own(self) -> None:
        """Raise TypeError if something was assigned to `state` while there is no current key."""
        if self.state is not self._own:
            raise TypeError("process_keys has no ctx.state to assign to: the state of key number n is states[n], to be changed in place")

    @property
    def watermark(self) -> dt.datetime | None:
        """The highest event time of the epochs before this one, minus the declared delay; None if there is none."""
        return None if self._watermark_us is None else EPOCH + dt.timedelta(microseconds=self._watermark_us)

    def timer(self, at: dt.datetime) -> None:
        """Call `on_timer` for this key at the end of the first epoch whose watermark has reached `at`; once for each time."""
        self._set_timer(self._number, pack(self.key), to_us(at))

    def expire(self, at: dt.datetime) -> None:
        """Drop this key's state at the end of the first epoch whose watermark has reached `at`; a later call replaces it."""
        at_us = to_us(at)
        if self.state.get(EXPIRES) != at_us:
            self.state[EXPIRES] = at_us
            self._set_expiration(self._number, pack(self.key), at_us)

    def _set_timer(self, number: int, packed: bytes, at_us: int) -> None:
        due = self._timers(number, TIMER).setdefault(packed, [])
        if at_us not in due:
            due.append(at_us)
            if self._journal is not None:
                self._journal.append(Timed(number, TIMER, packed, at_us, None))

    def _set_expiration(self, number: int, packed: bytes, at_us: int) -> None:
        expirations = self._timers(number, EXPIRY)
        if self._journal is not None:
            self._journal.append(Timed(number, EXPIRY, packed, at_us, expirations.get(packed)))
        expirations[packed] = at_us

    def _timers(self, number: int, kind: str) -> dict[bytes, Any]:
        of_kind: dict[bytes, Any] = self._groups[number].open(TIMERS).setdefault(kind, {})
        return of_kind


def take_due(timers: dict[str, Any], number: int, watermark_us: int) -> list[Due]:
    """Remove and return the timers and expirations of a group that are due. Sorted, timers precede expirations of the same time."""
    found: list[Due] = []
    for key, at in list(timers.get(EXPIRY, {}).items()):
        if at <= watermark_us:
            found.append((at, EXPIRY, number, key))
            del timers[EXPIRY][key]
    for key, times in list(timers.get(TIMER, {}).items()):
        passed = [at for at in times if at <= watermark_us]
        if passed:
            found += [(at, TIMER, number, key) for at in passed]
            rest = timers[TIMER][key] = [at for at in times if at > watermark_us]
            if not rest:
                del timers[TIMER][key]
    for kind in (TIMER, EXPIRY):
        if kind in timers and not timers[kind]:
            del timers[kind]
    return found
