"""How keys, states and stored pieces are packed: MessagePack, with extension types for what it lacks, see docs/protocol.md."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import msgpack

from udo_runtime.state.versions import Versions

# Keys (the value of a key column, a tuple of several) to packed values.
Values = dict[Any, bytes]
Delta = dict[Any, bytes | None]
# The key of the group's own timers: a tuple of no columns, which no event has.
TIMERS: tuple[()] = ()
PACKED_TIMERS = b"\x90"  # as it stands outside of a group
# What lies there: a group's timers and expirations by packed key, in µs since the epoch: several timers, one expiration.
TIMER, EXPIRY = "t", "x"
# In a key's state: when it expires.
EXPIRES = "\0expires"
# A key's state that is not there.
EMPTY = b"\x80"
# Extension types beside MessagePack's own timestamp (-1, for times with a zone).
_NAIVE, _DATE, _DECIMAL = 1, 2, 3
_EPOCH = dt.datetime(1970, 1, 1)
_V = TypeVar("_V")


def _extend(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            return msgpack.Timestamp.from_datetime(value)
        return msgpack.ExtType(_NAIVE, ((value - _EPOCH) // dt.timedelta(microseconds=1)).to_bytes(8, "big", signed=True))
    if isinstance(value, dt.date):
        return msgpack.ExtType(_DATE, value.toordinal().to_bytes(4, "big"))
    if isinstance(value, Decimal):
        return msgpack.ExtType(_DECIMAL, str(value).encode())
    raise TypeError(f"state holds a {type(value).__name__}: expected numbers, text, bytes, times, or lists and dicts of these")


def _extended(code: int, data: bytes) -> Any:
    if code == _NAIVE:
        return _EPOCH + dt.timedelta(microseconds=int.from_bytes(data, "big", signed=True))
    if code == _DATE:
        return dt.date.fromordinal(int.from_bytes(data, "big"))
    if code == _DECIMAL:
        return Decimal(data.decode())
    return msgpack.ExtType(code, data)


# MessagePack; what it lacks (times without zone, dates, decimals) as extension types. One packer for all keys and values: making one
# takes longer than packing a small value (50 instead of 350 ns).
pack: Callable[[Any], bytes] = msgpack.Packer(default=_extend).pack


def pack_large(value: Any) -> bytes:
    """The same, for what is too large to keep a buffer of that size."""
    return msgpack.packb(value, default=_extend)  # type: ignore[no-any-return]


# Inverse of pack; times with a zone come back in UTC, tuples as lists.
unpack: Callable[[bytes], Any] = partial(msgpack.unpackb, timestamp=3, strict_map_key=False, ext_hook=_extended)
unpack_tuples = partial(msgpack.unpackb, timestamp=3, use_list=False, ext_hook=_extended)


def unpack_all(raws: Iterable[bytes], count: int) -> list[Any]:
    """Many values as one array: 75 instead of 300 ns each."""
    return unpack(b"".join((b"\xdd", count.to_bytes(4, "big"), *raws)))  # type: ignore[no-any-return]


def unpack_each(raws: Sequence[bytes], mark: bytes) -> list[Any]:
    """The same of values that nobody has looked at yet; behind each stands `mark`, which is packed as well."""
    joined = mark.join(raws) + mark
    return unpack(b"".join((b"\xdd", (2 * len(raws)).to_bytes(4, "big"), joined)))  # type: ignore[no-any-return]


def timed_only(timers: Mapping[str, Collection[bytes]], values: Values) -> int:
    """How many keys have a timer and no value, of a group's timers and values."""
    packed = timers.get(TIMER, ())
    return len(set(unpack_tuples(b"".join((b"\xdd", len(packed).to_bytes(4, "big"), *packed)))) - values.keys())


def columns(version: int, delta: Delta | Values) -> list[Any]:
    """What is stored of a dict by key: state version, keys, values in the same order. Two arrays are read without hashing."""
    return [version, list(delta), list(delta.values())]


def state_version(packed: bytes) -> int:
    """The state version of a stored piece (0 to 127: one byte behind the array's)."""
    return packed[1]


def migrated(versions: Versions | None, values: Delta, version: int) -> Delta:
    """Packed states of a version as this one's; when they expire is the platform's and stays, as do timers."""
    if versions is None or version == versions.version:
        return values
    former = {key: raw for key, raw in values.items() if raw is not None and key != TIMERS}
    if not former:
        return values
    if in_one := versions.in_one(version):
        return {**values, **dict(zip(former, in_one(list(former), list(former.values()), version), strict=True))}
    return {**values, **{key: _migrated(versions, key, raw, version) for key, raw in former.items()}}


def _migrated(versions: Versions, key: Any, raw: bytes, version: int) -> bytes:
    state = unpack(raw)
    expires = state.pop(EXPIRES, None)
    new = versions.migrated(key, state, version)
    return pack(new if expires is None else {**new, EXPIRES: expires})


def with_packed_keys(values: Mapping[Any, _V]) -> dict[bytes, _V]:
    """As they stand outside of a group."""
    return {pack(k): v for k, v in values.items()}


def with_keys(values: Mapping[bytes, _V]) -> dict[Any, _V]:
    """The inverse."""
    return {unpack_tuples(k): v for k, v in values.items()}
