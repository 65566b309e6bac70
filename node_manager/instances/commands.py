"""How an engine starts an operator in a process of its own: the operator's directory, its confinement, its environment.

The engine has the servers' sockets and its password; the operator has this directory, and one socket in it, which leads to its engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node_manager.drivers import users
from node_manager.drivers.base import Allowance, Driver, Inside
from node_manager.instances import instance_files, linking
from udo_protocol.formats.manifest import Manifest

if TYPE_CHECKING:
    from node_manager.images.images import OperatorImage

# Options that keep the packages of the user, and of the folder that Python runs in, off its module path.
ALONE = ("-s", "-P", "-S")
# The operator's directory within its instance's.
OWN = "op"


@dataclass(frozen=True)
class Python:
    """The runtime of a Python operator: the interpreter, and the folders of its module path, the runtime base last."""

    interpreter: str
    path: Sequence[str]

    def starting(self, manifest: Manifest) -> list[str]:
        """The program and its arguments."""
        start = f"{self.path[-1]}/udo_runtime/served/start.py"
        return [self.interpreter, *ALONE, start, manifest.entry, manifest.name, manifest.version]


def surroundings(inside: Inside) -> dict[str, str]:
    """Variables that every operator gets unless its deployment sets them. Strings hash the same in all of its processes, so results that
    depend on the order of a set stay the same after an update, after a retry and in a replay."""
    return {"TZ": os.environ.get("TZ", "UTC"), "HOME": inside.home, **users.environment(inside.user), "PYTHONHASHSEED": "0"}


def launch(
    manifest: Manifest, code: str, directory: str, before: Sequence[str], inside: Inside, python: Python | None = None
) -> dict[str, Any]:
    """The `command` of an assignment (docs/protocol.md). `code` and `directory`: as the engine sees them; `inside`: as the operator sees
    them. `python`: for an operator that is not a command; it is started in its directory, a command in its code folder."""
    kept = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", **surroundings(inside)}
    if python is not None:
        program, cwd = python.starting(manifest), directory
        kept["UDO_PYTHONPATH"] = os.pathsep.join(python.path)
    else:
        program, cwd = list(manifest.command), code
        if "/" in program[0] and not program[0].startswith("/"):
            program[0] = f"{code}/{program[0]}"
    return {
        "argv": [*before, *program],
        "cwd": cwd,
        "directory": directory,
        "env": {**kept, "TMPDIR": inside.home},
        "open_timeout_s": manifest.limits.open_timeout_s,
        "answer_timeout_s": manifest.limits.answer_timeout_s,
        "rehearse": f"{code}/{manifest.rehearse}" if manifest.rehearse else "",
    }


def own(directory: Path) -> Path:
    """Make the operator's directory in its instance's."""
    made = directory / OWN
    made.mkdir(mode=0o700)
    instance_files.give([made], directory)
    return made


def placed(image: OperatorImage, directory: Path, inside: Inside, driver: Driver, sockets: Path, base: Path, nice: int) -> dict[str, Any]:
    """As `launch`, with the operator's code put into its directory. `inside`: as the engine sees it; `base`: the node's runtime base;
    `nice`: the niceness of an operator that is only compared."""
    instance_files.place(image, directory)
    seen, manifest = Path(inside.directory) / OWN, image.manifest
    code, dependencies = str(seen / image.code.name), str(seen / image.dependencies.name)
    alone = driver.inside(directory, sockets)
    python = None
    if not manifest.command:
        python = Python("python3" if alone.runtime else sys.executable, [code, dependencies, alone.runtime or str(base)])
    cwd = Path(code) if python is None else seen
    bare = python is None and "/" in manifest.command[0] and linking.static(image.code / manifest.command[0])
    box = driver.operator_box(seen, cwd, Allowance.of(manifest), python=python is not None, bare=bare, nice=nice)
    return launch(manifest, code, str(seen), box, alone, python)
