"""One key group of one session: its values, and the data to undo an attempt. No I/O.

A label is (run, epoch, task attempt); runs are numbered in the order in which they were planned. A group has the values of the newest
attempt that touched it; `undo`, which leads from these back to the values before the epoch (the base); whether that attempt has ENDed;
and, if it touched a group that an older attempt had ENDed, the ENDed values as `candidate`. tests/model shows for each rule what goes
wrong without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from udo_protocol.errors import TwoProducers
from udo_protocol.state.pieces import PiecePlace, StoredGroup
from udo_runtime.state.changed_values import ChangedValues
from udo_runtime.state.codec import (
    EMPTY,
    TIMERS,
    Delta,
    migrated,
    pack,
    pack_each,
    pack_large,
    state_version,
    timed_only,
    unpack,
    unpack_all,
    with_keys,
    with_packed_keys,
)
from udo_runtime.state.columns import COLUMNS, ColumnValues
from udo_runtime.state.label import Label
from udo_runtime.state.layout import Cells
from udo_runtime.state.noted import Noted
from udo_runtime.state.stored_values import empty_values, lay, packed_rows, read_values, version_of, whole_values
from udo_runtime.state.undo import Undo, stored_undo
from udo_runtime.state.versions import Versions

# The attempt in the label of a group that was restored from a store.
RESTORED = -1
# The value of `ended` if the attempt was cut short and none had ENDed before it: the epoch is complete and has changed nothing.
VOID = 2


class Group:
    """A key group. Values stay packed until their key is opened; the state of an open key is a dict in `live`."""

    __slots__ = (
        "_durable", "_keys", "_opened", "_remeasure", "_size", "_undo", "_values", "candidate", "changed", "ended", "former", "label",
        "layout", "live", "originals", "partition", "place", "saves", "touched", "versions", "waiting"
    )  # fmt: skip

    def __init__(self, versions: Versions | None = None) -> None:
        self.versions = versions  # None: values are not migrated
        self.former = False  # some of the stored values are of another state version
        self.label: Label | None = None
        self.partition = -1
        self.ended: int = False  # or VOID
        self._undo = Undo()
        self.candidate: Delta | None = None
        self.layout = versions.layout if versions is not None else None  # None: the values are rows
        self._values: MutableMapping[Any, bytes] | None = empty_values(versions)
        self._remeasure = False  # values are rows, but stored as columns: the stored size is that of the columns
        self._durable: tuple[bytes | None, list[bytes]] | None = None  # stored base and changes, not yet decoded
        self._keys = 0  # number of keys in them
        self.waiting = 0  # number of keys that have timers and no state, as of the last END
        self.live: dict[Any, dict[str, Any]] = {}
        self._opened: list[bytes | None] = []  # the packed values of `live`, in its order, from when they were opened
        self.changed = ChangedValues()  # since the last checkpoint
        self.touched = False  # label, `ended` or undo changed since the last checkpoint
        self._size = 0  # bytes of keys and values
        self.place, self.saves = PiecePlace(), 0  # where the values are stored, and the number of checkpoints that have written it
        self.originals: Noted | None = None  # in a standby: the values before frames that it processed tentatively

    # -- rules -------------------------------------------------------------------------------------------------------

    def touch(self, label: Label, partition: int) -> bool:
        """Begin or continue the attempt `label`; undoes an older attempt at the same epoch. False if the label is STALE."""
        mine = self.label
        if mine == label:
            return True
        if mine is not None:
            if label.run < mine.run or label.epoch < mine.epoch:
                return False
            if label.epoch == mine.epoch:
                if (label.run, label.attempt) < (mine.run, mine.attempt):
                    return False
                if label.run == mine.run and partition != self.partition:
                    raise TwoProducers(
                        f"partitions {self.partition} and {partition} both sent events of the same key group in epoch {label.epoch}: a key "
                        "must come from one partition. Let key= repartition the DataFrame, or give each call of one deployment its own uid="
                    )
                ended = self._taken_back()
                if self.ended:
                    self.candidate = ended
            elif self.ended:
                self.pack(close=True)
                self.candidate = None
            else:
                self._taken_back()
                if self.candidate is not None:
                    self._apply(self.candidate)
                self.candidate = None
        self.label, self.partition, self.ended, self.touched = label, partition, False, True
        # Values that are in no checkpoint are in no stored change.
        self._undo.begin(None if self.changed or self.layout is not None else self.place.changes, self.originals is not None)
        return True

    def end(self, *, void: bool = False) -> None:
        """END the newest attempt. `void`: it was cut short, and the state becomes that of the attempt before it."""
        if void:
            self._taken_back()
            self.undo = {}
            if self.candidate is not None:
                self.undo = {k: self.values.get(k) for k in self.candidate}
                self._apply(self.candidate)
        if not self.ended or void:
            self.ended = VOID if void and not self.candidate else True
            self.candidate, self.touched = None, True

    def _taken_back(self) -> Delta:
        """Restore the values before the epoch; returns the values of the undone attempt, which are needed if it has ENDed."""
        if self.ended:
            self.pack(close=True)
        self.live, self._opened = {}, []
        made: Delta = {k: self.values.get(k) for k in self.undo}
        self._apply(self.undo)
        return made

    def _apply(self, delta: Delta) -> None:
        for key, value in delta.items():
            self._put(key, value)

    def _put(self, key: Any, value: bytes | None) -> None:
        values = self.values
        old = values.get(key)
        if value == old:
            return
        key_bytes = 0 if old is not None and value is not None else len(pack(key)) * (1 if old is None else -1)
        self._size += key_bytes + len(value or b"") - len(old or b"")
        self.changed.by_key[key] = value
        if self.originals is not None:
            self.originals.note([key], [old], self.layout)
        if value is None:
            del values[key]
        else:
            values[key] = value

    # -- keys --------------------------------------------------------------------------------------------------------

    @property
    def values(self) -> MutableMapping[Any, bytes]:
        """Key -> packed state, a dict or columns; decoded from the stored form at first use."""
        if self._values is None:
            assert self._durable is not None
            self._values, self._durable = whole_values(self.versions, *self._durable, self._undo.noting), None
            self._measure()
        return self._values

    @property
    def undo(self) -> Delta:
        """The values, before the newest attempt's epoch, of the keys that it has opened; None: the key had none."""
        return self._noted().folded(self.layout)

    @undo.setter
    def undo(self, undo: Delta) -> None:
        self._undo.replace(undo)

    def _noted(self) -> Noted:
        if self._values is None and self._undo.since is not None:
            _ = self.values
        return self._undo.noted(self.versions)

    @property
    def dirty(self) -> Delta:
        """The values that changed since the last checkpoint; None: removed."""
        return self.changed.now(self.values)

    def saved(self) -> None:
        """Note that the group is durable in its current state."""
        self.changed.clear()
        self.touched = False
        if isinstance(self._values, ColumnValues):
            self._values.removed = False

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return self._values.size if isinstance(self._values, ColumnValues) else self._size

    @property
    def keys(self) -> int:
        """The number of keys that have state or a timer."""
        return self._keys if self._values is None else len(self._values) - (TIMERS in self._values) + self.waiting

    def open(self, key: Any) -> dict[str, Any]:
        """The state of `key`, a dict that the caller may change in place; empty if it has none."""
        state = self.live.get(key)
        if state is None:
            self.open_all([key])
            state = self.live[key]
        return state

    def open_all(self, keys: list[Any]) -> None:
        """Open distinct keys; some may be open already."""
        live = self.live
        if not live.keys().isdisjoint(keys):
            keys = [k for k in keys if k not in live]
        raws = list(map(self.values.get, keys))
        live.update(zip(keys, unpack_all([r or EMPTY for r in raws], len(raws)), strict=True))
        self._opened += raws
        self._remember(keys, raws)

    def replace(self, packed: Mapping[Any, bytes | None]) -> None:
        """Set the packed states of keys that are not open; None removes a key."""
        old = list(map(self.values.get, packed))
        self._remember(packed.keys(), old)
        self._replace(packed, list(packed.values()), old)

    def write(self, keys: Sequence[Any], rows: list[int | None], old: Sequence[Cells], new: Sequence[Cells | None]) -> None:
        """Set columns of keys that are not open, as in `ColumnValues.write`; `old`: the current columns."""
        values, block = self.values, (keys, old)
        assert isinstance(values, ColumnValues) and self.layout is not None
        self._noted().note_block(block, self.layout, len(values))
        if self.originals is not None:
            self.originals.note_block(block, self.layout, len(values))
        self.changed.mark(keys, rows)
        values.write(keys, rows, new)

    def _remember(self, keys: Collection[Any], raws: Sequence[bytes | None]) -> None:
        """Note in `undo` the values that these keys had before the epoch, unless already noted."""
        self._noted().note(keys, raws, self.layout)

    def _replace(self, keys: Iterable[Any], packed: Sequence[bytes | None], old: Sequence[bytes | None]) -> None:
        """Set the packed values of keys; `old`: the current ones."""
        if not all(old) or not all(packed):
            for key, value in zip(keys, packed, strict=True):
                self._put(key, value)
            return
        changed = {key: new for key, new, was in zip(keys, packed, old, strict=True) if new != was}
        if self.originals is not None:
            self.originals.note(changed.keys(), list(map(self.values.__getitem__, changed)), self.layout)
        self.values.update(changed)
        self.changed.by_key.update(changed)
        self._size += sum(map(len, packed)) - sum(map(len, old))  # type: ignore[arg-type]

    def pack(self, *, close: bool = False) -> None:
        """Pack the states of open keys into `values`; `close`: also close the keys. TypeError if a state cannot be stored."""
        live, opened = self.live, self._opened
        if not live:
            return
        packed = pack_each(live, live.values())
        if packed != opened:
            states = packed if EMPTY not in packed else [None if value == EMPTY else value for value in packed]
            self._replace(live, states, opened)
        if TIMERS in live:
            self.waiting = timed_only(live[TIMERS], self.values)
        if close:
            self.live, self._opened = {}, []
        else:
            self._opened = [None if value == EMPTY else value for value in packed]

    # -- stored form -------------------------------------------------------------------------------------------------

    def meta(self, *, placed: bool = False) -> bytes:
        """The group without its values, packed: label, partition, `ended`, undo, candidate, number of keys, bytes, number of checkpoints.
        `placed`: for the changes at `place`, from which the undo may follow (undo.py); else the undo is that of changed keys."""
        undo: int | bytes | None = self._undo.since if placed else None
        if undo is None:
            undo = self._undo.packed or stored_undo(self._noted(), self.versions, self.layout, self.dirty, self.values)
        candidate = None if self.candidate is None else packed_rows(self.versions, self.candidate)
        return pack_large([list(self.label or ()), self.partition, self.ended, undo, candidate, self.keys, self.size, self.saves])

    def delta(self) -> bytes:
        """The values that changed since the last checkpoint, packed; nil: removed."""
        return self.changed.stored(self.versions, self.values)

    def snapshot(self) -> bytes:
        """All values, packed: a base."""
        values = self.values
        return values.snapshot(version_of(self.versions)) if isinstance(values, ColumnValues) else packed_rows(self.versions, values)

    def fold(self) -> tuple[bytes, bytes | None]:
        """A new base, and the change after it: None if the base has all values."""
        if self._undo.since is not None and self.layout is None:
            return self._undo.fold(self.undo, self.values, self.dirty, self.versions)
        self._undo.since, self._undo.beside_base = None, 0
        return self.snapshot(), None

    def outgrown(self, change_bytes: int, least: int, bases: int) -> bool:
        """Whether folding is due: the changes, of this many bytes, are larger than so many bases; up to `least` it is not worth it."""
        return change_bytes - (beside := self._undo.beside_base) > max(bases * (self.place.base_bytes + beside), least)

    def _measure(self) -> None:
        if self.layout is None and (self.former or self._remeasure):
            self._size = sum(len(pack(k)) + len(v) for k, v in self.values.items())

    def migrate_all(self) -> None:
        """Decode and migrate the values and the undo; the candidate was migrated when it was read."""
        _ = self.values, self.undo

    @classmethod
    def restore(cls, stored: StoredGroup, versions: Versions | None = None) -> Group:
        """A group from its stored form; values are decoded, and migrated, when the first key is opened."""
        group = cls(versions)
        group._values, group._durable, group.place = None, (stored.base, stored.deltas), stored.place
        if versions is not None:
            group.former = any(state_version(p) != versions.version for p in (stored.base, *stored.deltas) if p)
        group._remeasure = any(p[0] == COLUMNS for p in (stored.base, *stored.deltas) if p)
        if stored.meta:
            group._read(stored.meta)
        return group

    def _read(self, meta: bytes, *, same: bool = False) -> None:
        label, self.partition, self.ended, undo, candidate, self._keys, self._size, *saves = unpack(meta)
        self.candidate, self.saves = candidate and read_values(self.versions, candidate), sum(saves)  # an earlier release has stored none
        former, self.label = self.label, Label(*label) if label else None
        self._undo.read(undo, same=same or former == self.label)

    # -- following an owner ------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """In a standby: decode and migrate all values; changes from now on can be undone by `take_back`."""
        self.migrate_all()
        self.originals = Noted()

    def take_back(self, meta: bytes) -> None:
        """Undo the changes since `follow` or the last `adopt`; `meta`: the group's meta at that time."""
        self.live, self._opened = {}, []
        if self.originals is not None:
            self.originals.put_back(self.values)
        self.originals = Noted()
        self.saved()
        self._read(meta, same=True)

    def adopt(self, meta: bytes, delta: bytes | None, place: PiecePlace) -> None:
        """Apply a checkpoint of the owner: the group's new `meta`, its changed values (None: none), and their place."""
        values = self.values
        self._read(meta)
        if delta is not None:
            lay(self.versions, values, delta, self._undo.noting(place.changes - 1))
            self.former |= self.versions is not None and state_version(delta) != self.versions.version
            self._remeasure |= delta[0] == COLUMNS
        self.place = place
        self._measure()

    def last_ended(self) -> tuple[int | None, bool, dict[bytes, bytes], dict[bytes, bytes | None]]:
        """(epoch, ENDed, values, undo) by packed key, without the changes of an unfinished attempt. The group cannot be used afterwards.

        `undo` leads from the values after that epoch to those before it. Not ENDed: an attempt at that epoch was under way, and the
        values are those before it. Epoch None: no attempt has touched the group.
        """
        self.pack(close=True)
        undo: Delta = {}
        if self.label is not None and not self.ended:
            self._taken_back()
            if self.candidate is None:
                return self.label.epoch, False, with_packed_keys(self.values), {}
            undo = {k: self.values.get(k) for k in self.candidate}
            self._apply(self.candidate)
        else:
            undo = self.undo
        return self.label and self.label.epoch, True, with_packed_keys(self.values), with_packed_keys(undo)

    @classmethod
    def imported(
        cls, epoch: int | None, ended: bool, values: Mapping[bytes, bytes], undo: Mapping[bytes, bytes | None], version: int = 0
    ) -> Group:
        """Inverse of `last_ended`, for a new session: every run is newer than the group's label. `version`: the state version."""
        group = cls(Versions(version))
        group.label, group.ended = None if epoch is None else Label(0, epoch, 0), ended
        group.undo, group._values = with_keys(undo), with_keys(values)
        group._size = sum(len(k) + len(v) for k, v in values.items())
        group.waiting = timed_only(unpack(group.values.get(TIMERS, EMPTY)), group.values)
        return group

    # -- state from a store ------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove all values and the label: state from a store follows."""
        self.live, self._opened = {}, []
        self._apply(dict.fromkeys(self.values))
        self.label, self.partition, self.ended, self.undo, self.candidate = None, -1, False, {}, None
        self.touched = True

    def fill(self, values: Mapping[bytes, bytes], version: int = 0) -> None:
        """Add values from a store, by packed key; migrated if `version` is a former state version."""
        self._apply(migrated(self.versions, dict(with_keys(values)), version))

    def restored(self, epoch: int) -> None:
        """Note that all values, those after `epoch`, have arrived. Every run is newer than the label; earlier values are unknown."""
        self.label, self.ended, self.touched = Label(0, epoch, RESTORED), True, True

    def packed(self, *, changes: bool) -> dict[bytes, bytes | None]:
        """The values of an ENDed group by packed key; `changes`: only those that its epoch changed, None: removed."""
        values = self.values
        if not changes:
            return with_packed_keys(values)
        return {pack(k): new for k, old in self.undo.items() if (new := values.get(k)) != old}
