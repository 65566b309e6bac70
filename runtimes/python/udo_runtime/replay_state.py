"""The state of a recording as a keyed instance's durable state: loaded from the file, written nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from udo_protocol.checkpoints import Checkpoint
from udo_protocol.connection import Arg
from udo_protocol.limits import DEFAULT
from udo_protocol.recording_file import Recording
from udo_runtime.api import Context
from udo_runtime.durable import Durable, restored
from udo_runtime.keyed import Keyed, KeyedProcessor
from udo_runtime.keyed_instance import KeyedInstance
from udo_runtime.ledger import Ledger
from udo_runtime.load import Processor
from udo_runtime.session import Session
from udo_runtime.versions import Versions


class _Recorded(Durable):
    """State as the checkpoint before the first frame left it."""

    def __init__(self, recording: Recording, versions: Versions) -> None:
        self._recording, self._sessions, self._versions = recording, recording.sessions(), versions

    def covered(self) -> Checkpoint:
        return Checkpoint(self._recording.header["first_seq"] - 1)

    def cuts(self) -> dict[str, int]:
        return dict(self._recording.header["cuts"])

    def maybe_former(self) -> list[str]:
        return []  # nothing is written

    def load(self, name: str) -> Session:
        if name not in self._sessions:
            return Session(name, versions=self._versions)
        record, folder = self._sessions[name]
        return restored(name, record, self._recording.groups(folder), self._versions)

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
        for name in dropped:
            self._sessions.pop(name, None)
        for session in sessions:
            session.settle()
            for group in session.groups.values():
                group.dirty.clear()
                group.touched = False
            session.changed = False


class _NoLetters(Ledger):
    """A replay keeps no dead letters: a bad event fails its frame, where it can be looked at."""

    def __init__(self) -> None:
        super().__init__(None, "", DEFAULT)  # type: ignore[arg-type]

    def begin(self) -> None:
        self.saved()


def keyed_instance(
    arguments: tuple[Any, ...],
    recording: Recording,
    processor: Processor,
    keyed: dict[str, Any],
    ctx: Context,
    watch: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> KeyedInstance:
    """A keyed instance on the recording's state."""
    instance = KeyedInstance(*arguments)
    how = Keyed(**{**keyed, "columns": tuple(keyed["columns"])})
    run = KeyedProcessor(processor.per_event, how, arguments[3][1], ctx)
    run.events, run.end = watch(run.events), watch(run.end)  # type: ignore[method-assign]
    versions = Versions(how.state_version, how.migrates_from, processor.per_event.migrate)
    instance.keyed, instance.durable, instance.ledger = run, _Recorded(recording, versions), _NoLetters()
    return instance
