"""Runs a daemon in place of this process, so that signals reach the daemon and the exit status is the daemon's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def run(module: str, arguments: Sequence[str]) -> int:
    """Replace this process by `python -m module`; never returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])
