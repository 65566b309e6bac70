"""`udo undeploy`: remove a deployment."""

from __future__ import annotations

import click

from udo_cli import base

EXAMPLES = """
udo undeploy fraud
"""


@base.command("undeploy", EXAMPLES)
@click.argument("name")
@base.json_option
def command(name: str, as_json: bool) -> None:
    """Remove deployment NAME from every node. Its operator versions stay in the registry."""
    from udo_cli import output, remote

    with remote.registry() as api:
        api.undeploy(name)
    if as_json:
        output.emit({"undeployed": name})
    else:
        click.echo(f"{name}: removed")
