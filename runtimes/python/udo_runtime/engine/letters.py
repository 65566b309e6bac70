"""Dead letters of a keyed slot: part of the checkpoints, and kept exactly once per epoch.

Letters of an attempt are `pending` until it ENDs; then they become final, and those of other attempts at the same epoch's key
groups are removed. Letters of an attempt that never ENDs are removed at the END of a later epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from udo_protocol.limits import SlotLimits
from udo_protocol.state.dead_letters import DEAD, PENDING, KeyedName, Letter, parse_name
from udo_runtime.engine.content import LetterChanges
from udo_runtime.engine.effects import LetterSizes, ReadLetters, ReadReplays, Steps
from udo_runtime.engine.letter import full
from udo_runtime.failure import ProcessingError
from udo_runtime.state.label import Label
from udo_runtime.state.session import Session

# The bytes of each letter, by hash (`pending`, `dead`) and name.
Sizes = Mapping[str, Mapping[str, int]]


@dataclass(slots=True)
class _Entry:
    size: int
    ended: bool
    body: bytes | None = None  # until it is durable
    where: str = ""  # the hash that holds it

    @property
    def wanted(self) -> str:
        return DEAD if self.ended else PENDING


class KeyedLetters:
    """The durable letters, and the changes that the next checkpoint makes durable.

    `clock`: the time in s since 1970 that letters bear. `mirror`: answers are compared with another version's, so each epoch processes
    again the letters that the serving version did.
    """

    def __init__(self, deployment: str, limits: SlotLimits, clock: Callable[[], float], *, mirror: bool = False) -> None:
        self.limits, self.clock = limits, clock
        self._deployment, self._mirror = deployment, mirror
        self._sessions: dict[str, dict[KeyedName, _Entry]] = {}
        self._gone: dict[KeyedName, str] = {}
        self._changed: dict[KeyedName, _Entry] = {}
        self._marks: dict[KeyedName, int | None] = {}  # the epoch that has sent a letter again; None: it failed
        self._failed: dict[KeyedName, bytes] = {}

    def restart(self, sizes: Sizes) -> None:
        """Start again from the letters of the last checkpoint; later changes are forgotten."""
        self._sessions.clear()
        self._changed.clear()
        self.saved()
        self.adopt(sizes)

    def adopt(self, sizes: Sizes) -> None:
        """Add these letters, which are durable."""
        for where, by_name in sizes.items():
            for text, size in by_name.items():
                if isinstance(name := parse_name(text), KeyedName):
                    self._sessions.setdefault(name.session, {})[name] = _Entry(size, where == DEAD, None, where)

    def hand_over(self, groups: Collection[int]) -> None:
        """Forget the letters of these groups, which belong to another slot since the last checkpoint."""
        for known in self._sessions.values():
            for name in [name for name in known if name.group in groups]:
                del known[name]

    def keep(self, found: Mapping[KeyedName, bytes], error: ProcessingError) -> Steps[None]:
        """Note a frame's bad events, the first of which failed with `error`; ProcessingError if there is no room."""
        entries = {name: _Entry(len(body), False, body) for name, body in found.items()}
        if not self._fits(entries):
            self._look((yield LetterSizes()))
            if not self._fits(entries):
                raise full(error, self._deployment, self.limits)
        for name, entry in entries.items():
            self._sessions.setdefault(name.session, {})[name] = entry
        self._changed.update(entries)

    def end(self, session: str, label: Label, groups: Collection[int], *, void: bool) -> None:
        """Note that an attempt has ENDed for these groups; `void`: it leaves no trace, and the attempt before it counts."""
        known = self._sessions.get(session)
        if not known:
            return
        groups = set(groups)
        for name, entry in list(known.items()):
            if name.epoch == label.epoch and name.group in groups:
                own = (name.run, name.attempt) == (label.run, label.attempt)
                if own and not void:
                    if not entry.ended:
                        entry.ended = True
                        self._changed[name] = entry
                elif own or not void:
                    self._remove(known, name)
            elif name.epoch < label.epoch and not entry.ended:
                self._remove(known, name)

    def due(self, session: Session, label: Label, groups: Collection[int]) -> Steps[tuple[dict[KeyedName, Letter], list[KeyedName]]]:
        """The letters that this END is to process again, and those that an earlier epoch has processed, which may be removed.

        These are the letters marked to be sent again or, if an attempt at this epoch has ENDed, exactly those that it processed; a mirror
        processes the same as the version with which it is compared. Marks of epochs that have not ENDed in this state date from before it
        was set back.
        """
        groups = set(groups)
        known = self._sessions.get(session.name, {})
        durable: Mapping[str, str] = (yield ReadReplays()) if known and groups else {}
        if not durable:
            return {}, []
        mine = {str(n): n for n, e in known.items() if e.ended and n.group in groups and n.epoch < label.epoch}
        marks = {n: mark for name, mark in durable.items() if (n := mine.get(name)) is not None}
        for n, epoch in self._marks.items():  # marks of an END that the same checkpoint will cover
            if epoch is None:
                marks.pop(n, None)
            elif n in marks:
                marks[n] = str(epoch)
        this = self._mirror or session.has_ended(groups, label.epoch)
        chosen = sorted(n for n, m in marks.items() if (m == str(label.epoch) if this else not m or int(m) >= label.epoch))
        bodies = (yield ReadLetters(chosen)) if chosen else []
        letters = {n: Letter.decode(body) for n, body in zip(chosen, bodies, strict=True) if body is not None}
        return letters, [n for n, m in marks.items() if m and int(m) < label.epoch]

    def replayed(
        self, session: str, epoch: int, done: Iterable[KeyedName], failed: Mapping[KeyedName, Letter], settled: Iterable[KeyedName]
    ) -> None:
        """Note the outcome of this END's letters: `done` are removed at a later END, `failed` stay with new reasons, `settled` go now."""
        known = self._sessions.get(session, {})
        for name in settled:
            self._remove(known, name)
        self._marks |= dict.fromkeys(done, epoch)
        for name, new in failed.items():
            self._marks[name] = None
            body = self._failed[name] = new.encode()
            if name in known:
                known[name].size = len(body)

    def changes(self) -> LetterChanges:
        """The changes for the next checkpoint."""
        put = [(entry.wanted, name, entry.body) for name, entry in self._changed.items() if entry.body is not None]
        moved = [(entry.where, entry.wanted, name) for name, entry in self._changed.items() if entry.body is None]
        return LetterChanges(put, moved, dict(self._failed), dict(self._marks), [(where, name) for name, where in self._gone.items()])

    def saved(self) -> None:
        """Note that the changes are durable."""
        for entry in self._changed.values():
            entry.where, entry.body = entry.wanted, None
        self._changed.clear()
        self._gone.clear()
        self._marks.clear()
        self._failed.clear()

    def _remove(self, known: dict[KeyedName, _Entry], name: KeyedName) -> None:
        entry = known.pop(name, None)
        self._changed.pop(name, None)
        if entry is not None and entry.where:
            self._gone[name] = entry.where

    def _fits(self, more: Mapping[KeyedName, _Entry]) -> bool:
        entries = [e for known in self._sessions.values() for e in known.values()]
        entries += more.values()
        limits = self.limits
        return len(entries) <= limits.dead_letters and sum(e.size for e in entries) <= limits.dead_letter_bytes

    def _look(self, there: Sizes) -> None:
        """Forget dead letters that have been dropped from outside."""
        for known in self._sessions.values():
            for name, entry in list(known.items()):
                if entry.where and str(name) not in there[entry.where]:
                    del known[name]
                    self._changed.pop(name, None)
