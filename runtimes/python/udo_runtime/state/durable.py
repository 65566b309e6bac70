"""Sessions on the state server: loaded when first seen, written with each checkpoint, only what changed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from udo_protocol.errors import ProtocolError
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.slot import as_int
from udo_protocol.queue.slot_reader import Emit
from udo_protocol.state import untrusted
from udo_protocol.state.checkpoints import Checkpoint, cut, load_checkpoint
from udo_protocol.state.checkpoints import checkpoint as store
from udo_protocol.state.pieces import read, removing, writing
from udo_protocol.state.rewinding import forgetting
from udo_runtime.engine.effects import WriteCheckpoint
from udo_runtime.state.loading import restored
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
        for p in content.pieces:
            changes = [p.delta] if p.delta is not None and p.base is None else []
            writes += writing(self._prefix, p.session, p.number, p.meta, p.place, p.base, changes)
        writes += [("HSET", f"{self._prefix}sessions", name, text) for name, text in records.items()]
        covers = Checkpoint(checkpoint.seq, self._run_id, checkpoint.riding)

        def entry() -> bytes:
            return changelog_entry(checkpoint.seq, content.pieces, records, content.dropped)

        if store(self._state, self._prefix, self._token, covers, checkpoint.emitted, writes, entry) is not Emit.STORED:
            raise ProtocolError(
                f"a checkpoint of {self._prefix} at {checkpoint.seq} is ahead of the answers emitted ({checkpoint.emitted})"
            )

    def _removal(self, name: str, numbers: set[int]) -> list[Sequence[Arg]]:
        p = self._prefix
        return [*removing(p, name, numbers), ("HDEL", f"{p}sessions", name), forgetting(p, name)] if numbers else []


def load_session(state: Connection, prefix: str, name: str, versions: Versions | None = None) -> Session:
    """The session as the last checkpoint left it; a new one if it has none."""
    (record,) = untrusted.read(state, ("HGET", f"{prefix}sessions", name))
    if record is None:
        return Session(name, versions=versions)
    return restored(name, json.loads(bytes(record)), read(state, prefix, name), versions)
