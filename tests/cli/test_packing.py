"""The package that `udo push` makes: equal bytes for equal files, dependencies as a layer of their own, and clear refusals."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.support.wheels import wheel
from udo_cli.packing.layers import files_of, left_out
from udo_protocol.errors import UsageError


def digest(udo: Shell, folder: Path) -> str:
    return str(udo("push", folder, "--dry-run", "--json").json["digest"])


def test_the_same_files_give_the_same_digest_wherever_and_whenever(udo: Shell, operator: Callable[..., Path]) -> None:
    first, second = operator(), operator()
    os.utime(second / "op.py", (1, 1))
    (second / "__pycache__").mkdir()
    (second / "__pycache__" / "op.cpython-311.pyc").write_bytes(b"x")
    (second / ".hidden").write_text("x")
    assert digest(udo, first) == digest(udo, second)


@pytest.mark.long
def test_a_push_says_what_stays_out_of_the_package(udo: Shell, operator: Callable[..., Path]) -> None:
    folder = operator()
    for inside in ("node_modules/left/pad.js", "lib/.env", "__pycache__/op.cpython-311.pyc", "lib/kept.txt"):
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        (folder / inside).write_text("x")
    done = udo("push", folder, "--dry-run", "--json")
    assert "left out of the package: lib/.env, node_modules/ (" in done.err
    assert done.json["left_out"] == ["lib/.env", "node_modules/"]
    assert "left out" not in udo("push", operator(), "--dry-run").err


def test_a_commands_package_has_all_that_npm_installed_and_nothing_that_was_built_on_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "op"
    kept = ("node_modules/@a/b/dist/.hidden", "node_modules/c/build/c.js", "main.js", "dist/x.js", "packages/own/own.js")
    for inside in (*kept, "node_modules/.package-lock.json", "node_modules/.bin/c", "target/x.class", ".npmrc"):
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        (folder / inside).write_text("x")
    (folder / "node_modules" / "own").symlink_to("../packages/own")  # npm installs a package inside the folder as such a link
    (folder / "packages" / "own" / "node_modules").mkdir()
    (folder / "packages" / "own" / "node_modules" / "own").symlink_to("..")
    linked = {"node_modules/own/own.js", "packages/own/node_modules/own/own.js"}
    assert {inside for inside, _ in files_of(folder, command=True)} == {*kept, *linked}
    assert left_out(folder, command=True) == [".npmrc", "node_modules/.bin/", "node_modules/.package-lock.json", "target/"]
    (folder / "node_modules" / "elsewhere").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="npm install --install-links"):
        list(files_of(folder, command=True))


def test_a_command_that_names_what_is_not_packed_is_told(udo: Shell, operator: Callable[..., Path]) -> None:
    folder = operator()
    manifest = (folder / "operator.toml").read_text().replace('entry = "op:run"', 'runtime = "exec"\ncommand = ["sh", "target/op.jar"]')
    (folder / "operator.toml").write_text(manifest)
    (folder / "target").mkdir()
    (folder / "target" / "op.jar").write_text("x")
    assert "command names target/op.jar, and target/ is not packed: move it" in udo("push", folder, "--dry-run", code=None).err


def test_a_command_that_this_machine_lacks_is_told(udo: Shell, operator: Callable[..., Path]) -> None:
    folder = operator()
    manifest = (folder / "operator.toml").read_text().replace('entry = "op:run"', 'runtime = "exec"\ncommand = ["no-such-java"]')
    (folder / "operator.toml").write_text(manifest)
    assert "command names no-such-java, which is no program of this machine" in udo("test", folder, code=None).err


@pytest.mark.long
def test_another_line_of_code_gives_another_digest(udo: Shell, operator: Callable[..., Path]) -> None:
    assert digest(udo, operator(plus=1)) != digest(udo, operator(plus=2))


@pytest.mark.long
def test_dependencies_become_a_layer_of_their_own_that_the_operator_can_import(
    udo: Shell, operator: Callable[..., Path], tmp_path: Path
) -> None:
    path = wheel(tmp_path, "udo_sample_dep", 41)
    answer = "@operator\ndef run(b):\n    return {'b': [udo_sample_dep.VALUE] * b.num_rows}\n"
    source = "import udo_sample_dep\nfrom udo_runtime import operator\n" + answer
    folder = operator(source=source, requirements=f'["udo_sample_dep @ file://{path}"]')
    assert udo("test", folder, "--json").json["answers"] == [{"b": 41}, {"b": 41}]
    layers = udo("push", folder, "--dry-run", "--json").json["layers"]
    assert [la["kind"] for la in layers] == ["dependencies", "code"]
    stored = [p for p in (udo.home / "cache" / "dependencies").glob("*.tar.gz")]
    with tarfile.open(stored[0]) as tar:
        names = tar.getnames()
        assert all(m.mtime == 0 and m.uid == 0 for m in tar)
    assert "opt/udo/deps/udo_sample_dep.py" in names
    assert not any(n.endswith(("RECORD", "direct_url.json", ".lock")) for n in names)
    wheel(tmp_path, "udo_sample_dep", 42)  # a local file may change without changing its name
    assert udo("test", folder, "--json").json["answers"] == [{"b": 42}, {"b": 42}]
    for facts in stored[0].parent.glob("*.json"):  # as if the disk had been full
        facts.write_bytes(b"")
    assert udo("test", folder, "--json").json["answers"] == [{"b": 42}, {"b": 42}]


@pytest.mark.long
@pytest.mark.parametrize("named", ["udo_sample_dep==1.0", "-r needs.txt", "./wheels/udo_sample_dep-1.0-py3-none-any.whl"])
def test_dependencies_are_known_by_what_their_files_hold(udo: Shell, operator: Callable[..., Path], named: str) -> None:
    answer = "@operator\ndef run(b):\n    return {'b': [udo_sample_dep.VALUE] * b.num_rows}\n"
    source = "import udo_sample_dep\nfrom udo_runtime import operator\n" + answer
    folder = operator(source=source, requirements=f'["{named}"]')
    (folder / "needs.txt").write_text("udo_sample_dep==1.0\n")
    wheels = folder / "wheels"
    wheels.mkdir()
    index = {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(wheels)}
    digests = set()
    for value in (41, 42):
        wheel(wheels, "udo_sample_dep", value)  # again, under the same name
        assert udo("test", folder, "--json", **index).json["answers"] == [{"b": value}] * 2
        digests.add(udo("push", folder, "--dry-run", "--json", **index).json["layers"][0]["digest"])
    assert len(digests) == 2
    assert "dependencies: cached (" in udo("push", folder, "--dry-run", **index).err


def test_what_is_checked_is_what_was_packed(udo: Shell, operator: Callable[..., Path]) -> None:
    folder = operator(
        source="from dist import LIMIT\nfrom udo_runtime import operator\n@operator\ndef run(b):\n    return {'b': [LIMIT] * 2}\n"
    )
    (folder / "dist").mkdir()
    (folder / "dist" / "__init__.py").write_text("LIMIT = 7\n")
    err = udo("push", folder, "--dry-run", code=6).err
    assert "No module named 'dist'" in err and "not packed, and so not on a node: dist/; if it needs one of these, rename it" in err


def test_requirements_that_cannot_be_met_are_told_in_uvs_words(udo: Shell, operator: Callable[..., Path]) -> None:
    err = udo("push", operator(requirements='["./nowhere-1.0-py3-none-any.whl"]'), "--dry-run", code=2).err
    assert "operator.toml" in err
    assert "nowhere" in err


def test_nothing_is_built_from_source_for_an_operator(udo: Shell, operator: Callable[..., Path], tmp_path: Path) -> None:
    source, archive = tmp_path / "udo_built-1.0", tmp_path / "udo_built-1.0.tar.gz"
    source.mkdir()
    built = tmp_path / "built"
    (source / "setup.py").write_text(
        f"open({str(built)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='udo_built', version='1.0')\n"
    )
    (source / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: udo_built\nVersion: 1.0\n")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, source.name)
    for place in (archive, source):
        err = udo("push", operator(requirements=f'["udo_built @ file://{place}"]'), "--dry-run", code=2).err
        assert "operator.toml" in err and "Building source distributions" in err, err
    assert not built.exists()


@pytest.mark.long
def test_an_operator_that_cannot_be_imported_is_not_packed(udo: Shell, operator: Callable[..., Path]) -> None:
    err = udo("push", operator(source="import no_such_package"), "--dry-run", code=6).err
    assert "No module named 'no_such_package'" in err
    assert "has no 'run'" in udo("push", operator(source="x = 1"), "--dry-run", code=6).err


def test_a_package_of_this_environment_is_not_the_operators(udo: Shell, operator: Callable[..., Path]) -> None:
    assert "No module named 'pyspark'" in udo("push", operator(source="import pyspark"), "--dry-run", code=6).err


def test_packaging_for_another_platform_is_not_checked_here(udo: Shell, operator: Callable[..., Path]) -> None:
    done = udo("push", operator(), "--python", "3.13", "--platform", "linux_aarch64", "--dry-run", "--json")
    assert "not checked" in done.err
    assert "3.x" in udo("push", operator(), "--python", "3.x", "--dry-run", code=2).err


def test_what_no_node_would_unpack_is_refused_before_it_is_pushed(udo: Shell, operator: Callable[..., Path]) -> None:
    folder = operator()
    (folder / "line\nbreak.txt").write_text("x")
    said = "refused: layer code: the name 'opt/udo/code/line\\nbreak.txt' has control characters"
    for elsewhere in ((), ("--platform", "linux_aarch64")):  # also for a platform whose code cannot be tried here
        assert said in udo("push", folder, "--dry-run", *elsewhere, code=4).err


def test_a_link_out_of_the_folder_is_refused(udo: Shell, operator: Callable[..., Path], tmp_path: Path) -> None:
    folder = operator()
    (tmp_path / "secret").write_text("x")
    (folder / "leak").symlink_to(tmp_path / "secret")
    assert "points outside" in udo("push", folder, "--dry-run", code=2).err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "t"', 'name = "Bad Name"', "name: String should match"),
        ('a = "int64"', 'a = "int65"', "unknown column type 'int65'"),
        ('entry = "op:run"', 'entry = "other:run"', "names the module other.py; there are: op.py"),
        ('entry = "op:run"', "entry = 7", "entry: "),
        ('version = "1"', "version = ", "is not valid TOML"),
        ("[limits]", "[limitz]", "did you mean limits?"),
        ("open_timeout_s", "open_timeouts", "did you mean open_timeout_s"),
        ("[limits]", "[zzzz]", "there are: name, version, description"),
        ('[output]\nb = "int64"', "[output]", "output: "),
    ],
)
def test_a_malformed_manifest_is_told_by_file_and_field(udo: Shell, operator: Callable[..., Path], old: str, new: str, said: str) -> None:
    folder = operator()
    manifest = folder / "operator.toml"
    assert old in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(old, new))
    err = udo("push", folder, "--dry-run", code=2).err
    assert said in err
    assert "operator.toml" in err
