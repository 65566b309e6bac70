"""What the pages need beside docs/*.md: README.md as the first page, and links out of docs/ as the paths that they are in a checkout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_OUT = re.compile(r"\[([^\]]*)\]\((?:\.\./)?((?:benchmarks|docker|examples|kubernetes|runtimes|systemd|tests)\b[^)]*)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the first page."""
    text = (ROOT / "README.md").read_text("utf-8")
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name what lies outside."""
    return _OUT.sub(r"\1 (`\2`)", markdown)
