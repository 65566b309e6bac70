"""Which parameters of a test the gate takes: the others run in `make deep`, as tests marked `long` do."""

from __future__ import annotations

from typing import Any

import pytest


def long(*values: Any) -> Any:
    """For `parametrize`: these parameters show nothing that those beside them do not show as well."""
    return pytest.param(*values, marks=pytest.mark.long)
