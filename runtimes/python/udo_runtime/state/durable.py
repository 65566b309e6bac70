"""Sessions on the state server: loaded when first seen, written with each checkpoint, only what changed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from udo_protocol.errors import ProtocolError
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.slot import as_int
from udo_protocol.queue.slot_reader import Emit
from udo_protocol.state.checkpoints import Checkpoint, cut, load_checkpoint
from udo_protocol.state.checkpoints import checkpoint as store
from udo_runtime.engine.content import Piece
from udo_runtime.engine.effects import WriteCheckpoint
from udo_runtime.state.groups import Group
from udo_runtime.state.session import Session
from udo_runtime.state.standby import RewoundState, StandbyState, changelog_entry
from udo_runtime.state.versions import Versions


class Durable:
    """The state server as one slot's owner sees it; `run_id` is the queue server's."""

    def __init__(self, state: Connection, prefix: str, token: int, run_id: str, versions: Versions | None = None) -> None:
        self._state, self._prefix, self._token, self._run_id = state, prefix, token, run_id
        self._versions = versions

    def standby(self, name: str, *, rewind: bool = False) -> StandbyState:
        """What lets the instance `name` have the state before it is promoted: the owner's, or what was kept before an update."""
        return (RewoundState if rewind else StandbyState)(self._state, self._prefix, name, self._run_id, self._versions)

    def owns(self) -> bool:
        """Whether only this instance can make checkpoints: the first half of its promotion."""
        return as_int(self._state.call("GET", f"{self._prefix}owner")) == self._token

    def covered(self) -> Checkpoint:
        """What is durable of this run of the queue server: after its loss, state stays and the log starts anew."""
        covers = load_checkpoint(self._state, self._prefix)
        return covers if covers.run_id == self._run_id else Checkpoint()

    def failed(self) -> tuple[int, dict[str, set[tuple[int, ...]]]]:
        """What is covered and, by session, the attempts that had met an error by then, as (partition, *label)."""
        covers, flat = self.covered(), self._state.call("HGETALL", f"{self._prefix}sessions")
        records = dict(zip(flat[::2], map(json.loads, map(bytes, flat[1::2])), strict=True))
        return covers.seq, {bytes(name).decode(): {tuple(f) for f in known["failed"]} for name, known in records.items()}

    def cuts(self) -> dict[str, int]:
        """Sessions dropped or replaced from outside, and the last frame of the log that belonged to what was there before."""
        return {name: seq for name, (seq, run) in cut(self._state, self._prefix).items() if run == self._run_id}

    def load(self, name: str) -> Session:
        """The session as the last checkpoint left it; a new one if it has none."""
        return load_session(self._state, self._prefix, name, self._versions)

    def maybe_former(self) -> list[str]:
        """Sessions that may lie there in the form of a former version."""
        if self._versions is None or not self._versions.migrates:
            return []
        return [bytes(name).decode() for name in self._state.call("HKEYS", f"{self._prefix}sessions")]

    def save(self, checkpoint: WriteCheckpoint, *, beside: Sequence[Sequence[Arg]] = ()) -> None:
        """Make a checkpoint durable, with the commands `beside` in the same step; Fenced if another instance owns the slot."""
        content, at = checkpoint.content, round(time.time(), 3)
        records = {name: json.dumps({**record, "at": at}) for name, record in content.records.items()}
        writes: list[Sequence[Arg]] = list(beside)
        for name, numbers in content.dropped.items():
            writes += self._removal(name, numbers)
        for piece in content.pieces:
            writes += self._piece(piece)
        writes += [("HSET", f"{self._prefix}sessions", name, text) for name, text in records.items()]
        covers = Checkpoint(checkpoint.seq, self._run_id, checkpoint.riding)

        def entry() -> bytes:
            return changelog_entry(checkpoint.seq, content.pieces, records, content.dropped)

        if store(self._state, self._prefix, self._token, covers, checkpoint.emitted, writes, entry) is not Emit.STORED:
            raise ProtocolError(
                f"a checkpoint of {self._prefix} at {checkpoint.seq} is ahead of the answers emitted ({checkpoint.emitted})"
            )

    def _piece(self, piece: Piece) -> list[Sequence[Arg]]:
        p, at = self._prefix, f"{piece.session}:{piece.number}"
        writes: list[Sequence[Arg]] = [("HSET", f"{p}m:{piece.session}", piece.number, piece.meta)]
        if piece.base is not None:
            writes.append(("FCALL", "udo_preserve", 1, p, piece.session, piece.number))  # for a rollback, if that is still possible
            writes += [("SET", f"{p}g:{at}", piece.base), ("DEL", f"{p}d:{at}")]
        elif piece.delta is not None:
            writes.append(("RPUSH", f"{p}d:{at}", piece.delta))
        return writes

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
