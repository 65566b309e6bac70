"""Sessions on the state server: loaded when first seen, written with each checkpoint, only what changed.

A group's values lie there as a base and the changes since; the changes are folded into a new base when they outgrow it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from udo_protocol.checkpoints import Checkpoint, checkpoint, cut, load_checkpoint
from udo_protocol.connection import Arg, Connection
from udo_protocol.errors import ProtocolError
from udo_protocol.slot import as_int
from udo_protocol.slot_reader import Emit
from udo_runtime.following import Follower, Rewinder, Written, journal_entries
from udo_runtime.groups import Group
from udo_runtime.session import Session
from udo_runtime.versions import Versions

# Changes below this are not worth folding, however small the base.
_FOLD_BYTES = 8 << 10
# Folding groups, and writing those of a former version anew, is shared out among checkpoints, so that none takes long: each writes
# so much whole, and twice of what changed, which is what folding in the end costs of each change.
_WHOLE_BYTES, _WHOLE_SHARE = 4 << 20, 2


class Durable:
    """The state server as one slot's owner sees it; `incarnation` is the queue server's run id."""

    def __init__(self, state: Connection, prefix: str, token: int, incarnation: str, versions: Versions | None = None) -> None:
        self._state, self._prefix, self._token, self._incarnation = state, prefix, token, incarnation
        self._versions = versions

    def follower(self, name: str, *, rewind: bool = False) -> Follower:
        """What lets the instance `name` have the state before it is promoted: the owner's, or what was kept before an update."""
        return (Rewinder if rewind else Follower)(self._state, self._prefix, name, self._incarnation, self._versions)

    def owns(self) -> bool:
        """Whether only this instance can make checkpoints: the first half of its promotion."""
        return as_int(self._state.call("GET", f"{self._prefix}owner")) == self._token

    def covered(self) -> Checkpoint:
        """What is durable of this run of the queue server: after its loss, state stays and the log starts anew."""
        covers = load_checkpoint(self._state, self._prefix)
        return covers if covers.incarnation == self._incarnation else Checkpoint()

    def failed(self) -> tuple[int, dict[str, set[tuple[int, ...]]]]:
        """What is covered and, by session, the attempts that had met an error by then, as (partition, *label)."""
        covers, flat = self.covered(), self._state.call("HGETALL", f"{self._prefix}sessions")
        records = dict(zip(flat[::2], map(json.loads, map(bytes, flat[1::2])), strict=True))
        return covers.seq, {bytes(name).decode(): {tuple(f) for f in known["failed"]} for name, known in records.items()}

    def cuts(self) -> dict[str, int]:
        """Sessions dropped or replaced from outside, and the last frame of the log that belonged to what was there before."""
        return {name: seq for name, (seq, run) in cut(self._state, self._prefix).items() if run == self._incarnation}

    def load(self, name: str) -> Session:
        """The session as the last checkpoint left it; a new one if it has none."""
        return load_session(self._state, self._prefix, name, self._versions)

    def maybe_former(self) -> list[str]:
        """Sessions that may lie there in the form of a former version."""
        if self._versions is None or not self._versions.migrates:
            return []
        return [bytes(name).decode() for name in self._state.call("HKEYS", f"{self._prefix}sessions")]

    def save(
        self,
        sessions: Iterable[Session],
        dropped: dict[str, set[int]],
        seq: int,
        emitted: int,
        riding: Sequence[Any] = (),
        *,
        beside: Sequence[Sequence[Arg]] = (),
        own: str = "",
    ) -> None:
        """One checkpoint covering `seq`, with the commands `beside` in the same step; Fenced if another instance owns the slot.

        `own`: this instance's name, which followed the owner before it maybe: it does not tell itself.
        """
        writes: list[Sequence[Arg]] = list(beside)
        written: list[Written] = []
        records: dict[str, str] = {}
        for name, numbers in dropped.items():
            writes += self._removal(name, numbers)
        whole, changed = 0, 0  # bytes
        for session in sessions:
            session.settle()
            for number, group in session.groups.items():
                room = whole < _WHOLE_BYTES + _WHOLE_SHARE * changed
                renew = room and group.former
                if renew:
                    group.migrate_all()
                if group.dirty or group.touched or renew:
                    written.append(self._write(writes, session.name, number, group, fold=room, renew=renew))
                    changed += len(written[-1].delta or b"")
                    whole += written[-1].whole
            if session.changed:
                records[session.name] = record(session)
                writes.append(("HSET", f"{self._prefix}sessions", session.name, records[session.name]))
        covers = Checkpoint(seq, self._incarnation, riding)

        def entries(follower: str) -> Sequence[bytes]:
            return () if follower == own else journal_entries(seq, written, records, dropped)

        if checkpoint(self._state, self._prefix, self._token, covers, emitted, writes, entries) is not Emit.STORED:
            raise ProtocolError(f"a checkpoint of {self._prefix} at {seq} is ahead of the answers emitted ({emitted})")
        for w in written:
            w.group.dirty.clear()
            w.group.touched = False
        for session in sessions:
            session.changed = False

    def _write(self, writes: list[Sequence[Arg]], name: str, number: int, group: Group, *, fold: bool, renew: bool) -> Written:
        p, delta, whole = self._prefix, None, 0
        meta = group.meta()
        writes.append(("HSET", f"{p}m:{name}", number, meta))
        if group.dirty or renew:
            delta = group.delta()
            base, deltas = group.stored
            if renew or (fold and deltas + len(delta) > max(base, _FOLD_BYTES)):
                snapshot = group.snapshot()
                whole = len(snapshot)
                group.stored, group.former = [whole, 0], False
                writes.append(("FCALL", "udo_preserve", 1, p, name, number))  # for a rollback, if that is still possible
                writes += [("SET", f"{p}g:{name}:{number}", snapshot), ("DEL", f"{p}d:{name}:{number}")]
            else:
                group.stored[1] += len(delta)
                writes.append(("RPUSH", f"{p}d:{name}:{number}", delta))
        return Written(name, number, group, meta, delta, whole)

    def _removal(self, name: str, numbers: set[int]) -> list[Sequence[Arg]]:
        p = self._prefix
        keys = [f"{p}{kind}:{name}:{n}" for n in sorted(numbers) for kind in "gd"]
        if not keys:
            return []
        forget = [("HDEL", f"{p}sessions", name), ("HDEL", f"{p}kept:sessions", name)]
        return [("UNLINK", *keys), ("HDEL", f"{p}m:{name}", *sorted(numbers)), *forget]


def load_session(state: Connection, prefix: str, name: str, versions: Versions | None = None) -> Session:
    """Read a session; its values are decoded when their group's first key is opened."""
    found, flat = state.transaction([("HGET", f"{prefix}sessions", name), ("HGETALL", f"{prefix}m:{name}")])
    metas = dict(zip(map(int, flat[::2]), flat[1::2], strict=True))
    if found is None:
        return Session(name, versions=versions)
    stored: dict[int, tuple[bytes, bytes | None, list[bytes]]] = {}
    # Asked for all at once: a hundred small commands, whose replies wait on the server's side.
    state.send(c for n in metas for c in (("GET", f"{prefix}g:{name}:{n}"), ("LRANGE", f"{prefix}d:{name}:{n}", 0, -1)))
    for number, meta in metas.items():
        base, deltas = state.receive(), state.receive()
        for r in (base, deltas):
            if isinstance(r, Exception):
                raise r
        stored[number] = meta, base, deltas
    return restored(name, json.loads(bytes(found)), stored, versions)


def restored(
    name: str, known: Mapping[str, Any], stored: Mapping[int, tuple[bytes, bytes | None, Sequence[bytes]]], versions: Versions | None = None
) -> Session:
    """A session from its record and, by group, what the state server holds: meta, base, deltas."""
    groups = {number: Group.restore(*values, versions if number >= 0 else None) for number, values in stored.items()}
    session = Session(name, groups, versions)
    session.renew(**known)
    return session


def record(session: Session) -> str:
    """What `sessions` holds of a session; `at`: seconds since 1970."""
    known: dict[str, Any] = {"last_ended": session.last_ended, "run": session.run, "keys": session.keys, "bytes": session.size}
    if session.restoring is not None:
        known["restoring"] = [(n, *label) for n, label in session.restoring.items()]
    return json.dumps({**known, "at": round(time.time(), 3), "failed": sorted(session.failed)})
