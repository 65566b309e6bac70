"""`udo logs`: the log of a deployment."""

from __future__ import annotations

import click

from udo_cli import base
from udo_cli.options import completing

EXAMPLES = """
udo logs fraud
udo logs -f fraud
udo logs fraud --tail 20 --json
"""


@base.command("logs", EXAMPLES)
@click.argument("name", shell_complete=completing.deployments)
@click.option("-f", "--follow", is_flag=True, help="Follow the log; end with Ctrl-C.")
@click.option("--tail", type=click.IntRange(1), default=200, show_default=True, help="Number of recent lines to show first.")
@base.node_option
@base.json_option
def command(name: str, follow: bool, tail: int, address: str | None, as_json: bool) -> None:
    """Show the log of deployment NAME on this node, from all its instances, including former ones."""
    from udo_cli.platform import remote
    from udo_cli.text import output

    for line in remote.node(address).logs(name, follow=follow, tail_lines=tail):
        if as_json:
            output.emit({"at": line.at, "instance": line.instance, "version": line.version, "stream": line.stream, "text": line.text})
        else:
            click.echo(f"{click.style(f'{line.at} {line.instance}@{line.version}', dim=True)} {line.text}")
