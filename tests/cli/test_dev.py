"""`udo dev`: every save is tested; one that answers its samples goes live, one that does not changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell
from tests.conftest import wait_until
from udo_cli import dev
from udo_interface import connect

pytestmark = pytest.mark.long
ENDS_S = 30


@contextmanager
def watching(shell: Shell, *arguments: str | Path) -> Iterator[Callable[[], Any]]:
    """Run `udo dev ... --json` in the background; yield a function that waits for its next line."""
    process = subprocess.Popen(
        shell.command("dev", *arguments, "--json"), env=shell.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    lines = iter(process.stdout.readline, "")

    def told() -> Any:
        line = next(lines, None)
        assert line is not None, f"udo dev has ended: {process.stderr.read()}"  # type: ignore[union-attr]
        return json.loads(line)

    try:
        yield told
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=ENDS_S)
    assert process.returncode == 130


def answered(shell: Shell, name: str, value: float) -> bool:
    found: list[Any] = []
    with connect(name, node=str(shell.home / "node" / "node.sock")) as client:
        client.add_listener(found.append)
        client.send({"id": 1, "value": value})
    return bool(found[0]["flagged"])


def save(path: Path, before: str, after: str) -> None:
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after), "utf-8")


def test_every_save_that_answers_its_samples_goes_live(platform: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "watched"
    platform("init", folder, "--style", "event")
    with watching(platform, folder) as told:
        first = told()
        assert (first["ok"], first["outcome"], first["deployment"]) == (True, "deployed", "watched")
        assert [a["flagged"] for a in first["answers"]] == [False, True, False]
        assert not answered(platform, "watched", 50.0)
        save(folder / "watched.py", "LIMIT = 100.0", "LIMIT = 10.0")
        second = told()
        assert (second["ok"], second["outcome"]) == (True, "updated")
        assert second["version"] != first["version"] and second["version"].startswith("1-dev.")
        assert answered(platform, "watched", 50.0)
        save(folder / "watched.py", "yield {", "raise ValueError('half done')\n        yield {")
        broken = told()
        assert not broken["ok"] and broken["error"]["code"] == "operator" and "half done" in broken["error"]["message"]
        assert answered(platform, "watched", 50.0), "the former version answers"
        save(folder / "watched.py", "raise ValueError('half done')\n        yield {", "yield {")
        again = told()
        assert (again["outcome"], again["version"]) == ("unchanged", second["version"])
        save(folder / "watched.py", "LIMIT = 10.0", "LIMIT = 1000.0")
        assert told()["outcome"] == "updated"
        assert not answered(platform, "watched", 50.0)
    assert not answered(platform, "watched", 50.0), "what was live stays so"
    platform("undeploy", "watched")


def test_a_models_file_is_watched_and_goes_live_with_the_version_that_is(platform: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "scorer"
    platform("init", folder, "--style", "model")
    with watching(platform, folder, "--file", str(folder / "model.json")) as told:
        assert told()["outcome"] == "deployed"
        assert not answered(platform, "scorer", 50.0)
        save(folder / "model.json", '"bias": -5.0', '"bias": 5.0')
        second = told()
        assert second["outcome"] == "updated" and [a["flagged"] for a in second["answers"]] == [True, True, True]
        wait_until(lambda: answered(platform, "scorer", 50.0), 10, "the new model to answer")
    platform("undeploy", "scorer")


def test_a_save_while_the_one_before_is_tested_is_not_deployed_untested(
    platform: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hasty"
    platform("init", folder, "--style", "event")
    for name in (k for k in os.environ if k.startswith("UDO_")):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UDO_HOME", str(platform.home))
    tested = dev.tried.answer

    def save_meanwhile(*given: Any) -> Any:
        save(folder / "hasty.py", "yield {", "raise ValueError('half done')\n        yield {")
        return tested(*given)

    monkeypatch.setattr(dev.tried, "answer", save_meanwhile)
    told = dev.DevRound(folder, None, None, dev.Given(), live=True, say=lambda _: None).run()
    assert not told["ok"] and told["error"]["code"] == "conflict" and "changed while it was being tested" in told["error"]["message"]
    assert "hasty" not in platform("ls", "deployments").out


def test_samples_alone_need_no_platform(udo: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "op"
    udo("init", folder)
    done = udo("dev", folder, "--samples-only", "--once", "--json").json
    assert [a["flagged"] for a in done["answers"]] == [False, True, False] and "deployment" not in done
    save(folder / "op.py", "LIMIT)", "LIMIT / 0)")
    assert "ZeroDivisionError" in udo("dev", folder, "--samples-only", "--once", code=6).err


def test_a_save_in_several_steps_is_one(tmp_path: Path) -> None:
    """Each pause of the watcher runs the next step, so each look finds the folder as the test left it."""
    file = tmp_path / "op.py"
    file.write_text("a")
    before = dev.look(tmp_path, dev.Given())
    steps: list[Callable[[], object]] = [
        lambda: None,
        file.unlink,
        lambda: file.write_text("a1"),
        lambda: file.write_text("a12"),
        lambda: None,
    ]
    looked: list[float] = []

    def pause(seconds: float) -> None:
        steps[len(looked)]()
        looked.append(seconds)

    assert dev.changed(tmp_path, dev.Given(), before, pause) == dev.look(tmp_path, dev.Given())
    assert len(looked) == len(steps)
