"""Measurements of the platform's costs and speed: `python -m benchmarks NAME`. Nothing here is shipped."""

import importlib
import os
from importlib.util import find_spec
from types import ModuleType

# The same setting as for the `udo` command (udo_cli/__init__.py).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def module_of(name: str) -> ModuleType:
    """The module of a suite: with `run`, `sections` and `Figures`."""
    folder = "suites" if find_spec(f"benchmarks.suites.{name}") else "verification"
    return importlib.import_module(f"benchmarks.{folder}.{name}")
