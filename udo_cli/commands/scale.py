"""`udo scale`: give a deployment more or fewer slots on each node, or let the controllers decide about them."""

from __future__ import annotations

import click

from udo_cli import base
from udo_cli.options import completing, controlling
from udo_cli.options.typed import grouped
from udo_protocol.limits import MOST_REPLICAS, MOST_SLOTS

EXAMPLES = """
udo scale fraud 4             four instances on each node, while queries run
udo scale fraud 1             lanes that are open in the other three are still answered there
udo scale visits 2            it keeps state: half of its key groups move to the second slot
udo scale wide 9              over nodes: nine slots in all, new ones on the nodes that have the fewest
udo scale wide --replicas 2   over nodes, it keeps state: copies of each slot's state on two other nodes
udo scale fraud --mode auto --most 6        as many as its load asks for, one to six; see: udo events fraud
udo scale fraud --mode auto --policy ds2 --setting target_use=0.5
udo scale fraud --mode advise               four again; what auto would do is recorded only
"""


@base.command("scale", EXAMPLES)
@click.argument("name", shell_complete=completing.deployments)
@click.argument("slots", type=click.IntRange(1, MOST_SLOTS), required=False)
@click.option(
    "--replicas",
    type=click.IntRange(0, MOST_REPLICAS),
    help="Keyed, over nodes: copies of each slot's state on other nodes (udo deploy --replicas); 0: none.",
)
@grouped(controlling.ControllerOptions, "controllers")
@base.wait_option("Seconds to wait until all live nodes have them, and slots their replicas; 0: do not wait.")
@base.json_option
def command(
    name: str, slots: int | None, replicas: int | None, controllers: controlling.ControllerOptions, wait_s: float, as_json: bool
) -> None:
    """Set the number of slots of deployment NAME on each node, over nodes in all, of their replicas, or who decides about it.

    Each slot has an instance and a queue.

    Without state: new lanes (a Spark task, a client) go to the slot with the fewest; a lane stays where it was opened. With state: its
    key groups are spread evenly over the slots, and move while queries run.

    In mode auto each node decides about its own slots. An explicit number is then where it begins.
    """
    from udo_cli.platform import over_nodes, remote
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    elasticity = controllers.wish()
    if slots is None and replicas is None and not elasticity:
        raise UsageError("expected a number of slots, or of replicas (--replicas), or a mode (--mode off, advise or auto)")
    with remote.registry() as api:
        keyed_over = over_nodes.is_keyed_over(api.deployment(name)) if slots else False
        if keyed_over and slots:
            over_nodes.make_room(remote.node(), name, slots, wait_s, output.say)
        found = api.scale(name, slots, elasticity, replicas)
        if wait_s:
            found = remote.await_answering(api, name, wait_s, output.say)
        if wait_s and replicas is not None and found["placement"]:
            found = remote.await_replicas(api, name, wait_s, output.say)
        if keyed_over:
            over_nodes.fill(remote.node(), name, wait_s, output.say)
    if as_json:
        output.emit(found)
        return
    wish, there = found["elasticity"], found["slots"]
    bounds = f"{wish['least']} to {wish['most'] or 'one for each core'}"
    if wish["mode"] == "auto":
        click.echo(f"{name}: {bounds} slots on each node by policy {wish['policy']}; see: udo events {name}")
    else:
        placed = "over nodes" if found.get("placement") else "on each node"
        kept = "" if replicas is None else f", with {replicas} replica{'s' if replicas != 1 else ''} of each"
        click.echo(f"{name}: {there} slot{'s' if there > 1 else ''} {placed}" + (f", mode {wish['mode']}" if elasticity else "") + kept)
