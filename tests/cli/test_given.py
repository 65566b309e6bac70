"""--env, --secret and --file: they are parsed before anything happens, and no secret is ever shown."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from udo_cli.options import given
from udo_cli.platform import remote
from udo_protocol.errors import NotFound, UsageError


def test_environment_takes_everything_behind_the_first_equals_sign() -> None:
    assert given.environment(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}


@pytest.mark.parametrize("text", ["A", "=1", "1A=2", "A B=1"])
def test_environment_refuses_what_is_no_assignment(text: str) -> None:
    with pytest.raises(UsageError, match="K=V"):
        given.environment([text])


def test_a_file_keeps_its_name_or_gets_the_given_one(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"x")
    assert given.file_contents([str(tmp_path / "m.bin"), f"{tmp_path / 'm.bin'}:models/a.bin"]) == {"m.bin": b"x", "models/a.bin": b"x"}


def test_a_node_is_known_by_its_name_also_beside_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("b").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("node.sock")
        assert [remote.is_name(text) for text in ("b", "node.sock", "./b", "", None)] == [True, False, False, False, False]


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_a_file_stays_inside_the_operators_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "m").write_bytes(b"x")
    with pytest.raises(UsageError, match="relative path inside"):
        given.file_contents([f"{tmp_path / 'm'}:{name}"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file"):
        given.file_contents([str(tmp_path / "none")])


def test_files_that_are_too_large_belong_into_the_operators_folder(tmp_path: Path) -> None:
    with open(tmp_path / "big", "wb") as f:
        f.truncate(given.FILES_BYTES + 1)
    with pytest.raises(UsageError, match="operator's folder"):
        given.file_contents([str(tmp_path / "big")])
