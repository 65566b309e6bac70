"""`udo dev`: watch an operator's folder; every save is tested and goes live on the local platform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from udo_cli import base
from udo_cli.options import given
from udo_cli.options.typed import grouped

EXAMPLES = """
udo dev fraud                                  test, deploy as fraud, and again on every save
udo dev fraud --name fraud-mine                under another name
udo dev scorer --file scorer/model.json        the file is watched, too
udo dev fraud --samples-only                   without a platform: only run the samples
udo dev fraud --once --json
"""


@base.command("dev", EXAMPLES)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--events", type=click.Path(path_type=Path, dir_okay=False), help="JSON, CSV or parquet; events.json in DIRECTORY by default."
)
@click.option("--name", help="Name of the deployment that follows the folder; the operator's name by default.")
@grouped(given.ConfigOptions, "config")
@click.option("--samples-only", is_flag=True, help="Only run the samples: no platform is needed, and nothing goes live.")
@click.option("--once", is_flag=True, help="Do it once and exit, with the error's exit code.")
@base.json_option
def command(
    directory: Path,
    events: Path | None,
    name: str | None,
    config: given.ConfigOptions,
    samples_only: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Run the operator in DIRECTORY on its sample events, and again on every save. Ctrl-C ends it.

    A save that answers its samples goes live: it becomes a version of its own and updates the deployment on the local platform, while
    queries run. A save that fails is shown, and changes nothing. The last version stays deployed when this command ends.

    With --json it prints one line for each save.
    """
    from udo_cli import dev
    from udo_cli.text import output
    from udo_protocol.errors import by_code

    read = config.read()  # also the files, so that errors in them are reported at once
    known = dev.Given(read.env, read.secrets, given.file_paths(config.files))
    say = (lambda _: None) if as_json else output.say
    work = dev.DevRound(directory, events, name, known, live=not samples_only, say=say)
    while True:
        seen = dev.look(directory, known)
        told = work.run()
        if once and not told["ok"]:
            raise by_code(told["error"]["code"], told["error"]["message"])
        if as_json:
            click.echo(json.dumps(told, default=str))
        else:
            _show(told)
        if once:
            return
        if not as_json:
            output.say(f"watching {directory}; Ctrl-C ends it")
        dev.changed(directory, known, seen)


def _show(told: dict[str, Any]) -> None:
    if not told["ok"]:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {told['error']['message']}", err=True)
        return
    for answer in told["answers"]:
        click.echo(json.dumps(answer, default=str))
    click.echo(f"{told['operator']}: {told['events']} events, {len(told['answers'])} answers, {told['took_ms']:.1f} ms")
    if "deployment" in told:
        said = {"deployed": "is deployed with", "updated": "answers with", "unchanged": "answers with"}[told["outcome"]]
        click.echo(f"{told['deployment']} {said} {told['version']}")
