"""A stateless operator with several answers per event: all patterns of one or two fields."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from udo_runtime import Operator

LARGEST = 2  # fields of a pattern


class Patterns(Operator):
    """The patterns in one event, in the order of its fields' names."""

    def process(self, event: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        """An event that is not JSON, or has no time, fails the query and is shown (docs/bad_events.md has other policies)."""
        fields = json.loads(event["body"])
        at = dt.datetime.fromisoformat(fields.pop("at"))
        items = [f"{name}={value}" for name, value in sorted(fields.items())]
        for size in range(1, LARGEST + 1):
            for pattern in combinations(items, size):
                yield {"at": at, "pattern": " & ".join(pattern)}
