"""State written by another version of the operator: every stored piece says its state version, and is migrated when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from udo_protocol.errors import StateLost
from udo_runtime.execution.failure import ProcessingError, event_text, explained, own_traceback

# What an operator's migrate() does to one key's state: (old state, its version) -> new state.
Migrate = Callable[[dict[str, Any], int], dict[str, Any]]


class Versions:
    """The state version this operator reads and writes, and those it migrates from."""

    def __init__(self, version: int = 0, sources: Iterable[int] = (), migrate: Migrate | None = None) -> None:
        self.version, self._sources, self._migrate = version, frozenset(sources), migrate

    @property
    def migrates(self) -> bool:
        """Whether there may be state of other versions."""
        return bool(self._sources)

    def migrated(self, key: Any, state: dict[str, Any], version: int) -> dict[str, Any]:
        """One key's state of another version as this one's; ProcessingError with migrate()'s own traceback."""
        if version not in self._sources or self._migrate is None:
            reads = ", ".join(map(str, sorted({self.version, *self._sources})))
            raise StateLost(f"state of version {version} is on the state server, and the operator reads {reads} (migrates_from)")
        try:
            new = self._migrate(state, version)
        except Exception as e:
            message = f"migrate() from state version {version} to {self.version}: {explained(e)}"
            raise ProcessingError(message, own_traceback(e), event_text({"key": key, "state": state})) from e
        if not isinstance(new, dict):
            what = f"migrate() from state version {version} to {self.version}: expected the new state as a dict, got {type(new).__name__}"
            raise ProcessingError(what, "", event_text({"key": key, "state": state}))
        return new
