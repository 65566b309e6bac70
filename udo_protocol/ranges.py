"""Sets of whole numbers as people write them: `0-63, 70`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from udo_protocol.errors import UsageError


def shown(numbers: Iterable[int]) -> str:
    """The numbers in order as text, consecutive ones as ranges."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parsed(text: str, most: int) -> list[int]:
    """Inverse of `shown`. UsageError for text of another form, or for a number of `most` or more."""
    found: set[int] = set()
    for part in filter(None, re.split(r"[,\s]+", text)):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < most:
            raise UsageError(f"expected numbers below {most} or ranges of them, such as 0-15,40, got {part!r}")
        found.update(range(first, last + 1))
    return sorted(found)
