"""`udo move`: move key groups of a deployment to another of its slots, on this or another node, while queries run."""

from __future__ import annotations

import click

from udo_cli import base
from udo_cli.options import completing
from udo_protocol import ranges
from udo_protocol.errors import UsageError
from udo_protocol.limits import MOST_KEY_GROUPS

EXAMPLES = """
udo status                                    slots by number, and the key groups of each
udo move visits --groups 0-15 --to 1000
udo move visits --groups 3,7,40-47 --to 0 --json
udo move visits --groups 0-15 --to b:0         of a deployment over nodes: slot 0 of node b
"""


@base.command("move", EXAMPLES)
@click.argument("name", shell_complete=completing.deployments)
@click.option("--groups", required=True, metavar="GROUPS", help="Key groups, as numbers and ranges: 0-15,40.")
@click.option("--to", required=True, metavar="[NODE:]SLOT", help="Number of the slot they are to be in, over nodes with its node.")
@click.option(
    "--strategy",
    type=click.Choice(["cpal", "direct"]),
    help="cpal, the default: the slot reads their state ahead, so that they pause briefly however large it is; direct: when it has been "
    "given them.",
)
@base.wait_option("How long to wait; the move goes on after that.")
@base.node_option
@base.json_option
def command(name: str, groups: str, to: str, strategy: str | None, wait_s: float, address: str | None, as_json: bool) -> None:
    """Move key groups of deployment NAME, which keeps state, to another of its slots: on this node, or, of a deployment over nodes, on any.

    Running queries go on: each event counts once, and a key's events stay in order. The same command again goes on with a move that was
    interrupted.
    """
    from udo_cli.platform import remote, slot_names
    from udo_cli.text import output

    numbers = ranges.parsed(groups, MOST_KEY_GROUPS)
    if not numbers:
        raise UsageError("--groups: expected key groups, such as 0-15,40, got none")
    node, slot = slot_names.parsed(to, "--to")
    last = None
    for last in remote.node(address).move_groups(name, numbers, slot, strategy or "", wait_s, node):
        if not as_json:
            output.say(f"{last.at_ms:8.1f} ms  {last.moved} of {last.total} key groups are in slot {to}")
    if as_json and last is not None:
        where = {"node": node} if node else {}
        output.emit({"deployment": name, "groups": numbers, **where, "to": slot, "moved": last.moved, "ms": round(last.at_ms, 1)})
