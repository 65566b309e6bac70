"""How an engine starts an operator that is a command: its files in a directory of its own, what confines it, its environment.

The engine has the servers' sockets and its password; the operator has this directory, and the one socket in it that leads to its engine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node_manager.drivers.base import Driver, Inside
from node_manager.images.images import OperatorImage
from node_manager.instances import instance_files
from udo_protocol.formats.manifest import Manifest

# Of the operator, within its instance's directory.
OWN = "op"


def launch(manifest: Manifest, code: str, directory: str, before: Sequence[str], home: str) -> dict[str, Any]:
    """What an assignment says of it (docs/protocol.md): `code` and `directory` as the engine sees them."""
    program = manifest.command[0]
    if "/" in program and not program.startswith("/"):
        program = f"{code}/{program}"
    kept = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TZ": os.environ.get("TZ", "UTC")}
    return {
        "argv": [*before, program, *manifest.command[1:]],
        "cwd": code,
        "directory": directory,
        "env": {**kept, "HOME": home, "TMPDIR": home},
        "open_timeout_s": manifest.limits.open_timeout_s,
        "answer_timeout_s": manifest.limits.answer_timeout_s,
    }


def own(directory: Path) -> Path:
    """The operator's directory, made in its instance's."""
    made = directory / OWN
    made.mkdir(mode=0o700)
    instance_files.give([made], directory)
    return made


def placed(image: OperatorImage, directory: Path, inside: Inside, driver: Driver, sockets: Path, nice: int) -> dict[str, Any]:
    """The same, with its code put into its directory. `nice`: of one that is only compared."""
    instance_files.place(image, directory)
    seen = f"{inside.directory}/{OWN}"
    code = f"{seen}/{image.code.name}"
    before = [*(["nice", "-n", str(nice)] if nice else []), *driver.operator_box(Path(seen), Path(code))]
    return launch(image.manifest, code, seen, before, driver.inside(directory, sockets).home)
