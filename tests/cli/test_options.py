"""Options arrive as one typed value, and the daemons understand the arguments that are made of such values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from node_manager.__main__ import parse_args
from udo_cli.options import daemons
from udo_cli.options.typed import grouped, option


@dataclass(frozen=True)
class Inner:
    shown_last: int = option(type=int, default=3, help="Last.")


@dataclass(frozen=True)
class First:
    given_name: str | None = option("--other", help="First.")


@dataclass(frozen=True)
class Whole(Inner, First):
    names: tuple[str, ...] = option(multiple=True)
    flag: bool = option(is_flag=True)
    kept: str = "no option"


@click.command()
@grouped(Whole, "whole")
@click.option("--alone")
def command(whole: Whole, alone: str | None) -> None:
    click.echo(repr((whole, alone)))


@pytest.mark.parametrize(
    ("words", "whole", "alone"),
    [
        ([], Whole(), None),
        (
            ["--other", "a", "--shown-last", "4", "--names", "b", "--names", "c", "--flag", "--alone", "d"],
            Whole("a", 4, ("b", "c"), True),
            "d",
        ),
    ],
)
def test_a_command_gets_the_options_of_a_group_as_one_value(words: list[str], whole: Whole, alone: str | None) -> None:
    assert CliRunner().invoke(command, words).output == f"{(whole, alone)!r}\n"


def test_help_lists_the_options_in_the_order_of_the_fields() -> None:
    lines = CliRunner().invoke(command, ["--help"]).output.split()
    assert [word for word in lines if word.startswith("--")] == ["--other", "--shown-last", "--names", "--flag", "--alone", "--help"]


def test_a_node_manager_understands_every_option_of_a_node(tmp_path: Path) -> None:
    own = ["--home", str(tmp_path), "--node", "n"]
    given = daemons.NodeOptions("docker", "none", ("a:1", "b:2"), "runtime", "command", 0, 9464, "0.0.0.0", True)

    settings = parse_args([*own, *daemons.arguments(given)])

    assert daemons.NodeOptions(**{name: getattr(settings, name) for name in vars(given)}) == given
    assert parse_args([*own, *daemons.arguments(daemons.NodeOptions())]) == parse_args(own)


def test_only_the_arguments_of_the_named_base_are_made() -> None:
    up = daemons.UpOptions(node="n", listen="127.0.0.1:5000")
    assert daemons.arguments(up, daemons.NodeOptions) == daemons.arguments(daemons.NodeOptions())
    assert daemons.arguments(replace(daemons.RegistryOptions(), listen="")) == []
