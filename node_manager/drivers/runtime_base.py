"""The only packages a warm instance can import besides the standard library, as a directory of links.

An operator never sees the environment of Spark or of the node manager; its own packages go in front of these.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from udo_protocol.errors import Unavailable

# pyarrow without numpy: an operator that wants numpy or pandas brings it, in a cold start of its own.
PACKAGES = ("pyarrow", "google.protobuf", "google._upb", "msgpack", "udo_runtime", "udo_protocol")
OPTIONAL = ("google._upb",)
# A dependency layer that ships one of these cannot use a warm instance, which has loaded ours or decided to go without.
LOADED = ("pyarrow", "google/protobuf", "msgpack", "numpy", "udo_runtime", "udo_protocol")


def _location(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def build(directory: Path) -> Path:
    """Link every package into `directory`, replacing links that point elsewhere; Unavailable names a missing one."""
    directory.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        target = _location(package)
        if target is None:
            if package in OPTIONAL:
                continue
            raise Unavailable(f"the node manager's environment lacks {package}, which every operator needs; install udo-spark again")
        link = directory.joinpath(*package.split("."))
        link.parent.mkdir(exist_ok=True)
        if link.is_symlink() and link.readlink() == target:
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return directory


def bootstrap() -> Path:
    """The script an instance starts with."""
    runtime = _location("udo_runtime")
    if runtime is None:
        raise Unavailable("the node manager's environment lacks udo_runtime; install udo-spark again")
    return runtime / "bootstrap.py"


def contradicts(dependencies: Path) -> bool:
    """Whether a dependency layer ships something that a warm instance has already loaded."""
    return any((dependencies / name).exists() or (dependencies / f"{name}.py").exists() for name in LOADED)
