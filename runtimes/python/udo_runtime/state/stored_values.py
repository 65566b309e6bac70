"""Values of a key group in stored form (a base or a change), as rows or columns; groups of either form read both. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from udo_protocol.state.pieces import StoredGroup
from udo_runtime.state.codec import Delta, columns, findable, migrated, pack_large, state_version, unpack, unpack_tuples
from udo_runtime.state.columns import COLUMNS, ColumnValues, rows_of
from udo_runtime.state.noted import Noted
from udo_runtime.state.versions import Versions


def version_of(versions: Versions | None) -> int:
    """The state version that is written."""
    return versions.version if versions else 0


def packed_rows(versions: Versions | None, delta: Mapping[Any, bytes | None]) -> bytes:
    """The stored form of values as rows."""
    return pack_large(columns(version_of(versions), delta))


def read_values(versions: Versions | None, packed: bytes) -> Delta:
    """Stored values of either form, migrated."""
    if packed[0] == COLUMNS:
        return migrated(versions, rows_of(packed), state_version(packed))
    version, keys, values = unpack_tuples(packed)
    delta: Delta = dict(zip(findable(keys), values, strict=True))
    return migrated(versions, delta, version)


def needs_migration(versions: Versions | None, stored: StoredGroup) -> bool:
    """Whether some of a stored group's values are of another state version, so that reading them calls the operator's migrate()."""
    if versions is None:
        return False
    undo, candidate = unpack(stored.meta)[3:5] if stored.meta else (None, None)
    packed = (stored.base, *stored.deltas, None if isinstance(undo, int) else undo, candidate)
    return any(state_version(p) != versions.version for p in packed if p)


def saves_in(meta: bytes) -> int:
    """The number of checkpoints that had written a group by the one with this meta; 0 for one of an earlier release."""
    return sum(unpack(meta)[7:])


def lay(versions: Versions | None, values: MutableMapping[Any, bytes], packed: bytes, noted: Noted | None = None) -> None:
    """Apply a stored base or change to `values`; the values that it replaces are noted in `noted`."""
    if state_version(packed) == version_of(versions):
        if isinstance(values, ColumnValues):
            if noted is None and packed[0] == COLUMNS and values.lay(packed):
                return
        elif packed[0] != COLUMNS and not (versions is not None and versions.requires_types):
            _, keys, states = unpack_tuples(packed)
            if all(states):
                keys = findable(keys)
                if noted is not None:
                    noted.note(keys, list(map(values.get, keys)), None)
                values.update(zip(keys, states, strict=True))
                return
    delta = read_values(versions, packed)
    if noted is not None:
        noted.note(delta.keys(), list(map(values.get, delta)), values.layout if isinstance(values, ColumnValues) else None)
    if all(delta.values()):
        values.update(delta)
        return
    for key, value in delta.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value


def empty_values(versions: Versions | None) -> MutableMapping[Any, bytes]:
    """The values of a new group."""
    return {} if versions is None or versions.layout is None else ColumnValues(versions.layout)


def whole_values(
    versions: Versions | None, base: bytes | None, deltas: list[bytes], noting: Callable[[int], Noted | None] = lambda _: None
) -> MutableMapping[Any, bytes]:
    """The values from a stored base and the changes after it. `noting`: where to note the values that a change, or the base (-1), replaces,
    by its number."""
    values = empty_values(versions)
    if base and isinstance(values, dict):
        values = read_values(versions, base)  # type: ignore[assignment]
        if (noted := noting(-1)) is not None:
            noted.note(values.keys(), [None] * len(values), None)
    elif base:
        lay(versions, values, base, noting(-1))
    for at, packed in enumerate(deltas):
        lay(versions, values, packed, noting(at))
    return values
