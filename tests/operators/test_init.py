"""`udo init --runtime`: a project in each language passes its ecosystem's own test command, then `udo test`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.operators.sdks import STATIC_GO, cargo, cargo_target, cmake, maven, run, tools

ROOT = Path(__file__).parents[2]
STYLES = ("batch", "event")


def succeeded(folder: Path, *command: str, **env: str) -> None:
    done = run([*command], folder, **env)
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]} {done.stderr[-4000:]}"


def go(folder: Path) -> None:
    tools("go")
    succeeded(folder, "go", "test", "./...", **STATIC_GO)
    succeeded(folder, "go", "build", "-o", f"bin/{folder.name}", ".", **STATIC_GO)


def node(folder: Path) -> None:
    tools("node", "npm")
    succeeded(folder, "npm", "install", "--prefer-offline", "--no-audit")
    succeeded(folder, "npm", "test")


def rust(folder: Path) -> None:
    tools("cargo")
    target = cargo_target(folder.parents[1])
    cargo(folder, target, "test")
    cargo(folder, target, "build")
    (folder / "bin").mkdir()
    shutil.copy(target / "debug" / "operator", folder / "bin")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """`udo` without a platform."""
    return Shell(tmp_path / "home")


def flagged(shell: Shell, folder: Path) -> list[bool]:
    return [answer["flagged"] for answer in shell("test", folder, "--json").json["answers"]]


@pytest.mark.long
@pytest.mark.parametrize("style", ["batch", "event"])
@pytest.mark.parametrize("build", [go, node, rust])
def test_a_new_project_passes_its_own_test_and_answers(build: Callable[[Path], None], style: str, shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / f"my-{style}"
    shell("init", folder, "--runtime", build.__name__, "--style", style)
    build(folder)
    assert flagged(shell, folder) == [False, True, False]
    left_out = shell("push", folder, "--dry-run", "--json").json["left_out"]
    assert not [path for path in left_out if not re.match(r"node_modules/\.", path)]


@pytest.mark.long
def test_a_new_project_in_java_passes_its_own_test_and_answers_in_both_styles(shell: Shell, tmp_path: Path) -> None:
    tools("mvn", "javac")
    folder, other = (tmp_path / f"my-{style}" for style in STYLES)
    for project, style in ((folder, "batch"), (other, "event")):
        shell("init", project, "--runtime", "java", "--style", style)
        if project is other:  # all else is the same, and need not be built twice
            shutil.copytree(other / "operator" / "src", folder / "operator" / "src", dirs_exist_ok=True)
        assert "Running operators.FlagTest" in maven(folder, "package")  # Maven runs the phase `test` before `package`
        assert flagged(shell, folder) == [False, True, False]


@pytest.mark.long
def test_a_new_project_in_cpp_passes_its_own_test_and_answers_in_both_styles(shell: Shell, tmp_path: Path) -> None:
    folder, other = (tmp_path / f"my-{style}" for style in STYLES)
    for project, style in ((folder, "batch"), (other, "event")):
        shell("init", project, "--runtime", "cpp", "--style", style)
        if project is other:  # all else is the same, and need not be built twice
            for file in ("flag.hpp", "flag_test.cpp"):
                shutil.copy(other / file, folder)
        cmake(folder, folder / "build")
        succeeded(folder, "cmake", "--install", "build", "--prefix", ".")
        assert flagged(shell, folder) == [False, True, False]
    assert shell("push", folder, "--dry-run", "--json").json["left_out"] == ["build/"]


def test_nodes_copy_of_the_operator_protocol_is_the_protocol() -> None:
    copy = ROOT / "runtimes" / "node" / "sdk" / "src" / "operator.proto"  # a copy, since npm packs no links
    assert copy.read_text("utf-8") == (ROOT / "udo_protocol" / "proto" / "operator.proto").read_text("utf-8"), "run make proto"


def test_the_lock_file_of_nodes_samples_names_no_address() -> None:
    lock = (ROOT / "runtimes" / "node" / "samples" / "package-lock.json").read_text("utf-8")
    assert '"integrity"' in lock and "://" not in lock


def test_the_lock_file_of_rust_names_no_address_but_cargos_mark_of_its_own_registry() -> None:
    lock = (ROOT / "runtimes" / "rust" / "Cargo.lock").read_text("utf-8")
    mark = 'source = "registry+https://github.com/rust-lang/crates.io-index"'
    assert "checksum" in lock and {line for line in lock.splitlines() if "://" in line} == {mark}
