"""`udo scale`: give a deployment more or fewer slots on each node."""

from __future__ import annotations

import click

from udo_cli import base, completing
from udo_protocol.limits import MOST_SLOTS

EXAMPLES = """
udo scale fraud 4             four instances on each node, while queries run
udo scale fraud 1             lanes that are open in the other three are still answered there
"""


@base.command("scale", EXAMPLES)
@click.argument("name", shell_complete=completing.deployments)
@click.argument("slots", type=click.IntRange(1, MOST_SLOTS))
@click.option(
    "--wait-s",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    help="How long to wait until all live nodes have them; 0: not at all.",
)
@base.json_option
def command(name: str, slots: int, wait_s: float, as_json: bool) -> None:
    """Let deployment NAME have SLOTS slots on each node, each with an instance and a queue of its own.

    New lanes (a Spark task, a client) go to the slot with the fewest; a lane stays where it was opened. Of an operator without state.
    """
    from udo_cli import output, remote

    with remote.registry() as api:
        found = api.scale(name, slots)
        if wait_s:
            found = remote.await_answering(api, name, wait_s, output.say)
    if as_json:
        output.emit(found)
    else:
        click.echo(f"{name}: {slots} slot{'s' if slots > 1 else ''} on each node")
