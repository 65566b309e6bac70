"""The wheel, installed beside nothing but what it declares, does the main job: what is published is what is tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from udo_cli import scaffold

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).parent / "uv")
PACKAGES = ("udo_protocol", "elasticity", "registry", "node_manager", "udo_interface", "udo_cli", "udo_runtime")


def declared(name: str, extras: frozenset[str] = frozenset()) -> dict[str, metadata.Distribution]:
    """All that a distribution needs, by what it and they declare, as installed here."""
    found: dict[str, metadata.Distribution] = {}
    for requirement in map(Requirement, metadata.requires(name) or []):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *extras)):
            found |= {requirement.name: metadata.distribution(requirement.name)}
            found |= declared(requirement.name, frozenset(requirement.extras))
    return found


def share(distribution: metadata.Distribution, packages: Path) -> None:
    """Its files in another environment's folder of packages, without a copy where the file system allows it."""
    for file in distribution.files or ():
        source, target = Path(distribution.locate_file(file)), packages / file
        if file.suffix == ".pyc" or (".." in file.parts and source.name != "uv"):  # scripts name the interpreter they belong to
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except FileExistsError:
            pass
        except OSError:
            shutil.copy2(source, target)


@pytest.fixture
def environment() -> Iterator[Path]:
    """A virtual environment with the wheel of this checkout and what it declares."""
    with tempfile.TemporaryDirectory(prefix="udo-w-") as name:
        made, venv = Path(name) / "dist", Path(name) / "venv"
        run([UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(made)], ROOT)
        (wheel,) = made.glob("*.whl")
        run([UV, "venv", "--quiet", "--python", sys.executable, str(venv)], made)
        run([UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(venv), str(wheel)], made)
        (packages,) = venv.glob("lib/python3*/site-packages")
        for distribution in declared("udo-spark").values():
            share(distribution, packages)
        run([UV, "pip", "check", "--python", str(venv)], made)
        yield venv


def run(command: list[str], cwd: Path) -> str:
    """Standard output of a command that must succeed, with nothing of this checkout on its path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=kept | {"TMPDIR": str(cwd)}, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]} {done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.long
def test_the_wheel_installed_into_a_fresh_environment_runs_the_demo(environment: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="udo-w-") as elsewhere:
        where = f"import {', '.join(PACKAGES)}; print(*(p.__path__[0] for p in ({', '.join(PACKAGES)})), sep='\\n')"
        places = run([str(environment / "bin" / "python"), "-c", where], Path(elsewhere)).split()
        assert [p for p in places if not Path(p).is_relative_to(environment)] == []

        for runtime in scaffold.SDK_FILES:
            folder = Path(elsewhere, runtime)
            run([str(environment / "bin" / "udo"), "init", str(folder), "--runtime", runtime], Path(elsewhere))
            here = scaffold.write(Path(elsewhere, "here", runtime), runtime, "batch", runtime)  # as this checkout has it
            assert {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()} == {
                p.relative_to(Path(elsewhere, "here", runtime)) for p in here
            }

        demo = [str(environment / "bin" / "udo"), "demo", "--rows", "6000", "--rate", "3000", "--update-at", "2000", "--json"]
        report = json.loads(run(demo, Path(elsewhere)))

    assert (report["events_in"], report["events_out"]) == (6_000, 6_000)
    assert [report[k] for k in ("lost", "duplicated", "reordered", "unknown")] == [0] * 4
    assert 2_000 <= report["update"]["first_row"] < 6_000
