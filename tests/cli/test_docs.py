"""docs/operators.md and docs/cli.md are correct: snippets run, fields and variables exist, exit codes match."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from udo_cli.exits import MEANING
from udo_cli.main import COMMANDS
from udo_cli.settings import CliSettings
from udo_protocol.formats.manifest import Manifest, OperatorLimits, parse

DOCS = Path(__file__).parents[2] / "docs"
OPERATORS, CLI = ((DOCS / name).read_text("utf-8") for name in ("operators.md", "cli.md"))


def snippets(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("number", [0, 1])
def test_the_operators_in_the_guide_answer_under_the_manifest_in_the_guide(udo: Shell, tmp_path: Path, number: int) -> None:
    code = snippets(OPERATORS, "python")[number]
    attribute = re.findall(r"^(?:def|class) (\w+)", code, re.MULTILINE)[0]
    manifest = snippets(OPERATORS, "toml")[0]
    manifest = re.sub(r"requirements = .*", "requirements = []", manifest).replace(":flag", f":{attribute}")
    (tmp_path / "operator.toml").write_text(manifest)
    (tmp_path / "fraud_filter.py").write_text(code)
    (tmp_path / "events.json").write_text('[{"id": 1, "value": 250.0}, {"id": 2, "value": null}]')
    answers = udo("test", tmp_path, "--json").json["answers"]
    assert answers == [{"id": 1, "flagged": True}, {"id": 2, "flagged": False}]


@pytest.mark.long
def test_the_keyed_operator_in_the_guide_answers_as_the_example_does(udo: Shell, tmp_path: Path) -> None:
    example, mine = DOCS.parent / "examples" / "operators" / "card_testing", tmp_path / "card_testing"
    shutil.copytree(example, mine)
    (mine / "card_testing.py").write_text(snippets((DOCS / "state.md").read_text("utf-8"), "python")[0])
    answers = [udo("test", folder, "--json").json["answers"] for folder in (example, mine)]
    assert answers[0] and answers[0] == answers[1]


def test_every_field_of_the_manifest_is_explained() -> None:
    assert parse(tomllib.loads(snippets(OPERATORS, "toml")[0]), "the guide").requirements
    for name in set(Manifest.model_fields) - {"python_tag", "platform", "limits"}:
        assert f"`{name}`" in OPERATORS
    for name in OperatorLimits.model_fields:
        assert f"`limits.{name}`" in OPERATORS


def test_every_command_setting_and_exit_code_is_in_the_guide() -> None:
    for name in COMMANDS:
        assert f"udo {name}" in CLI
    for name in CliSettings.model_fields:
        assert f"UDO_{name.upper()}" in CLI
    for code, meaning in MEANING.items():
        assert f"| {code.value} | {meaning.partition(' (')[0]}" in CLI
