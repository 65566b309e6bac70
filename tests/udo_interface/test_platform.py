"""The platform for the tests leaves nothing behind, even if it does not start."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest

from tests.udo_interface.conftest import Platform


def test_a_platform_whose_node_manager_does_not_start_leaves_no_registry_running() -> None:
    with tempfile.TemporaryDirectory(prefix="udo-") as home:
        (Path(home) / "node").write_text("where a directory is to be")
        with pytest.raises(pytest.fail.Exception, match="node_manager ended with status"):
            Platform(Path(home))
        left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if any(home in word for word in p.info["cmdline"] or [])]
    assert left == []
