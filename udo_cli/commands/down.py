"""`udo down`: stop what `udo up` started."""

from __future__ import annotations

import click

from udo_cli import base

EXAMPLES = """
udo down
UDO_HOME=/srv/udo udo down --json
"""


@base.command("down", EXAMPLES)
@base.json_option
def command(as_json: bool) -> None:
    """Stop the node manager with its instances and servers, then the registry. Operators and deployments are kept on disk."""
    from udo_cli.platform import local
    from udo_cli.settings import CliSettings
    from udo_cli.text import output

    with local.unhurried():
        stopped = local.stop(CliSettings().local, output.say)
    if as_json:
        output.emit({"stopped": stopped})
    else:
        click.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")
