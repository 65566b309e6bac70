"""The result of replaying decisions, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

Json = dict[str, Any]


def replay_text(found: Json, of: Literal["application", "deployment"], granted: Callable[[Json], str]) -> str:
    """The result of a replay of decisions as text for people; granted: the steps that a decision grants, as text."""
    what = f"{found['decisions']} decision{'s' * (found['decisions'] != 1)} in {found['segments']} segment{'s' * (found['segments'] != 1)}"
    if found["same"]:
        return f"{what} replayed: all come out the same"
    lines = [
        f"{d[of]} {d['segment']} decision {d['number']}: {granted(d['recorded'])}, now {granted(d['now'])}" for d in found["differing"]
    ]
    return "\n".join([f"{what} replayed: {len(lines)} come out differently", *lines])
