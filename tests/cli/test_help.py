"""Help is quick and complete, has examples and exit codes, and imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.conftest import bound
from udo_cli.exits import MEANING, ExitCode, exit_for
from udo_cli.main import COMMANDS, cli
from udo_protocol import errors


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'pyspark', 'pyarrow', 'grpc', 'rich', 'httpx', 'pydantic', 'numpy', 'flask', 'sqlalchemy'}"
    code = f"import sys, udo_cli.main; found = {heavy} & set(sys.modules); sys.exit(', '.join(found) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=bound(10))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_ends_with_examples(name: str) -> None:
    shown = CliRunner().invoke(cli, [name, "--help"])
    assert shown.exit_code == ExitCode.OK
    _, _, examples = shown.output.partition("Examples:")
    assert f"udo {name}" in examples


def test_help_names_every_command_and_exit_code() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    assert all(name in shown for name in COMMANDS)
    assert all(f"{code.value} " in shown and text in shown for code, text in MEANING.items())


def test_a_mistyped_command_gets_the_near_one() -> None:
    shown = CliRunner().invoke(cli, ["depoly"])
    assert shown.exit_code == ExitCode.USAGE
    assert "deploy" in shown.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_calls_back(shell: str) -> None:
    shown = CliRunner().invoke(cli, ["completion", shell])
    assert shown.exit_code == ExitCode.OK
    assert "_UDO_COMPLETE" in shown.output


def test_completion_completes_commands() -> None:
    env = {"_UDO_COMPLETE": "bash_complete", "COMP_WORDS": "udo und", "COMP_CWORD": "1"}
    code = "from udo_cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=bound(10))
    assert "undeploy" in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotFound, ExitCode.NOT_FOUND),
        (errors.Conflict, ExitCode.REFUSED),
        (errors.SchemaError, ExitCode.REFUSED),
        (errors.ManifestError, ExitCode.USAGE),
        (errors.Unavailable, ExitCode.UNAVAILABLE),
        (errors.WaitTimeout, ExitCode.UNAVAILABLE),
        (errors.OperatorError, ExitCode.OPERATOR),
        (errors.Unauthorized, ExitCode.UNAUTHORIZED),
        (errors.ProtocolError, ExitCode.INTERNAL),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: type[errors.UdoError], code: ExitCode) -> None:
    assert exit_for(error("x")) is code
