"""`udo init`: the skeleton of an operator."""

from __future__ import annotations

from pathlib import Path

import click

from udo_cli import base

EXAMPLES = """
udo init fraud                      vectorised: one record batch in, one out
udo init fraud --style event        one event in, any number out
udo init totals --style keyed       with state by a key, kept exactly once
udo init scorer --style model       with a model, which is a file of the deployment
udo init score --style spark-worker a worker written for Spark's protocol of external UDFs, as an operator
udo init fraud --runtime java       in another language: go, java, node, rust or cpp
udo init . --name fraud-filter      into the current folder
"""
STYLES = ["batch", "event", "keyed", "model", "spark-worker"]
RUNTIMES = ["python", "go", "java", "node", "rust", "cpp"]


@base.command("init", EXAMPLES)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", help="The operator's name; the folder's name by default.")
@click.option("--style", type=click.Choice(STYLES), default="batch", show_default=True, help="What it is a skeleton of.")
@click.option("--runtime", type=click.Choice(RUNTIMES), default="python", show_default=True, help="The operator's language.")
@base.json_option
def command(directory: Path, name: str | None, style: str, runtime: str, as_json: bool) -> None:
    """Write operator.toml, the operator, sample events and a test into DIRECTORY.

    For languages other than Python also a copy of the SDK, and a README with the commands that build and test the operator; for a worker of
    Spark the adapter.
    """
    from udo_cli import scaffold
    from udo_cli.text import output

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
    model = f" --file {directory / 'model.json'}" if style == "model" else f" --events {directory / 'events.json'}"
    click.echo(f"next: udo test {directory}{model}")
    click.echo(f"then: udo dev {directory}, and edit: every save is tested and goes live here")
