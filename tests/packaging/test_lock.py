"""The lock file: exact, hashed, free of addresses, and resolvable for every supported Python."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import bound

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
UV = Path(sys.executable).parent / "uv"


def test_every_requirement_is_exact_and_hashed() -> None:
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK.strip())
    assert len(blocks) > 50
    for block in blocks:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==", block), block.splitlines()[0]
        assert "--hash=sha256:" in block


def test_it_names_no_address() -> None:
    assert not re.search(r"https?://|file:|--(extra-)?index-url|--find-links", LOCK)


def test_it_holds_all_that_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    declared = project["project"]["dependencies"] + project["dependency-groups"]["dev"]
    locked = set(re.findall(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?==", LOCK, re.MULTILINE))
    missing = {m[0].lower().replace("_", "-") for d in declared if (m := re.match(r"[A-Za-z0-9._-]+", d))} - locked
    assert not missing


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_supported_python_finds_a_file_of_each_locked_version(version: str, tmp_path: Path) -> None:
    command = [str(UV), "pip", "install", "--dry-run", "--no-deps", "--require-hashes", "-r", "requirements.lock"]
    done = subprocess.run(
        [*command, "--python-version", version, "--target", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=bound(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "pyspark==" in done.stderr
