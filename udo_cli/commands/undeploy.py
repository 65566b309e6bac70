"""`udo undeploy`: remove a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from udo_cli import base

if TYPE_CHECKING:
    from udo_protocol.registry_api import Registry

EXAMPLES = """
udo undeploy fraud
udo undeploy visits --drop-state        with the keyed state that queries have left there
"""


@base.command("undeploy", EXAMPLES)
@click.argument("name")
@click.option("--drop-state", is_flag=True, help="Also when nodes hold keyed state of it, which is then lost.")
@base.json_option
def command(name: str, drop_state: bool, as_json: bool) -> None:
    """Remove deployment NAME from every node. Its operator versions stay in the registry."""
    from udo_cli import output, remote
    from udo_protocol.errors import Conflict

    with remote.registry() as api:
        if not drop_state and (held := _held(api, name)):
            raise Conflict(
                f"{name} would take its keyed state with it: {'; '.join(held)}. Look with udo state ls {name}, save with udo state "
                "export, then use --drop-state"
            )
        api.undeploy(name)
    if as_json:
        output.emit({"undeployed": name})
    else:
        click.echo(f"{name}: removed")


def _held(api: Registry, name: str) -> list[str]:
    """What is known of the deployment's state on live nodes; a node that cannot be asked from here counts as holding some."""
    from udo_protocol.errors import NotFound, Unavailable
    from udo_protocol.node_api import connect_node

    if not api.deployment(name)["manifest"].get("key"):
        return []
    held = []
    for node in api.nodes():
        if not node["live"]:
            continue
        try:
            if not Path(node["address"]).exists():
                raise Unavailable("its socket is on another host")
            sessions = connect_node(node["address"]).sessions(name).sessions
        except NotFound:
            continue
        except Unavailable:
            held.append(f"node {node['node']} cannot be asked from here")
            continue
        if sessions:
            held.append(f"{len(sessions)} sessions with {sum(s.keys for s in sessions)} keys on node {node['node']}")
    return held
