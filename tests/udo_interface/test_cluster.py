"""Executors in processes of their own reach their node manager (docs/executors.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import bound
from tests.support.keyed_stream import COUNT, MANIFEST

if TYPE_CHECKING:
    from tests.udo_interface.conftest import Platform


def run(platform: Platform, tmp_path: Path, name: str, *arguments: str, job: str = "cluster_job") -> Any:
    """Return what the application on two executor processes printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYSPARK_SUBMIT"))}
    command = [sys.executable, "-m", f"tests.udo_interface.{job}", name, platform.url, platform.node, *arguments]
    root = Path(__file__).parents[2]
    env |= {"PYTHONPATH": str(root), "SPARK_WORKER_DIR": str(tmp_path)}
    out = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=bound(180), check=False)
    assert out.returncode == 0, out.stderr[-3000:]
    return json.loads(out.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("path", ["python", "jvm"])
def test_executors_of_a_cluster_find_the_node_manager_by_their_environment(
    java: None, platform: Platform, tmp_path: Path, path: str
) -> None:
    assert run(platform, tmp_path, platform.operator(), path) == {"ids": True, "executors": 2}


@pytest.mark.long
def test_a_keyed_call_counts_right_in_plans_on_a_cluster_of_two_workers(java: None, platform: Platform, tmp_path: Path) -> None:
    name = platform.operator(COUNT, **MANIFEST)
    assert [wrong for wrong in run(platform, tmp_path, name, "python", str(tmp_path)) if wrong] == []


@pytest.mark.long
@pytest.mark.parametrize("path", ["python", "jvm"])
def test_a_keyed_query_goes_on_with_executors_that_spark_adds_and_removes(
    java: None, platform: Platform, tmp_path: Path, path: str
) -> None:
    """Dynamic allocation: neither a micro-batch nor a second evaluation finds an executor, or cached answers, of the one before."""
    name = platform.operator(COUNT, **MANIFEST)
    ran = run(platform, tmp_path, name, path, str(tmp_path / "query"), job="dynamic_job")
    assert ran["executors"] >= 2 * ran["epochs"] > 2
