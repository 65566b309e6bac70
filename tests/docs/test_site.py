"""The documentation as a site: every page is in it, and every link and anchor leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import bound

ROOT = Path(__file__).parents[2]


def test_the_site_is_built_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=bound(120), check=False, env=environment)
    assert done.returncode == 0, done.stderr
    docs, built = ROOT / "docs", {str(p.relative_to(tmp_path).with_suffix("")) for p in tmp_path.rglob("*.html")}
    assert {str(p.relative_to(docs).with_suffix("")) for p in docs.rglob("*.md")} | {"index", "404"} == built
    assert 'class="mermaid"' in (tmp_path / "architecture.html").read_text("utf-8")
    assert "https://fonts." not in (tmp_path / "index.html").read_text("utf-8")
