"""`udo registry key`: the key pairs that operator versions are signed with."""

from __future__ import annotations

from pathlib import Path

import click

from udo_cli import base
from udo_cli.base import ReportingGroup

EXAMPLES = """
udo registry key new release.key        and release.key.pub, which goes to the registry's trusted keys
"""


@click.group("key", cls=ReportingGroup, examples=EXAMPLES, context_settings={"max_content_width": 110})
def command() -> None:
    """Make key pairs for signatures: see `udo push --sign`. A registry with trusted keys accepts signed versions only."""


@command.command("new", examples=EXAMPLES)
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@base.json_option
def new(path: Path, as_json: bool) -> None:
    """Write a new private key to PATH, readable by you only, and its public key to PATH.pub."""
    from udo_cli.text import output
    from udo_protocol.registry import signing

    made = {"key": signing.new_key(path), "private": str(path), "public": str(signing.public_path(path))}
    if as_json:
        output.emit(made)
    else:
        click.echo(f"{made['key']}\nprivate {path}\npublic  {made['public']}")
