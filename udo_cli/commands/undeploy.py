"""`udo undeploy`: remove a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from udo_cli import base
from udo_cli.options import completing

if TYPE_CHECKING:
    from udo_protocol.registry.api import Registry

EXAMPLES = """
udo undeploy fraud
udo undeploy visits --drop-state        with the keyed state and the dead letters that queries have left there
"""


@base.command("undeploy", EXAMPLES)
@click.argument("name", shell_complete=completing.deployments)
@click.option("--drop-state", is_flag=True, help="Also if nodes have keyed state or dead letters of it, which are deleted.")
@base.json_option
def command(name: str, drop_state: bool, as_json: bool) -> None:
    """Remove deployment NAME from every node. Its operator versions stay in the registry."""
    from udo_cli.platform import remote
    from udo_cli.text import output
    from udo_protocol.errors import Conflict

    with remote.registry() as api:
        if not drop_state and (held := _held(api, name)):
            raise Conflict(
                f"undeploying {name} would delete its data: {'; '.join(held)}. Look with udo state ls {name} and udo dead ls {name}, save "
                "with udo state export, send again with udo dead replay, then use --drop-state"
            )
        api.undeploy(name, drop_state=True)  # there is no data, or the user has agreed
    if as_json:
        output.emit({"undeployed": name})
    else:
        click.echo(f"{name}: removed")


def _held(api: Registry, name: str) -> list[str]:
    """The deployment's state and dead letters on its nodes, in words; nodes that are away or cannot be asked from here are named, too."""
    from udo_cli.platform import usage
    from udo_protocol.errors import NotFound, SlotBroken, Unavailable
    from udo_protocol.state.dead_letters import FAIL

    found = api.deployment(name)
    if not found["manifest"].get("key") and found["policy"] == FAIL:
        return []
    held = [f"node {n['node']} is away since {n['away_since']}: what it has cannot be asked" for n in found["nodes"] if n["away_since"]]
    for where, node in usage.live_nodes(api):
        try:
            if node is None:
                raise Unavailable("its socket is on another host")
            sessions = node.sessions(name).sessions
            letters = sum(s.dead_letters for s in node.status().slots if s.deployment == name)
        except NotFound:
            continue
        except SlotBroken as e:
            held.append(f"data on node {where} that cannot be counted: {e}")
            continue
        except Unavailable:
            held.append(f"node {where} cannot be asked from here")
            continue
        if letters:
            held.append(f"{letters} dead letters on node {where}")
        if sessions:
            held.append(f"{len(sessions)} sessions with {sum(s.keys for s in sessions)} keys on node {where}")
    return held
