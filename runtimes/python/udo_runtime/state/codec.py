"""Packs keys, states and stored pieces: MessagePack with extension types for times without zone, dates and decimals.

The format is described in docs/protocol.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgpack

from udo_runtime.failure import ProcessingError
from udo_runtime.state.versions import Versions

# Key (the value of the key column, or a tuple of several) -> packed state.
Values = dict[Any, bytes]
# Changes of values; None: the key was removed.
Delta = dict[Any, bytes | None]
# The key under which a group keeps its timers: a tuple of no columns, which no event has; and its packed form.
TIMERS: tuple[()] = ()
PACKED_TIMERS = b"\x90"
# Its value is a dict of two dicts by packed key, in µs since 1970: TIMER -> list of times, EXPIRY -> one time.
TIMER, EXPIRY = "t", "x"
# The entry of a key's state that says when it expires.
EXPIRES = "\0expires"
# The packed state of a key that has none: an empty dict.
EMPTY = b"\x80"
# Extension types, in addition to MessagePack's own timestamp (-1, for times with a zone).
_NAIVE, _DATE, _DECIMAL = 1, 2, 3
_EPOCH = dt.datetime(1970, 1, 1)
# The NaN in keys: NaN is not equal to itself, but a dict finds this very object, also within a tuple. And its packed form.
NAN = float("nan")
_PACKED_NAN: bytes = msgpack.packb(NAN)
_V = TypeVar("_V")


# A value may be nested as deeply as MessagePack's packer and unpacker both can, minus some levels for packing several values together; no
# packed value of fewer bytes is nested deeper.
_DEEP = 1_000
_ABOVE = b"\x91" * 16


def _extend(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value == value:  # NaT is a datetime that is not equal to itself
        if value.tzinfo is not None:
            return msgpack.Timestamp.from_datetime(value.astimezone(dt.UTC))
        return msgpack.ExtType(_NAIVE, ((value - _EPOCH) // dt.timedelta(microseconds=1)).to_bytes(8, "big", signed=True))
    if isinstance(value, dt.date):
        return msgpack.ExtType(_DATE, value.toordinal().to_bytes(4, "big"))
    if isinstance(value, Decimal):
        return msgpack.ExtType(_DECIMAL, str(value).encode())
    if isinstance(value, int):
        raise OverflowError(f"state holds an integer of {value.bit_length()} bits: expected integers of at most 64 bits")
    raise TypeError(f"state holds a {type(value).__name__}: expected numbers, text, bytes, times, or lists and dicts of these")


def _extended(code: int, data: bytes) -> Any:
    if code == _NAIVE:
        return _EPOCH + dt.timedelta(microseconds=int.from_bytes(data, "big", signed=True))
    if code == _DATE:
        return dt.date.fromordinal(int.from_bytes(data, "big"))
    if code == _DECIMAL:
        return Decimal(data.decode())
    return msgpack.ExtType(code, data)


# Packers that are not in use. A packer holds the value being packed, in the middle of which `_extend`, or the zone of a time, may let
# another thread pack something else. Making a packer takes longer than packing a small value (350 and 50 ns).
_packers: list[Callable[[Any], bytes]] = []


def _packer() -> Callable[[Any], bytes]:
    try:
        return _packers.pop()
    except IndexError:
        return msgpack.Packer(default=_extend).pack  # type: ignore[no-any-return]


def pack(value: Any) -> bytes:
    """The packed form of a key or a state. TypeError, ValueError or OverflowError for a value that cannot be stored."""
    packer = _packer()
    try:
        return packer(value)
    finally:
        _packers.append(packer)


def pack_large(value: Any) -> bytes:
    """`pack` for large values: `pack` would keep a buffer of that size."""
    return msgpack.packb(value, default=_extend)  # type: ignore[no-any-return]


def pack_all(states: Iterable[Any]) -> list[bytes]:
    """The packed form of each state. TypeError, ValueError or OverflowError for one that could not be stored and read again."""
    packer = _packer()
    try:
        packed = list(map(packer, states))
    finally:
        _packers.append(packer)
    if max(map(len, packed), default=0) > _DEEP:
        for value in packed:
            _require_flat(value)
    return packed


def pack_each(keys: Iterable[Any], states: Collection[Any]) -> list[bytes]:
    """The packed form of each key's state. TypeError, which names the key, for one that could not be stored and read again."""
    try:
        return pack_all(states)
    except (TypeError, ValueError, OverflowError) as e:
        for key, state in zip(keys, states, strict=True):
            try:
                pack_all([state])
            except (TypeError, ValueError, OverflowError) as why:
                raise TypeError(f"the state of key {key!r:.200} cannot be stored: {why}") from e
        raise


def _require_flat(packed: bytes) -> None:
    if len(packed) > _DEEP:
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        unpacker.feed(_ABOVE)
        unpacker.feed(packed)
        try:
            unpacker.skip()  # does not build the value: a fraction of the time that packing takes
        except msgpack.StackError:
            raise ValueError(f"it is nested deeper than {_DEEP:,}") from None


_unpack = partial(msgpack.unpackb, timestamp=3, strict_map_key=False, ext_hook=_extended)


def unpack(packed: bytes) -> Any:
    """Inverse of `pack`. Times with a zone are returned in UTC; tuples as lists, or as tuples if they are keys of a dict."""
    try:
        return _unpack(packed)
    except TypeError:  # a list as a key
        return _unpack(packed, object_pairs_hook=_with_tuples)


def _with_tuples(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_tuples(key): value for key, value in pairs}


def _tuples(key: Any) -> Any:
    return tuple(map(_tuples, key)) if isinstance(key, list) else key


# `unpack` with all lists as tuples.
unpack_tuples = partial(msgpack.unpackb, timestamp=3, use_list=False, ext_hook=_extended)


def unpack_all(raws: Iterable[bytes], count: int) -> list[Any]:
    """Unpack `count` values as one array: 75 instead of 300 ns each."""
    return unpack(b"".join((b"\xdd", count.to_bytes(4, "big"), *raws)))  # type: ignore[no-any-return]


def unpack_each(raws: Sequence[bytes], mark: bytes) -> list[Any]:
    """Unpack values of unknown content as one array, each followed by `mark` (a packed value), so that malformed ones are found."""
    joined = mark.join(raws) + mark
    return unpack(b"".join((b"\xdd", (2 * len(raws)).to_bytes(4, "big"), joined)))  # type: ignore[no-any-return]


def timed_only(timers: Mapping[str, Collection[bytes]], values: Mapping[Any, bytes]) -> int:
    """The number of keys of a group with a timer and no state, from its timers (the value of TIMERS) and its values."""
    packed = timers.get(TIMER, ())
    joined = b"".join((b"\xdd", len(packed).to_bytes(4, "big"), *packed))
    return len(set(findable(unpack_tuples(joined))) - values.keys())


def columns(version: int, delta: Mapping[Any, bytes | None]) -> list[Any]:
    """The stored form of a dict: [state version, keys, values in the same order]. Two arrays are read faster than a map."""
    return [version, list(delta), list(delta.values())]


def state_version(packed: bytes) -> int:
    """The state version of a stored base or change: 0 to 127, so it is the byte after the array's header."""
    return packed[1]


def migrated(versions: Versions | None, values: Delta, version: int) -> Delta:
    """Packed states of state version `version`, migrated to that of `versions`; timers and expirations stay. Errors: see Versions;
    ProcessingError for a state of the same version whose types differ from the declared ones, if those are required."""
    if versions is None or version == versions.version:
        if versions is not None and versions.requires_types:
            _require_types(versions, values)
        return values
    former = {key: raw for key, raw in values.items() if raw is not None and key != TIMERS}
    if not former:
        return values
    if in_one := versions.in_one(version):
        return {**values, **dict(zip(former, in_one(list(former), list(former.values()), version), strict=True))}
    return {**values, **{key: _migrated(versions, key, raw, version) for key, raw in former.items()}}


def _require_types(versions: Versions, values: Delta) -> None:
    for key, raw in values.items():
        if raw is not None and key != TIMERS and (problem := versions.problem(unpack(raw))):
            raise ProcessingError(
                f"it cannot go on from the state of key {key!r:.100}: {problem}. Give the version another state_version and a migrate(), "
                "or take the type out of its [state]"
            )


def _migrated(versions: Versions, key: Any, raw: bytes, version: int) -> bytes:
    state = unpack(raw)
    expires = state.pop(EXPIRES, None)
    new = versions.migrated(key, state, version)
    return pack_each([key], [new if expires is None else {**new, EXPIRES: expires}])[0]


def with_packed_keys(values: Mapping[Any, _V]) -> dict[bytes, _V]:
    """The same dict by packed key, its form outside a group."""
    return dict(zip(pack_all(values), values.values(), strict=True))


def with_keys(values: Mapping[bytes, _V]) -> dict[Any, _V]:
    """Inverse of `with_packed_keys`."""
    return {unpack_key(k): v for k, v in values.items()}


def unpack_key(packed: bytes) -> Any:
    """The key as in events: a tuple for several columns."""
    key = unpack_tuples(packed)
    return _findable(key) if _PACKED_NAN in packed else key


def findable(keys: Sequence[Any]) -> Sequence[Any]:
    """Unpacked keys, in the form of keys of a dict. Looks at all of them only if some may hold a NaN."""
    of_each = list(map(type, keys))
    if not of_each or ((first := of_each[0]) in (int, str) and of_each.count(first) == len(of_each)):  # half the time of a set
        return keys
    kinds = set(of_each)
    if tuple in kinds:
        kinds.remove(tuple)
        kinds.update(map(type, chain.from_iterable(key for key in keys if type(key) is tuple)))
    return list(map(_findable, keys)) if float in kinds or tuple in kinds else keys


def _findable(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_findable, key))
    return NAN if key != key else key
