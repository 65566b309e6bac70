"""Durations as people write them: 500ms, 30s, 5m, 1h; a number alone is seconds."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FORM = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)?$")


class Duration(click.ParamType[float]):
    """An option's value in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        m = _FORM.match(str(value).strip())
        if not m or not float(m[1]):
            self.fail(f"expected a time such as 500ms, 30s, 5m or 1h, got {value!r}", param, ctx)
        return float(m[1]) * _UNITS[m[2] or "s"]
