"""Values that keys had before they were changed: packed, by key, or in blocks of columns that are packed on demand. No I/O."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping, Sequence
from typing import Any

from udo_runtime.state.codec import TIMERS, Delta
from udo_runtime.state.columns import Block, ColumnValues, first_of, packed_states
from udo_runtime.state.layout import Layout

# Blocks hold a key once for each frame that changed it. When they have this many rows more than twice the group's keys, all but the first
# values are removed.
_ROOM = 4096


class Noted:
    """Former values of keys. The first value noted for a key counts; None: it had none."""

    __slots__ = ("blocks", "by_key", "_rows")

    def __init__(self, by_key: Delta | None = None) -> None:
        self.by_key: Delta = {} if by_key is None else by_key  # noted before the blocks
        self.blocks: list[Block] = []
        self._rows = 0

    def __bool__(self) -> bool:
        return bool(self.by_key or self.blocks)

    def note(self, keys: Collection[object], raws: Sequence[bytes | None], layout: Layout | None) -> None:
        """Note the packed values of keys."""
        noted = self.by_key if len(keys) == 1 and TIMERS in keys else self.folded(layout)  # timers are in no block
        if noted.keys().isdisjoint(keys):
            noted.update(zip(keys, raws, strict=True))
            return
        for key, raw in zip(keys, raws, strict=True):
            noted.setdefault(key, raw)

    def note_block(self, block: Block, layout: Layout, keys: int) -> None:
        """Note the values of a block's keys; `keys`: the approximate number of the group's keys."""
        self.blocks.append(block)
        self._rows += len(block[0])
        if self._rows > 2 * keys + _ROOM:
            self.blocks = [first_of(self.blocks, layout)]
            self._rows = len(self.blocks[0][0])

    def put_back(self, values: MutableMapping[Any, bytes]) -> None:
        """Restore the noted values in `values`."""
        if isinstance(values, ColumnValues):
            for block in reversed(self.blocks):
                values.put(block)
        for key, old in self.by_key.items():
            if old is None:
                values.pop(key, None)
            else:
                values[key] = old

    def folded(self, layout: Layout | None) -> Delta:
        """All noted values by key, packed; later ones are noted after these."""
        if self.blocks:
            assert layout is not None, "only columns come in blocks"
            for keys, cells in self.blocks:
                for key, raw in zip(keys, packed_states(layout, cells, len(keys)), strict=True):
                    self.by_key.setdefault(key, raw)
            self.blocks, self._rows = [], 0
        return self.by_key
