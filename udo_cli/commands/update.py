"""`udo update`: replace a deployment's version while queries run."""

from __future__ import annotations

import click

from udo_cli import base

EXAMPLES = """
udo update fraud 2
udo update fraud latest
udo update fraud sha256:1f0c... --json
"""


@base.command("update", EXAMPLES)
@click.argument("name")
@click.argument("version", metavar="VERSION")
@click.option(
    "--wait-s", type=click.FloatRange(1), default=120.0, show_default=True, help="How long the new version may take to become ready."
)
@base.json_option
def command(name: str, version: str, wait_s: float, as_json: bool) -> None:
    """Let VERSION answer for deployment NAME: no event is lost, doubled or reordered.

    It is refused before anything starts when its schemas do not fit running queries (exit code 4); a version that does
    not become ready leaves the old one answering. Progress goes to stderr.
    """
    from udo_cli import output, remote

    with remote.registry() as api:
        done = remote.follow(api.update(name, version, wait_s), output.say)
        found = api.deployment(name)
    if as_json:
        output.emit({"name": name, "version": found["version"], "digest": found["digest"], "took_ms": done["at_ms"], "id": done["id"]})
    else:
        click.echo(f"{name}: {found['operator']}@{found['version']} answers after {done['at_ms']:.0f} ms")
