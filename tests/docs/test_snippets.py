"""Runs what the documentation shows: every `sh` and `python` block of a document, in order, in one fresh platform.

A block is left out only if the line before it says why: `<!-- not run: reason -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))]
# How a snippet of a bare Redis client gets in: as the node manager.
SERVER = """export UDO_QUEUE_SOCKET="$UDO_HOME/node/run/queue.sock"
export UDO_QUEUE_PASSWORD="$(python -c "import json; print(json.load(open('$UDO_HOME/node/servers/access.json'))['manager'])")"
"""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, body) of the blocks that are to run."""
    found = []
    for m in _FENCE.finditer(text):
        before = text[: m.start()].rstrip().splitlines()
        if m[1] in ("sh", "python") and not (before and before[-1].startswith("<!-- not run:")):
            found.append((m[1], m[2]))
    return found


def script(document: str) -> str:
    """One bash script of all blocks: consecutive python blocks share a process, since they share names."""
    lines: list[str] = ["set -euo pipefail"]
    python: list[str] = []

    def flush() -> None:
        if python:
            lines.append("python - <<'END_OF_SNIPPET'\n" + "\n".join(python) + "\nEND_OF_SNIPPET")
            python.clear()

    for language, body in blocks((ROOT / document).read_text("utf-8")):
        if language == "python":
            python.append(body)
        else:
            flush()
            lines.append(body)
    flush()
    return "\n".join(lines)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of a platform of the test's own; whatever the snippets left running is stopped."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "SPARK_", "PYSPARK_")) or k == "SPARK_SUBMIT_OPTS"}
    binaries = str(Path(sys.executable).parent)
    env = {**keep, "UDO_HOME": str(tmp_path / "home"), "PATH": f"{binaries}{os.pathsep}{keep['PATH']}"}
    yield env
    subprocess.run([f"{binaries}/udo", "down"], env=env, timeout=60, check=False, capture_output=True)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks((ROOT / d).read_text("utf-8"))])
def test_the_snippets_run(document: str, platform: dict[str, str], tmp_path: Path) -> None:
    text = script(document)
    if "udo up" not in text:
        text = text.replace("set -euo pipefail", f"set -euo pipefail\nudo up\n{SERVER}", 1)
    work = tmp_path / "work"
    work.mkdir()
    (work / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(["bash", "-c", text], cwd=work, env=platform, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{document}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
