"""A packed operator answers its samples on an ordinary instance: for `udo test`, and for `udo push` before anything is sent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound
from tests.support.selection import long

Operators = Callable[..., Path]


def test_what_fails_on_its_samples_is_pushed_only_if_they_are_left_out(platform: Shell, operator: Operators) -> None:
    folder = operator("picky", body="assert os.environ['MODE'] == 'live', 'not live'", source="")
    said = platform("push", folder, code=6, MODE="live").err  # the operator does not inherit this environment
    assert "KeyError: 'MODE'" in said and "It has to answer events.json to be pushed" in said and "--no-samples" in said
    assert "picky" not in platform("ls").out
    assert "2 events, 2 answers" in platform("push", folder, "--env", "MODE=live", "--version", "2").err
    assert "op:run can be imported" in platform("push", folder, "--no-samples", "--version", "3").err
    assert "--no-samples leaves out" in platform("push", folder, "--no-samples", "--env", "MODE=live", code=2).err


def test_a_push_without_samples_and_inspect_load_no_libraries_of_nodes_or_spark(
    platform: Shell, operator: Operators, tmp_path: Path
) -> None:
    listed = tmp_path / "modules"
    code = "import atexit, pathlib, sys; listed = pathlib.Path(sys.argv.pop(1)); "
    code += "atexit.register(lambda: listed.write_text(chr(10).join(sys.modules))); from udo_cli.main import main; main()"
    heavy = {"structlog", "pyspark", "grpc", "flask", "sqlalchemy"}
    for command in (["push", str(operator("plain")), "--no-samples"], ["inspect", "plain@1"]):
        words = [sys.executable, "-c", code, str(listed), *command]
        done = subprocess.run(words, env=platform.environment(), capture_output=True, text=True, timeout=bound(60))
        assert done.returncode == 0, done.stderr
        loaded = listed.read_text().split()
        assert f"udo_cli.commands.{command[0]}" in loaded
        assert sorted(module for module in loaded if module.partition(".")[0] in heavy) == [], "they take longer than the command"


def test_samples_that_do_not_fit_or_answers_that_do_not_are_told_before_a_push(udo: Shell, operator: Operators) -> None:
    folder = operator(source="from udo_runtime import operator\n@operator\ndef run(b):\n    return {'c': b.column('a')}\n")
    assert "column 'b' (int64) is missing; there are: c" in udo("push", folder, "--dry-run", code=4).err
    (folder / "events.json").write_text('[{"x": 1}]')
    assert "column 'a' (int64) is missing" in udo("push", folder, "--dry-run", code=4).err
    (folder / "events.json").unlink()
    assert "op:run can be imported" in udo("push", folder, "--dry-run").err


TIMED = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        yield {"b": event["a"]}
    def on_timer(self, key, at, ctx):
        return None
"""


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["", long('isolation = "process"\n')])
def test_an_operator_that_needs_a_key_is_told_that_its_manifest_has_none(udo: Shell, operator: Operators, isolation: str) -> None:
    wants = 'operator.toml names no key: add key = ["COLUMN", ...]'
    timed = operator(source=TIMED)
    (timed / "operator.toml").write_text(isolation + (timed / "operator.toml").read_text())
    for command in (("test", timed), ("push", timed, "--dry-run", "--no-samples")):
        assert f"run has on_timer, which is for operators that keep state by key, and {wants}" in udo(*command, code=4).err
    counting = operator(source=TIMED[: TIMED.index("    def on_timer")].replace('{"b"', '{"b": ctx.state["n"]} or {"b"'))
    (counting / "operator.toml").write_text(isolation + (counting / "operator.toml").read_text())
    assert f"ctx.state is for operators that keep state by key, and {wants}" in udo("test", counting, code=6).err


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["", long('isolation = "process"\n')])
def test_all_that_an_operator_prints_arrives(udo: Shell, operator: Operators, isolation: str) -> None:
    folder = operator(body="[print(f'{n:06d}', 'x' * 1016) for n in range(10240)]")
    (folder / "operator.toml").write_text(isolation + (folder / "operator.toml").read_text().replace("answer_timeout_s = 2", ""))
    said = udo("test", folder, "--batch-rows", "10").err.splitlines()
    numbers = [int(line[:6]) for line in said if line[:6].isdigit()]
    assert numbers == list(range(10240)) or any(line.endswith("bytes cut") for line in said)
    assert numbers == sorted(set(numbers)) and numbers[-1] == 10239


@pytest.mark.long
def test_an_interrupted_trial_leaves_nothing(udo: Shell, operator: Operators) -> None:
    folder = operator(body="print('begins', flush=True); import time; time.sleep(600)")
    (folder / "operator.toml").write_text((folder / "operator.toml").read_text().replace("answer_timeout_s = 2", "answer_timeout_s = 600"))
    (scratch := udo.home / "tmp").mkdir(parents=True)
    environment = udo.environment(TMPDIR=str(scratch))
    trial = subprocess.Popen(udo.command("test", folder), env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert trial.stderr is not None
    with trial.stderr:
        while "begins" not in trial.stderr.readline():  # its output is passed on while it works
            assert trial.poll() is None
        os.killpg(trial.pid, signal.SIGINT)
        assert trial.wait(bound(60)) == 130
        assert "interrupted" in trial.stderr.read()
    assert list(scratch.iterdir()) == [] and Shell(scratch).running() == []


@pytest.mark.long
def test_what_a_deployment_would_be_refused_is_refused_to_a_trial(udo: Shell, operator: Operators, tmp_path: Path) -> None:
    assert "LD_PRELOAD" in udo("test", operator(), "--env", "LD_PRELOAD=/x.so", code=2).err
    assert "TMPDIR" in udo("test", operator(), code=2, TMPDIR=str(_deep(tmp_path))).err


def _deep(below: Path) -> Path:
    """Return a folder too deep for the path of any socket in it."""
    made = below / ("d" * 100)
    made.mkdir()
    return made
