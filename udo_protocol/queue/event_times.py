"""The highest event times seen, in µs since 1970, by input; watermarks are derived from them.

The times of several frames, partitions or slots are combined by taking the highest of each input. The watermark follows the input that
is furthest behind, since an event of that input may still come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from udo_protocol.queue.frame import Header

# The highest event time of each input that has had an event with a time.
EventTimes = Mapping[str, int]
# The key for a single input.
ONLY = "t"


def combined(times: Iterable[EventTimes]) -> dict[str, int]:
    """The highest event time of each input."""
    found: dict[str, int] = {}
    for each in times:
        for name, us in each.items():
            if us > found.get(name, us - 1):
                found[name] = us
    return found


def behind(times: EventTimes, inputs: Sequence[str]) -> int | None:
    """The highest event time of the input that is furthest behind; None while an input has had none. `inputs`: empty for a single one."""
    wanted = inputs or (ONLY,)
    return min(times[name] for name in wanted) if times.keys() >= set(wanted) else None


def told(header: Header) -> dict[str, int]:
    """The event times in a frame's header."""
    return {ONLY: header.highest_us} if header.HasField("highest_us") else dict(header.highest_us_of)


def fields(times: EventTimes) -> dict[str, Any]:
    """The header's fields for these event times."""
    if not times:
        return {}
    return {"highest_us": times[ONLY]} if times.keys() == {ONLY} else {"highest_us_of": dict(times)}
