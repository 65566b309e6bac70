"""Processes that tests fork behave as started ones do (tests/support/forked.py)."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.cli.conftest import Shell
from tests.conftest import bound
from tests.support import forked


@pytest.mark.parametrize(
    ("args", "stdin"),
    [(("--version",), ""), (("nonsense",), ""), (("status", "--json"), ""), (("deploy", "x", "--secret", "KEY"), "value\n")],
)
def test_a_forked_command_prints_and_ends_like_a_started_one(udo: Shell, args: tuple[str, ...], stdin: str) -> None:
    environment = udo.environment()
    started = subprocess.run(
        udo.command(*args), input=stdin, env=environment, capture_output=True, text=True, timeout=bound(60), check=False
    )
    here = forked.run("udo_cli", args, stdin=stdin, environment=environment, timeout_s=bound(60))
    assert (here.returncode, here.stdout, here.stderr) == (started.returncode, started.stdout, started.stderr)
    assert here.stdout or here.stderr


def test_a_forked_process_can_be_awaited_and_signalled(udo: Shell) -> None:
    with (udo.home / "log").open("wb") as log:
        process = forked.start("udo_cli", ["state"], environment=udo.environment(), output=(log.fileno(), log.fileno()))
        killed = forked.start("registry", ["--data", str(udo.home / "r")], output=(log.fileno(), log.fileno()))
    assert (process.wait(bound(60)), process.poll()) == (0, 0)
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0)
    killed.kill()
    assert killed.wait(bound(10)) == -signal.SIGKILL
    killed.terminate()  # harmless to a process that has ended
