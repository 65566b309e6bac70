"""Signals by name, for messages about processes that one of them has ended."""

from __future__ import annotations

import signal


def named(number: int) -> str:
    """As `9 (SIGKILL)`; the number alone if the signal has no name, as most real-time signals."""
    return f"{number}" + "".join(f" ({known.name})" for known in signal.Signals if known == number)
