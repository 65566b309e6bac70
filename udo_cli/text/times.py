"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime


def when(seconds: float) -> str:
    """Seconds since the epoch as UTC text, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
