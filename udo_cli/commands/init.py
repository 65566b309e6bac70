"""`udo init`: the skeleton of an operator."""

from __future__ import annotations

from pathlib import Path

import click

from udo_cli import base

EXAMPLES = """
udo init fraud                      vectorised: one record batch in, one out
udo init fraud --style event        one event in, any number out
udo init fraud --runtime java       in another language: go, java or node
udo init . --name fraud-filter      into the current folder
"""


@base.command("init", EXAMPLES)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", help="The operator's name; the folder's name by default.")
@click.option("--style", type=click.Choice(["batch", "event"]), default="batch", show_default=True)
@click.option("--runtime", type=click.Choice(["python", "go", "java", "node"]), default="python", show_default=True, help="Its language.")
@base.json_option
def command(directory: Path, name: str | None, style: str, runtime: str, as_json: bool) -> None:
    """Write operator.toml, the operator, sample events and a test into DIRECTORY.

    For another language than Python also a copy of its SDK, and a README with the commands that build and test it.
    """
    from udo_cli import output, scaffold

    name = name or directory.absolute().name
    written = scaffold.write(directory, name, style, runtime)
    if as_json:
        output.emit({"written": [str(p) for p in written]})
        return
    for path in written:
        if not path.is_relative_to(directory / "sdk"):
            click.echo(f"wrote {path}")
    if runtime != "python":
        click.echo(f"wrote {directory / 'sdk'}, a copy of the SDK")
        click.echo(f"next: cd {directory} && {scaffold.FIRST[runtime].replace('{name}', name)}")
        return
    click.echo(f"next: udo test {directory} --events {directory / 'events.json'}")
