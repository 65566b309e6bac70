"""One key group of one session: values, and what is needed to take an attempt back. No I/O.

A label is (run, epoch, task attempt), runs as they were planned. A group holds the values of the newest attempt that touched it, `undo` to
get from there to the values before the epoch (the base), whether that attempt was ENDed, and, when a newer attempt
touched an ENDed group, the ENDed values as a `candidate`. Each rule closes a hole: tests/model shows the counterexample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from udo_protocol.errors import TwoProducers
from udo_protocol.state.pieces import PiecePlace, StoredGroup
from udo_runtime.state.codec import (
    EMPTY,
    TIMERS,
    Delta,
    Values,
    columns,
    migrated,
    pack,
    pack_large,
    state_version,
    timed_only,
    unpack,
    unpack_all,
    unpack_tuples,
    with_keys,
    with_packed_keys,
)
from udo_runtime.state.versions import Versions

# In place of an attempt: the group came from a store.
RESTORED = -1
# In place of ENDed: the attempt was cut short, and none had ENDed before it. The epoch is complete, with nothing done in it.
VOID = 2


class Label(NamedTuple):
    """Which attempt at which epoch a frame belongs to; attempts of one epoch compare by (run, attempt)."""

    run: int
    epoch: int
    attempt: int


class Group:
    """See the module. Values stay bytes until a key is opened; an open key's state is a plain dict in `live`."""

    __slots__ = (
        "_durable", "_keys", "_opened", "_undo", "_values", "candidate", "dirty", "ended", "former", "label", "live", "originals",
        "partition", "place", "size", "touched", "versions", "waiting"
    )  # fmt: skip

    def __init__(self, versions: Versions | None = None) -> None:
        self.versions = versions  # None: values are left as they are
        self.former = False  # part of what is stored is of another state version
        self.label: Label | None = None
        self.partition = -1
        self.ended: int = False  # or VOID
        self._undo: Delta | bytes = {}  # packed until it is asked for: most often it never is
        self.candidate: Delta | None = None
        self._values: Values | None = {}
        self._durable: tuple[bytes | None, list[bytes]] | None = None  # base and deltas, not yet decoded
        self._keys = 0  # of those
        self.waiting = 0  # keys that have timers and no state, when the timers were packed last: at each END
        self.live: dict[Any, dict[str, Any]] = {}
        self._opened: list[bytes | None] = []  # the values that `live` was unpacked from, in its order
        self.dirty: Delta = {}  # what changed since the last checkpoint; None: gone
        self.touched = False  # label, flag or undo changed since the last checkpoint
        self.size = 0  # bytes of keys and values
        self.place = PiecePlace()  # of what is durable
        self.originals: Delta | None = None  # a standby's: the values before what it did on trial

    # -- rules -------------------------------------------------------------------------------------------------------

    def touch(self, label: Label, partition: int) -> bool:
        """Make the group that of `label`, taking an older attempt back; False if the label is STALE."""
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
                self.settle(close=True)
                self.candidate = None
            else:
                self._taken_back()
                if self.candidate is not None:
                    self._apply(self.candidate)
                self.candidate = None
        self.label, self.partition, self.ended, self.undo = label, partition, False, {}
        self.touched = True
        return True

    def end(self, *, void: bool = False) -> None:
        """The attempt that touched last is complete; `void`: and is to leave no trace, as if the one before it were the last."""
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
        """Restore the base; what the attempt had made of it, if it was ENDed: else nobody will ask, and what is open is dropped."""
        if self.ended:
            self.settle(close=True)
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
        self.size += key_bytes + len(value or b"") - len(old or b"")
        self.dirty[key] = value
        if self.originals is not None:
            self.originals.setdefault(key, old)
        if value is None:
            del values[key]
        else:
            values[key] = value

    # -- keys --------------------------------------------------------------------------------------------------------

    @property
    def values(self) -> Values:
        """Key to packed value; decoded from the durable form at first use."""
        if self._values is None:
            assert self._durable is not None
            base, deltas = self._durable
            values: Values = self._read_columns(base) if base else {}  # type: ignore[assignment]
            for packed in deltas:
                self._lay(values, packed)
            self._values, self._durable = values, None
            if self.former:
                self._measure()
        return self._values

    @property
    def undo(self) -> Delta:
        """What leads from the values before the newest attempt's epoch to the present ones, backwards."""
        if not isinstance(self._undo, dict):
            self._undo = self._read_columns(self._undo)
        return self._undo

    @undo.setter
    def undo(self, undo: Delta) -> None:
        self._undo = undo

    @property
    def keys(self) -> int:
        """How many keys have state, or a timer alone."""
        return self._keys if self._values is None else len(self._values) - (TIMERS in self._values) + self.waiting

    def open(self, key: Any) -> dict[str, Any]:
        """The state of `key` as a dict to be changed in place; empty if it has none."""
        state = self.live.get(key)
        if state is None:
            self.open_all([key])
            state = self.live[key]
        return state

    def open_all(self, keys: list[Any]) -> None:
        """Open these keys, all different; those that are open already stay so."""
        live = self.live
        if not live.keys().isdisjoint(keys):
            keys = [k for k in keys if k not in live]
        raws = list(map(self.values.get, keys))
        live.update(zip(keys, unpack_all([r or EMPTY for r in raws], len(raws)), strict=True))
        self._opened += raws
        self._remember(keys, raws)

    def replace(self, packed: Mapping[Any, bytes | None]) -> None:
        """The packed states of keys that are not open; None: there is none."""
        old = list(map(self.values.get, packed))
        self._remember(packed.keys(), old)
        self._replace(packed, list(packed.values()), old)

    def _remember(self, keys: Collection[Any], raws: list[bytes | None]) -> None:
        """What these keys had before the epoch, unless it is known from earlier in it."""
        undo = self.undo
        if undo.keys().isdisjoint(keys):
            undo.update(zip(keys, raws, strict=True))
        else:
            for key, raw in zip(keys, raws, strict=True):
                undo.setdefault(key, raw)

    def _replace(self, keys: Iterable[Any], packed: Sequence[bytes | None], old: Sequence[bytes | None]) -> None:
        """Put these in place of the `old` ones."""
        if None in old or None in packed:
            for key, value in zip(keys, packed, strict=True):
                self._put(key, value)
            return
        changed = {key: new for key, new, was in zip(keys, packed, old, strict=True) if new != was}
        if self.originals is not None:
            for key in changed:
                self.originals.setdefault(key, self.values[key])
        self.values.update(changed)
        self.dirty.update(changed)
        self.size += sum(map(len, packed)) - sum(map(len, old))  # type: ignore[arg-type]

    def settle(self, *, close: bool = False) -> None:
        """Pack what is open; with `close` forget it too: the next epoch opens its keys anew."""
        live, opened = self.live, self._opened
        if not live:
            return
        packed = list(map(pack, live.values()))
        if packed != opened:
            states = packed if EMPTY not in packed else [None if value == EMPTY else value for value in packed]
            self._replace(live, states, opened)
        if TIMERS in live:
            self.waiting = timed_only(live[TIMERS], self.values)
        if close:
            self.live, self._opened = {}, []
        else:
            self._opened = [None if value == EMPTY else value for value in packed]

    # -- durable form ------------------------------------------------------------------------------------------------

    def meta(self) -> bytes:
        """Label, partition, flag, undo, candidate, keys and bytes. Undo of keys that did not change is left out."""
        undo = self._undo
        if isinstance(undo, dict):
            if len(undo) != len(self.dirty) or not undo.keys() <= self.dirty.keys():
                values = self.values
                undo = {k: v for k, v in undo.items() if values.get(k) != v}
            undo = self._packed(undo)
        candidate = None if self.candidate is None else self._packed(self.candidate)
        return pack_large([list(self.label or ()), self.partition, self.ended, undo, candidate, self.keys, self.size])

    def delta(self) -> bytes:
        """The values that changed since the last checkpoint; nil means gone."""
        return self._packed(self.dirty)

    def snapshot(self) -> bytes:
        """All values."""
        return self._packed(self.values)

    def _packed(self, delta: Delta | Values) -> bytes:
        return pack_large(columns(self.versions.version if self.versions else 0, delta))

    def _read_columns(self, packed: bytes) -> Delta:
        version, keys, values = unpack_tuples(packed)
        delta: Delta = dict(zip(keys, values, strict=True))
        return migrated(self.versions, delta, version)

    def _lay(self, values: Values, packed: bytes) -> None:
        """Lay a stored piece over values."""
        delta = self._read_columns(packed)
        if None not in delta.values():
            values.update(delta)
            return
        for key, value in delta.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value

    def _measure(self) -> None:
        self.size = sum(len(pack(k)) + len(v) for k, v in self.values.items())

    def migrate_all(self) -> None:
        """Decode and migrate the values, the undo and the ENDed ones."""
        _ = self.values, self.undo

    @classmethod
    def restore(cls, stored: StoredGroup, versions: Versions | None = None) -> Group:
        """From the durable form; values are decoded, and migrated, when the first key is opened."""
        group = cls(versions)
        group._values, group._durable, group.place = None, (stored.base, stored.deltas), stored.place
        if versions is not None:
            group.former = any(state_version(p) != versions.version for p in (stored.base, *stored.deltas) if p)
        if stored.meta:
            group._read(stored.meta)
        return group

    def _read(self, meta: bytes) -> None:
        label, self.partition, self.ended, self._undo, candidate, self._keys, self.size = unpack(meta)
        self.candidate = None if candidate is None else self._read_columns(candidate)
        self.label = Label(*label) if label else None

    # -- following an owner ------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """From here on what is done can be taken back; decodes and migrates all values."""
        self.migrate_all()
        self.originals = {}

    def take_back(self, meta: bytes) -> None:
        """Undo what was done since `follow` or the last `adopt`; `meta` is the group's of then."""
        self.live, self._opened = {}, []
        values = self.values
        for key, old in (self.originals or {}).items():
            if old is None:
                values.pop(key, None)
            else:
                values[key] = old
        self.originals, self.touched = {}, False
        self.dirty.clear()
        self._read(meta)

    def adopt(self, meta: bytes, delta: bytes | None, place: PiecePlace) -> None:
        """What the owner's checkpoint made of the group."""
        if delta is not None:
            self._lay(self.values, delta)
            self.former |= self.versions is not None and state_version(delta) != self.versions.version
        self._read(meta)
        self.place = place
        if self.former:
            self._measure()

    def last_ended(self) -> tuple[int | None, bool, dict[bytes, bytes], dict[bytes, bytes | None]]:
        """(epoch, ENDed, values, undo) without what an unfinished attempt did, by packed key; the group is of no further use.

        `undo` leads from the values of that epoch to those before it. Not ENDed: an attempt at that epoch was under way, and
        the values are those before it. Epoch None: no attempt was ever seen.
        """
        self.settle(close=True)
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
        """The inverse of last_ended, for a new session: any run of it is newer. `version`: of the state."""
        group = cls(Versions(version))
        group.label, group.ended = None if epoch is None else Label(0, epoch, 0), ended
        group.undo, group._values = with_keys(undo), with_keys(values)
        group.size = sum(len(k) + len(v) for k, v in values.items())
        group.waiting = timed_only(unpack(group.values.get(TIMERS, EMPTY)), group.values)
        return group

    # -- a second store ----------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Nothing, of no attempt: what follows comes from a store."""
        self.live, self._opened = {}, []
        self._apply(dict.fromkeys(self.values))
        self.label, self.partition, self.ended, self.undo, self.candidate = None, -1, False, {}, None
        self.touched = True

    def fill(self, values: Mapping[bytes, bytes], version: int = 0) -> None:
        """A part of the stored values of this state version, by packed key; migrated if it is a former one."""
        self._apply(migrated(self.versions, dict(with_keys(values)), version))

    def restored(self, epoch: int) -> None:
        """All is there: the values that `epoch` left; any run is newer, and what was before that epoch is not known."""
        self.label, self.ended, self.touched = Label(0, epoch, RESTORED), True, True

    def packed(self, *, changes: bool) -> dict[bytes, bytes | None]:
        """An ENDed group's values by packed key; with `changes` only those that its epoch changed, None: gone."""
        values = self.values
        if not changes:
            return {pack(k): v for k, v in values.items()}
        return {pack(k): new for k, old in self.undo.items() if (new := values.get(k)) != old}
