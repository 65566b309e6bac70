"""Runs the interpreter-sensitive tests on every other supported Python found on this machine, each in its own environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
# Tests of protocol, runtime, registry and command line, which use C extensions or depend on the standard library.
TESTS = [
    "tests/protocol",
    *(f"tests/runtime/test_{name}.py" for name in ("groups", "instance", "keyed", "bad_events")),
    "tests/registry/test_content.py",
    "tests/registry/test_updates.py",
    "tests/cli/test_packing.py",
]
# An executable that has not answered by then is not an interpreter.
START_S = 30
UV = str(Path(sys.executable).parent / "uv")


def candidates() -> list[str]:
    """The executables that may be supported interpreters: on PATH, and those that version managers keep off it."""
    named = [path for v in SUPPORTED if (path := shutil.which(f"python{v}"))]
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin/python3.1[1-4]")
    return [*named, *map(str, sorted(kept))]


def others() -> dict[str, str]:
    """Version -> executable of the supported interpreters other than this one."""
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    found: dict[str, str] = {}
    for path in candidates():
        show = [path, "-c", "import sys; print(sys.version_info.major, sys.version_info.minor, sys.executable)"]
        answer = subprocess.run(show, capture_output=True, text=True, timeout=START_S, check=False)
        if answer.returncode == 0:
            major, minor, executable = answer.stdout.split(maxsplit=2)
            if f"{major}.{minor}" in SUPPORTED and f"{major}.{minor}" != mine:
                found.setdefault(f"{major}.{minor}", executable.strip())
    return found


def main() -> int:
    """Return the exit status of the first failing interpreter, else 0; 1 if there is no other interpreter where all parts are required."""
    found = others()
    print(f"other interpreters present: {', '.join(found) or 'none'}", flush=True)
    if not found and os.environ.get("UDO_REQUIRE") == "all":
        print(f"one of Python {', '.join(SUPPORTED)} beside this one is required here (UDO_REQUIRE=all)", file=sys.stderr)
        return 1
    for version, path in sorted(found.items()):
        with tempfile.TemporaryDirectory(prefix="udo-interpreter-") as made:
            # Tests marked `long` are about the project's own rules, not about an interpreter.
            status = run(f"Python {version}", path, Path(made), TESTS, UDO_REQUIRE="", UDO_MODEL_EXAMPLES="50")
        if status:
            return status
    return 0


def run(what: str, path: str, scratch: Path, tests: Sequence[str], *, pyspark: str = "", **variables: str) -> int:
    """Run the tests with one interpreter, in an environment under `scratch`, with this requirement of PySpark (or without PySpark), and
    with these environment variables.

    Returns the status of the command that failed, else 0.
    """
    python, left_out = str(scratch / "venv" / "bin" / "python"), scratch / "left_out.txt"
    left_out.write_text("pyspark\n", "utf-8")  # PySpark is built from source, so it is installed only where a test needs it
    install = [UV, "pip", "install", "--quiet", "--python", python]
    for command in (
        [UV, "venv", "--quiet", "--python", path, str(scratch / "venv")],
        [*install, "--require-hashes", "-r", "requirements.lock", "--excludes", str(left_out)],
        *([[*install, pyspark]] if pyspark else []),
        [*install, "--no-deps", "--no-build-isolation", "-e", "."],
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
    ):
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode
        if status:
            print(f"{what}: {' '.join(command[:4])} ... ended with status {status}", file=sys.stderr)
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
