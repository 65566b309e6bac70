"""`udo init`: the skeleton of an operator."""

from __future__ import annotations

from pathlib import Path

import click

from udo_cli import base

EXAMPLES = """
udo init fraud                      vectorised: one record batch in, one out
udo init fraud --style event        one event in, any number out
udo init . --name fraud-filter      into the current folder
"""


@base.command("init", EXAMPLES)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", help="The operator's name; the folder's name by default.")
@click.option("--style", type=click.Choice(["batch", "event"]), default="batch", show_default=True)
@base.json_option
def command(directory: Path, name: str | None, style: str, as_json: bool) -> None:
    """Write operator.toml, the operator, sample events and a test into DIRECTORY."""
    from udo_cli import output, scaffold

    written = scaffold.write(directory, name or directory.absolute().name, style)
    if as_json:
        output.emit({"written": [str(p) for p in written]})
        return
    for path in written:
        click.echo(f"wrote {path}")
    click.echo(f"next: udo test {directory} --events {directory / 'events.json'}")
