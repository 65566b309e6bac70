"""State written by another version of the operator: every stored base and change has a state version, and is migrated when read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from udo_protocol.errors import StateLost
from udo_protocol.formats.state_types import StateTypes
from udo_runtime.failure import PassedOn, ProcessingError, event_text, failed
from udo_runtime.state.layout import Layout

# An operator's migrate() for the state of one key: (old state, its version) -> new state.
Migrate = Callable[[dict[str, Any], int], dict[str, Any]]
# A migrate() for many keys: (keys, their packed states, the version of these states) -> new states, packed.
MigrateAll = Callable[[Sequence[Any], Sequence[bytes], int], list[bytes]]


class Versions:
    """The state version that an operator writes, and those that it migrates from (`sources`). `layout`: the columns of its states;
    `types`: the declared types, if any, checked when states are read as long as they are required (`require_types`)."""

    def __init__(
        self,
        version: int = 0,
        sources: Iterable[int] = (),
        migrate: Migrate | None = None,
        migrate_all: MigrateAll | None = None,
        layout: Layout | None = None,
        types: StateTypes | None = None,
    ) -> None:
        self.layout, self._types, self.requires_types = layout, types, False
        self.version, self._sources, self._migrate, self._migrate_all = version, frozenset(sources), migrate, migrate_all

    def require_types(self, on: bool) -> None:
        """Switch the check of declared types on or off. Without declared types states need not even be unpacked."""
        self.requires_types = on and self._types is not None

    @property
    def migrates(self) -> bool:
        """Whether the operator migrates from other versions."""
        return bool(self._sources)

    def problem(self, state: dict[str, Any]) -> str:
        """The reason why this version cannot continue from the state; '': it can, or types are not required."""
        return "" if self._types is None or not self.requires_types else self._types.problem(state, "there is")

    def migrated(self, key: Any, state: dict[str, Any], version: int) -> dict[str, Any]:
        """One key's state, migrated from `version`. ProcessingError with the operator's traceback; StateLost if it cannot be migrated."""
        self._require(version)
        assert self._migrate is not None
        try:
            new = self._migrate(state, version)
        except PassedOn:
            raise
        except BaseException as e:
            before = f"migrate() from state version {version} to {self.version}: "
            raise failed(e, {"key": key, "state": state}, before) from e
        if not isinstance(new, dict):
            what = f"migrate() from state version {version} to {self.version}: expected the new state as a dict, got {type(new).__name__}"
            raise ProcessingError(what, "", event_text({"key": key, "state": state}))
        return new

    def in_one(self, version: int) -> MigrateAll | None:
        """A function that migrates many states in one call; None if the operator has none. StateLost if `version` cannot be migrated."""
        self._require(version)
        return self._migrate_all

    def _require(self, version: int) -> None:
        if version not in self._sources or self._migrate is None:
            reads = ", ".join(map(str, sorted({self.version, *self._sources})))
            raise StateLost(f"state of version {version} is on the state server, and the operator reads {reads} (migrates_from)")
