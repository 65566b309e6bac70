"""The arguments of a vectorised keyed operator besides its events: the keys that they touch, and their states. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, overload

import pyarrow as pa


class FrameKeys:
    """The keys of a frame, each once: `keys[n]` is the value of key number n in the key column, or a tuple of values for several columns.

    `index`: an Arrow array of int32 with the number of each event's key.
    """

    def __init__(self, values: Sequence[Any], index: pa.Array, select: Callable[[int], Any]) -> None:
        self._values, self.index, self._select = values, index, select

    def timer(self, number: int, at: datetime) -> None:
        """Call `on_timer` for this key at the end of the first epoch whose watermark has reached `at`; once for each time."""
        self._select(number).timer(at)

    def expire(self, number: int, at: datetime) -> None:
        """Drop this key's state at the end of the first epoch whose watermark has reached `at`; a later call replaces it."""
        self._select(number).expire(at)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, number: int) -> Any:
        return self._values[number]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)


class FrameStates(Sequence[dict[str, Any]]):
    """The states of these keys: `states[n]` is the dict of key number n, to be changed in place; an empty one is no state."""

    def __init__(self, states: Sequence[dict[str, Any]]) -> None:
        self._states = states

    def opened(self) -> Sequence[dict[str, Any]]:
        """The states that may have been changed as dicts."""
        return self._states

    def column(self, name: str, arrow_type: pa.DataType, default: Any = None) -> pa.Array:
        """One entry of all these states as an Arrow array, with `default` for states without it."""
        return pa.array([state.get(name, default) for state in self._states], arrow_type)

    def put(self, name: str, values: pa.Array | pa.ChunkedArray | Sequence[Any]) -> None:
        """Set one entry of all these states, in the order of the keys; null, or None, removes it."""
        values = values.to_pylist() if isinstance(values, (pa.Array, pa.ChunkedArray)) else values
        if len(values) != len(self._states):
            raise ValueError(f"states.put({name!r}): expected {len(self._states)} values, one for each key, got {len(values)}")
        for state, value in zip(self._states, values, strict=True):
            if value is None:
                state.pop(name, None)
            else:
                state[name] = value

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, number: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[dict[str, Any]]: ...
    def __getitem__(self, number: int | slice) -> Any:
        return self._states[number]
