"""Keys and values of a session as people and scripts read them: JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

from udo_runtime.state.codec import EMPTY, EXPIRES, PACKED_TIMERS, TIMER, unpack, unpack_key

from udo_cli.state_file import STORED_VERSION, EndedGroup

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def entries(groups: Iterable[EndedGroup], key: str | None = None) -> Iterator[dict[str, Any]]:
    """{key, state, group, state_version?, expires?, timers?} of every key, or of the one that `key` names (plain text or JSON).

    `state_version`: only for a state that is still stored in a former version. A key may have timers and no state.
    """
    wanted = None if key is None else _readings(key)
    for g in groups:
        if g.group < 0:
            continue
        timers = _timers(g.values.get(PACKED_TIMERS))
        for packed, value in ({packed: EMPTY for packed in timers} | g.values).items():
            if packed == PACKED_TIMERS:
                continue
            name = unpack_key(packed)
            if wanted is not None and plain(name) not in wanted:
                continue
            state = unpack(value)
            expires = state.pop(EXPIRES, None) if isinstance(state, dict) else None
            former = state.pop(STORED_VERSION, None) if isinstance(state, dict) else None
            entry = {"key": plain(name), "state": plain(state), "group": g.group}
            if former is not None:
                entry["state_version"] = former
            if expires is not None:
                entry["expires"] = _time(expires)
            if packed in timers:
                entry["timers"] = [_time(at) for at in sorted(timers[packed])]
            yield entry


def _readings(text: str) -> list[Any]:
    try:
        return [text, json.loads(text)]
    except ValueError:
        return [text]


def _timers(packed: bytes | None) -> dict[bytes, list[int]]:
    return unpack(packed).get(TIMER, {}) if packed else {}


def _time(us: int) -> str:
    return (_EPOCH + timedelta(microseconds=us)).isoformat()


def plain(value: Any) -> Any:
    """A value in terms of JSON: times as ISO text, bytes as hexadecimal digits, keys of maps as text."""
    if isinstance(value, dict):
        return {k if isinstance(k, str) else str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
