"""Tables on the command line show text from outside as it is."""

from __future__ import annotations

import pytest

from udo_cli.text import output


@pytest.mark.parametrize("text", ["[/oops]", "columns [id, n]", "[bold]x[/bold]", ":smile:", "[link=https://example.org]here[/link]"])
def test_nothing_in_it_is_markup(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["REASON", "[/N]"], [(text, 1)], "none")
    assert [line.split("  ")[0].strip() for line in capsys.readouterr().out.splitlines()] == ["REASON", text]


@pytest.mark.parametrize(("text", "shown"), [("\x1b[31mred", r"\x1b[31mred"), ("a\rb", r"a\x0db"), ("bell\a", r"bell\x07")])
def test_nothing_in_it_is_told_to_the_terminal(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["REASON"], [(text,)], "none")
    assert capsys.readouterr().out.splitlines()[1].rstrip() == shown
