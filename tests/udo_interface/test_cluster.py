"""Executors in processes of their own reach their node manager (docs/executors.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import bound

if TYPE_CHECKING:
    from tests.udo_interface.conftest import Platform


@pytest.mark.long
@pytest.mark.parametrize("path", ["python", "jvm"])
def test_executors_of_a_cluster_find_the_node_manager_by_their_environment(
    java: None, platform: Platform, tmp_path: Path, path: str
) -> None:
    name = platform.operator()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYSPARK_SUBMIT"))}
    job = [sys.executable, "-m", "tests.udo_interface.cluster_job", name, platform.url, platform.node, path]
    root = Path(__file__).parents[2]
    env |= {"PYTHONPATH": str(root), "SPARK_WORKER_DIR": str(tmp_path)}
    out = subprocess.run(job, env=env, cwd=root, capture_output=True, text=True, timeout=bound(120), check=False)
    assert out.returncode == 0, out.stderr[-3000:]
    assert json.loads(out.stdout.splitlines()[-1]) == {"ids": True, "executors": 2}
