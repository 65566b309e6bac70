"""One key group of one session: values, and what is needed to take an attempt back. No I/O.

A label is (run ordinal, epoch, task attempt). A group holds the values of the newest attempt that touched it, `undo` to
get from there to the values before the epoch (the base), whether that attempt was ENDed, and, when a newer attempt
touched an ENDed group, the ENDed values as a `candidate`. Each rule closes a hole: tests/model shows the counterexample.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import msgpack

from udo_protocol.errors import TwoProducers

Delta = dict[bytes, bytes | None]
# Keys of a group that are open at a time; more are packed and opened anew when they come again, so that an epoch that touches
# a million keys does not hold a million dicts.
_OPEN_KEYS = 2048
# A value no MessagePack key can have: the group's own timers.
TIMERS = b"\xc1"


class Label(NamedTuple):
    """Which attempt at which epoch a frame belongs to; attempts of one epoch compare by (run, attempt)."""

    run: int
    epoch: int
    attempt: int


# Extension types beside MessagePack's own timestamp (-1, for times with a zone).
_NAIVE, _DATE, _DECIMAL = 1, 2, 3
_EPOCH = dt.datetime(1970, 1, 1)


def _extend(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            return msgpack.Timestamp.from_datetime(value)
        return msgpack.ExtType(_NAIVE, ((value - _EPOCH) // dt.timedelta(microseconds=1)).to_bytes(8, "big", signed=True))
    if isinstance(value, dt.date):
        return msgpack.ExtType(_DATE, value.toordinal().to_bytes(4, "big"))
    if isinstance(value, Decimal):
        return msgpack.ExtType(_DECIMAL, str(value).encode())
    raise TypeError(f"state holds a {type(value).__name__}: expected numbers, text, bytes, times, lists and dicts of these")


def _extended(code: int, data: bytes) -> Any:
    if code == _NAIVE:
        return _EPOCH + dt.timedelta(microseconds=int.from_bytes(data, "big", signed=True))
    if code == _DATE:
        return dt.date.fromordinal(int.from_bytes(data, "big"))
    if code == _DECIMAL:
        return Decimal(data.decode())
    return msgpack.ExtType(code, data)


# One packer for all keys and values: making one takes longer than packing a small value (50 instead of 350 ns).
_pack: Callable[[Any], bytes] = msgpack.Packer(default=_extend).pack


def pack(value: Any) -> bytes:
    """MessagePack; what it lacks (times without zone, dates, decimals) as extension types, see docs/protocol.md."""
    return _pack(value)


def _pack_large(value: Any) -> bytes:
    return msgpack.packb(value, default=_extend)  # type: ignore[no-any-return]


# Inverse of pack; times with a zone come back in UTC, tuples as lists.
unpack: Callable[[bytes], Any] = partial(msgpack.unpackb, timestamp=3, strict_map_key=False, ext_hook=_extended)


class Group:
    """See the module. Values stay bytes until a key is opened; an open key is a plain dict."""

    __slots__ = (
        "_durable",
        "_keys",
        "_packed",
        "_undo",
        "_values",
        "candidate",
        "dirty",
        "ended",
        "label",
        "live",
        "partition",
        "size",
        "stored",
        "touched",
    )

    def __init__(self) -> None:
        self.label: Label | None = None
        self.partition = -1
        self.ended = False
        self._undo: Delta | bytes = {}  # packed until it is asked for: most often it never is
        self.candidate: Delta | None = None
        self._values: dict[bytes, bytes] | None = {}
        self._durable: tuple[bytes, list[bytes]] | None = None  # base and deltas, not yet decoded
        self._keys = 0  # of those
        self.live: dict[Any, dict[str, Any]] = {}
        self._packed: list[bytes] = []  # the keys of `live`, packed, in its order
        self.dirty: set[bytes] = set()  # keys whose durable value is out of date
        self.touched = False  # label, flag or undo changed since the last checkpoint
        self.size = 0  # bytes of keys and values
        self.stored = [0, 0]  # bytes of the durable base and of the deltas behind it

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
                        f"partitions {self.partition} and {partition} both sent events of one key group in epoch {label.epoch}: a key must "
                        "come from one partition. Let key= repartition, or name two calls of one deployment with uid="
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
            self.ended, self.candidate, self.touched = True, None, True

    def _taken_back(self) -> Delta:
        """Restore the base; what the attempt had made of it."""
        self.settle(close=True)
        made: Delta = {k: self.values.get(k) for k in self.undo}
        self._apply(self.undo)
        return made

    def _apply(self, delta: Delta) -> None:
        for key, value in delta.items():
            self._put(key, value)

    def _put(self, key: bytes, value: bytes | None) -> None:
        old = self.values.get(key)
        if value == old:
            return
        self.dirty.add(key)
        if old is not None:
            self.size -= len(key) + len(old)
        if value is None:
            del self.values[key]
        else:
            self.values[key] = value
            self.size += len(key) + len(value)

    # -- keys --------------------------------------------------------------------------------------------------------

    @property
    def values(self) -> dict[bytes, bytes]:
        """Key to value, both packed; decoded from the durable form at first use."""
        if self._values is None:
            assert self._durable is not None
            self._values = fold(*self._durable)
            self._durable = None
        return self._values

    @property
    def undo(self) -> Delta:
        """What leads from the values before the newest attempt's epoch to the present ones, backwards."""
        if not isinstance(self._undo, dict):
            self._undo = unpack(self._undo)
        return self._undo  # type: ignore[return-value]

    @undo.setter
    def undo(self, undo: Delta) -> None:
        self._undo = undo

    @property
    def keys(self) -> int:
        """How many keys have state."""
        return self._keys if self._values is None else len(self._values) - (TIMERS in self._values)

    def open(self, key: Any) -> dict[str, Any]:
        """The state of `key` as a dict to be changed in place; empty if it has none."""
        if len(self.live) >= _OPEN_KEYS:
            self.settle(close=True)
        packed = key if key is TIMERS else _pack(key)
        values = self._values
        raw = (self.values if values is None else values).get(packed)
        state: dict[str, Any] = {} if raw is None else unpack(raw)
        self.live[key] = state
        self._packed.append(packed)
        self.undo.setdefault(packed, raw)
        return state

    def settle(self, *, close: bool = False) -> None:
        """Pack what is open; with `close` forget it too: the next epoch opens its keys anew."""
        if not self.live:
            return
        values, dirty, size = self.values, self.dirty, self.size
        for packed, state in zip(self._packed, self.live.values(), strict=True):
            value = _pack(state) if state else None
            old = values.get(packed)
            if value == old:
                continue
            dirty.add(packed)
            if old is not None:
                size -= len(packed) + len(old)
            if value is None:
                del values[packed]
            else:
                values[packed] = value
                size += len(packed) + len(value)
        self.size = size
        if close:
            self.live.clear()
            self._packed.clear()

    # -- durable form ------------------------------------------------------------------------------------------------

    def meta(self) -> bytes:
        """Label, partition, flag, undo, candidate, keys and bytes. Undo of keys that did not change is left out."""
        undo: Any = self._undo
        if isinstance(undo, dict):
            if len(undo) != len(self.dirty) or not undo.keys() <= self.dirty:
                values = self.values
                undo = {k: v for k, v in undo.items() if values.get(k) != v}
            undo = _pack_large(undo)
        return _pack_large([list(self.label or ()), self.partition, self.ended, undo, self.candidate, self.keys, self.size])

    def delta(self) -> bytes:
        """The values that changed since the last checkpoint; nil means gone."""
        values = self.values
        return _pack_large({k: values.get(k) for k in self.dirty})

    def snapshot(self) -> bytes:
        """All values."""
        return _pack_large(self.values)

    @classmethod
    def restore(cls, meta: bytes | None, base: bytes | None, deltas: Iterable[bytes]) -> Group:
        """From the durable form; values are decoded when the first key is opened."""
        group = cls()
        group._values, group._durable = None, (base or b"\x80", list(deltas))
        group.stored = [len(base or b""), sum(map(len, group._durable[1]))]
        if meta is not None:
            label, group.partition, group.ended, group._undo, group.candidate, group._keys, group.size = unpack(meta)
            group.label = Label(*label) if label else None
        return group

    def last_ended(self) -> tuple[int | None, bool, dict[bytes, bytes], Delta]:
        """(epoch, ENDed, values, undo) without what an unfinished attempt did; the group is of no further use.

        `undo` leads from the values of that epoch to those before it. Not ENDed: an attempt at that epoch was under way, and
        the values are those before it. Epoch None: no attempt was ever seen.
        """
        self.settle(close=True)
        if self.label is None or self.ended:
            return self.label and self.label.epoch, True, self.values, self.undo
        self._taken_back()
        if self.candidate is None:
            return self.label.epoch, False, self.values, {}
        undo: Delta = {k: self.values.get(k) for k in self.candidate}
        self._apply(self.candidate)
        return self.label.epoch, True, self.values, undo

    @classmethod
    def imported(cls, epoch: int | None, ended: bool, values: dict[bytes, bytes], undo: Delta) -> Group:
        """The inverse of last_ended, for a new session: any run of it is newer."""
        group = cls()
        group.label, group.ended, group.undo = None if epoch is None else Label(0, epoch, 0), ended, undo
        group._values = values
        group.size = sum(len(k) + len(v) for k, v in values.items())
        return group


def fold(base: bytes, deltas: Iterable[bytes]) -> dict[bytes, bytes]:
    """Values of a durable base and the deltas after it."""
    values: dict[bytes, bytes] = unpack(base)
    for packed in deltas:
        delta = unpack(packed)
        values.update(delta)
        if None in delta.values():
            for key in [k for k, v in delta.items() if v is None]:
                del values[key]
    return values
