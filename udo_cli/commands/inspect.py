"""`udo inspect`: one deployment, operator or version in full, as JSON."""

from __future__ import annotations

import click

from udo_cli import base

EXAMPLES = """
udo inspect fraud            the deployment of that name, else the operator's latest version
udo inspect fraud@2          that operator version: manifest, layers, who pushed it
"""


@base.command("inspect", EXAMPLES)
@click.argument("reference", metavar="NAME[@VERSION]")
@base.json_option
def command(reference: str, as_json: bool) -> None:
    """Show a deployment, or an operator version, in full as JSON. Of secrets only the names are known."""
    from udo_cli import output, remote
    from udo_protocol.errors import NotFound

    name, version = remote.reference(reference)
    with remote.registry() as api:
        try:
            found = api.version(name, version) if "@" in reference else api.deployment(name)
        except NotFound:
            if "@" in reference or all(o["name"] != name for o in api.operators()):
                raise
            found = api.version(name, "latest")
    output.emit(found)
