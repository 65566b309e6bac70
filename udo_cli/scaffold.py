"""What `udo init` writes: templates with the operator's name filled in. It never overwrites a file."""

from __future__ import annotations

import re
import sys
from importlib import resources
from pathlib import Path

from udo_protocol.errors import Conflict, UsageError

_NAME = re.compile(r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$")


def write(directory: Path, name: str, style: str) -> list[Path]:
    """Write the skeleton in `style` ("batch" or "event") into `directory`; the files written.

    UsageError on a name an operator cannot have, Conflict when a file is already there.
    """
    if not _NAME.match(name):
        raise UsageError(
            f"{name!r} cannot name an operator: lower-case letters, digits, '-' and '_', at most 63. Name it with: --name NAME"
        )
    module = re.sub(r"\W", "_", name)
    if module[0].isdigit() or module in sys.stdlib_module_names:
        module = f"op_{module}"  # a module of that name would not be importable, or would hide Python's own
    templates = resources.files("udo_cli") / "templates"
    planned = {}
    for folder in (templates / style, templates / "common"):
        for template in folder.iterdir():
            target = f"{module}.py" if template.name == "operator.py.tmpl" else template.name.removesuffix(".tmpl")
            planned[directory / target] = template.read_text("utf-8").replace("{name}", name).replace("{module}", module)
    if there := [str(p) for p in planned if p.exists()]:
        raise Conflict(f"already there, nothing was written: {', '.join(there)}")
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in planned.items():
        path.write_text(text, "utf-8")
    return sorted(planned)
