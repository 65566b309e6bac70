"""`udo console`: the address of the registry's pages."""

from __future__ import annotations

import click

from udo_cli import base

EXAMPLES = """
udo console
udo console --open
"""


@base.command("console", EXAMPLES)
@click.option("--open", "open_it", is_flag=True, help="Also open it in a browser.")
@base.json_option
def command(open_it: bool, as_json: bool) -> None:
    """Print the address of the registry's console: pages that show deployments, nodes and updates, and start updates.

    Sign in with the registry's write token.
    """
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        api.health()
        url = f"{api.url}/console/"
    if as_json:
        output.emit({"url": url})
    else:
        click.echo(url)
    if open_it:
        click.launch(url)
