"""Dead letters of this node: listed, found by a prefix of their id, dropped, marked for replay, amended after a failed replay.

Instances write them (udo_runtime); the node manager writes only the new reason after a failed replay. Letters under `pending` belong to
attempts that have not ended, and are touched only on request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from node_manager.manager import Manager
from udo_protocol.errors import Conflict, NotFound, SlotBroken, UsageError
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import replication, rewinding
from udo_protocol.state.dead_letters import KeyedName, Letter, letter_id, parse_name

# Letters read at a time; each may be as large as an event.
_SCAN = 100
_ANSWERED = "answered in epoch"


@dataclass(frozen=True)
class FoundLetter:
    """A dead letter and its place on the server."""

    id: str
    keys: SlotKeys  # of its slot
    key: str  # the one that holds it
    name: str
    keyed: bool
    unfinished: bool
    bytes: int
    replay: str  # '', 'waiting' or 'answered in epoch N'
    letter: Letter

    @property
    def places(self) -> list[str]:
        """The keys to delete it from, the one that holds it first. An answered letter stays in the copies that are kept for a rollback: a
        version that goes back has to process it again."""
        kept = self.keys.savepoint(rewinding.SAVEPOINT)
        copies = [] if self.replay.startswith(_ANSWERED) else [kept.dead, kept.pending, kept.replay]
        return [self.key, self.keys.replay, *copies]


class DeadLetters:
    """The operations of `udo dead` on this node. Methods may be called from any thread."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def letters(self, deployment: str = "", ids: Sequence[str] = (), *, unfinished: bool = False) -> Iterator[FoundLetter]:
        """Yield the letters of one deployment, or of all; with `ids` those whose id begins with one of them. In no particular order."""
        deployments = [self._manager.deployments.find(deployment)] if deployment else self._manager.deployments.all()
        with self._state() as state:
            for d in deployments:
                for slot in d.slots:
                    try:
                        yield from self._of_slot(state, slot.keys, ids, unfinished)
                    except SlotBroken as e:
                        if deployment:
                            raise
                        # In a list of all deployments a broken slot does not hide the others.
                        yield FoundLetter("", slot.keys, slot.keys.dead, "", False, unfinished, 0, "", Letter.unreadable(e))

    def drop(self, deployment: str, ids: Sequence[str], *, everything: bool = False, unfinished: bool = False) -> int:
        """Remove letters for good; return how many. Each id must be the prefix of exactly one; `everything`: all of the deployment."""
        if everything == bool(ids):
            raise UsageError("pass either the ids of dead letters or all, not both")
        with self._state() as state:
            found = self._each(deployment, ids, unfinished) if ids else self.letters(deployment, unfinished=unfinished)
            return sum(replication.write(state, k.keys, [("HDEL", key, k.name) for key in k.places])[0] for k in list(found))

    def replay(self, deployment: str, ids: Sequence[str], *, everything: bool = False) -> tuple[int, int]:
        """Mark keyed letters for the next epoch of their session; return (letters that wait now, timers left out).

        Conflict if a session has no next epoch, while the deployment can be rolled back, or if `ids` name a timer, which is never due
        again.
        """
        if everything == bool(ids):
            raise UsageError("pass either the ids of dead letters or all, not both")
        found = self._each(deployment, ids, False) if ids else list(self.letters(deployment))
        timers = [k for k in found if k.letter.timer]
        if timers and ids:
            raise Conflict(f"{timers[0].id} is a timer's: its time has come and gone, so it cannot be sent again. Drop it: udo dead drop")
        wanted = [k for k in found if not k.letter.timer]
        with self._state() as state:
            if any(rewinding.kept(state, keys) for keys in {k.keys for k in wanted}):
                raise Conflict(
                    f"{deployment} can still be rolled back, and the old version would not see events that are replayed "
                    "now: wait until the rollback window is over"
                )
            for k in wanted:
                if not state.call("HEXISTS", k.keys.sessions, k.letter.session):
                    raise Conflict(
                        f"{k.id} belongs to session {k.letter.session}, which is over (a batch job, or its state was dropped): nothing "
                        "will process it again. Let the source send the event once more (udo dead show), then drop it"
                    )
            for k in wanted:
                replication.write(state, k.keys, [("HSETNX", k.keys.replay, k.name, "")])
        return len(wanted), len(timers)

    def amend(self, deployment: str, id_: str, code: str, reason: str, traceback: str) -> None:
        """Store the code, reason and traceback of a letter that was sent again and failed again."""
        (kept,) = self._each(deployment, [id_], False)
        changed = replace(kept.letter, code=code, reason=reason, traceback=traceback, replays=kept.letter.replays + 1)
        with self._state() as state:
            replication.write(state, kept.keys, [("HSET", kept.key, kept.name, changed.encode())])

    def _each(self, deployment: str, ids: Iterable[str], unfinished: bool) -> list[FoundLetter]:
        there = list(self.letters(deployment, unfinished=unfinished))
        found = []
        for text in dict.fromkeys(ids):
            near = [k for k in there if k.id.startswith(text)]
            if not near:
                some = ", ".join(k.id for k in there[:5]) or "none"
                raise NotFound(f"deployment {deployment!r} has no dead letter {text!r}; there are: {some}. List them with: udo dead ls")
            if len(near) > 1:
                raise UsageError(f"ambiguous id prefix {text!r} of dead letters of {deployment!r}: {', '.join(k.id for k in near[:5])}")
            found += near
        return found

    @contextlib.contextmanager
    def _state(self) -> Iterator[Connection]:
        with contextlib.closing(self._manager.servers.connect("state")) as state:
            yield state

    def _of_slot(self, state: Connection, keys: SlotKeys, ids: Sequence[str], unfinished: bool) -> Iterator[FoundLetter]:
        key = keys.pending if unfinished else keys.dead
        found, flat = untrusted.read(state, ("HKEYS", key), ("HGETALL", keys.replay))
        with untrusted.reading(key, "names of dead letters"):
            names = [bytes(n).decode() for n in found]
        with untrusted.reading(keys.replay, "names of dead letters, with nothing or an epoch"):
            marks = {bytes(n).decode(): bytes(m).decode() for n, m in zip(flat[::2], flat[1::2], strict=True)}
        wanted = [(n, id_) for n in names if (id_ := letter_id(keys, n)).startswith(tuple(ids)) or not ids]
        for at in range(0, len(wanted), _SCAN):
            some = wanted[at : at + _SCAN]
            for (name, id_), data in zip(some, state.call("HMGET", key, *(n for n, _ in some)), strict=True):
                if data is not None:
                    mark = marks.get(name)
                    replay = "" if mark is None else f"{_ANSWERED} {mark}" if mark else "waiting"
                    try:
                        with untrusted.reading(key, f"a dead letter named {name!r:.60}"):
                            keyed, letter = isinstance(parse_name(name), KeyedName), Letter.decode(data)
                    except SlotBroken as e:
                        keyed, letter = False, Letter.unreadable(e)
                    yield FoundLetter(id_, keys, key, name, keyed, unfinished, len(data), replay, letter)
