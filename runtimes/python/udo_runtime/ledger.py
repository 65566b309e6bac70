"""Dead letters of a keyed slot: part of the checkpoints, and of an epoch as often as it counts: once.

Those of an attempt wait as `pending` until it ENDs; then they count, and those of other attempts at the same epoch's key
groups go. Letters of an attempt that never ENDs go with the END of a later epoch. A version that goes back begins with the letters
as they were kept before the update; what it processes again then makes them anew, as it makes the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from udo_protocol.connection import Arg, Connection
from udo_protocol.dead_letters import DEAD, KEPT, PENDING, REPLAY, KeyedName, Letter, parse_name
from udo_protocol.frame import Header
from udo_protocol.limits import Limits
from udo_runtime.bad_events import Bad
from udo_runtime.groups import Label
from udo_runtime.letters import full, letter, sizes
from udo_runtime.session import Session


@dataclass(slots=True)
class _Entry:
    size: int
    ended: bool
    body: bytes | None = None  # until it is durable
    where: str = ""  # the hash that holds it

    @property
    def wanted(self) -> str:
        return DEAD if self.ended else PENDING


class Ledger:
    """What is durable, and what the next checkpoint makes so."""

    def __init__(self, state: Connection, prefix: str, limits: Limits) -> None:
        self._state, self._prefix, self._limits = state, prefix, limits
        self._sessions: dict[str, dict[KeyedName, _Entry]] = {}
        self._gone: dict[KeyedName, str] = {}
        self._changed: dict[KeyedName, _Entry] = {}
        self._marks: dict[KeyedName, int | None] = {}  # the epoch that has sent a letter again; None: it failed
        self._failed: dict[KeyedName, bytes] = {}
        self.answered = False  # whoever compares processes again what the serving version has
        self.kept = False  # until the durable letters are those kept before the update, these are read instead

    @property
    def _source(self) -> str:
        return self._prefix + KEPT if self.kept else self._prefix

    def begin(self) -> None:
        """Read what the last checkpoint left, and forget what has been noted since."""
        self._sessions.clear()
        self._changed.clear()
        self.saved()
        for where in (PENDING, DEAD):
            for text, size in sizes(self._state, f"{self._source}{where}").items():
                if isinstance(name := parse_name(text), KeyedName):
                    self._sessions.setdefault(name.session, {})[name] = _Entry(size, where == DEAD, None, where)

    def keep(self, session: str, header: Header, found: Sequence[Bad], reference: str, instance: str) -> None:
        """Note a frame's bad events; ProcessingError if there is no room."""
        label = header.label
        entries = {}
        for bad in found:
            name = KeyedName(session, label.epoch, bad.group, label.run, label.attempt, header.number, bad.row)
            body = letter(bad, header, reference, instance).encode()
            entries[name] = _Entry(len(body), False, body)
        if not self._fits(entries):
            self._look()
            if not self._fits(entries):
                raise full(found[0].error, self._prefix, self._limits)
        self._sessions.setdefault(session, {}).update(entries)
        self._changed.update(entries)

    def end(self, session: str, label: Label, groups: Collection[int], *, void: bool) -> None:
        """An attempt has ENDed for these groups; `void`: without a trace, as if the one before it were the last."""
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

    def due(self, session: Session, label: Label, groups: Collection[int]) -> tuple[dict[KeyedName, Letter], list[KeyedName]]:
        """What this END is to process again, and what an earlier epoch has: that may go.

        To process are those marked for it or, if an attempt at this epoch has ENDed, what that one processed: no more, no less. Nor
        may another one process else that is compared with it. Marks of epochs that have not ENDed in this state are from before it was
        set back.
        """
        groups = set(groups)
        known = self._sessions.get(session.name, {})
        flat = self._state.call("HGETALL", f"{self._source}{REPLAY}") if known and groups else []
        if not flat:
            return {}, []
        mine = {str(n): n for n, e in known.items() if e.ended and n.group in groups and n.epoch < label.epoch}
        marks = {n: bytes(m).decode() for name, m in zip(flat[::2], flat[1::2], strict=True) if (n := mine.get(bytes(name).decode()))}
        for n, epoch in self._marks.items():  # of an END that the same checkpoint will cover
            if epoch is None:
                marks.pop(n, None)
            elif n in marks:
                marks[n] = str(epoch)
        this = self.answered or session.has_ended(groups, label.epoch)
        chosen = sorted(n for n, m in marks.items() if (m == str(label.epoch) if this else not m or int(m) >= label.epoch))
        bodies = self._state.transaction([("HGET", f"{self._source}{DEAD}", str(n)) for n in chosen]) if chosen else []
        letters = {n: Letter.decode(body) for n, body in zip(chosen, bodies, strict=True) if body is not None}
        return letters, [n for n, m in marks.items() if m and int(m) < label.epoch]

    def replayed(
        self, session: str, epoch: int, done: Iterable[KeyedName], failed: Mapping[KeyedName, Letter], settled: Iterable[KeyedName]
    ) -> None:
        """This END has: `done` go with a later one, `failed` stay with their new reasons, `settled` go now."""
        known = self._sessions.get(session, {})
        for name in settled:
            self._remove(known, name)
        self._marks |= dict.fromkeys(done, epoch)
        for name, new in failed.items():
            self._marks[name] = None
            body = self._failed[name] = new.encode()
            if name in known:
                known[name].size = len(body)

    def writes(self) -> list[Sequence[Arg]]:
        """Commands that make all this durable."""
        commands: list[Sequence[Arg]] = []
        p = self._prefix
        for name, entry in self._changed.items():
            body = entry.body or self._state.call("HGET", f"{self._source}{entry.where}", str(name))
            if body is None:  # dropped from outside
                continue
            commands.append(("HSET", f"{p}{entry.wanted}", str(name), body))
            if entry.where not in ("", entry.wanted):
                commands.append(("HDEL", f"{p}{entry.where}", str(name)))
        commands += [
            ("HSET", f"{p}{REPLAY}", str(n), e) if e is not None else ("HDEL", f"{p}{REPLAY}", str(n)) for n, e in self._marks.items()
        ]
        commands += [("HSET", f"{p}{DEAD}", str(name), body) for name, body in self._failed.items()]
        for name, where in self._gone.items():
            commands += [("HDEL", f"{p}{where}", str(name)), ("HDEL", f"{p}{REPLAY}", str(name))]
        return commands

    def saved(self) -> None:
        """They are."""
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

    def _fits(self, more: dict[KeyedName, _Entry]) -> bool:
        entries = [e for known in self._sessions.values() for e in known.values()]
        entries += more.values()
        limits = self._limits
        return len(entries) <= limits.dead_letters and sum(e.size for e in entries) <= limits.dead_letter_bytes

    def _look(self) -> None:
        """Some may have been dropped from outside."""
        there = {where: sizes(self._state, f"{self._source}{where}") for where in (PENDING, DEAD)}
        for known in self._sessions.values():
            for name, entry in list(known.items()):
                if entry.where and str(name) not in there[entry.where]:
                    del known[name]
                    self._changed.pop(name, None)
