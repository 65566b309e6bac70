"""The parameters of tests that the gate leaves out: they run in `make deep`, as tests marked `long` do."""

from __future__ import annotations

from typing import Any

import pytest


def long(*values: Any) -> Any:
    """For `parametrize`: these parameters show nothing that the ones beside them do not show."""
    return pytest.param(*values, marks=pytest.mark.long)
