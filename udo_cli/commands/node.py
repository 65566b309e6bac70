"""`udo node`: a node manager in the foreground; `udo node ls`: the nodes the registry knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from udo_cli import base
from udo_cli.options import daemons
from udo_cli.options.typed import grouped, option
from udo_protocol.errors import Conflict, NotFound

EXAMPLES = """
udo node --home /run/udo --registry https://registry:5000 --token-file token --tls /etc/udo/tls --listen 10.0.0.3:7070
udo node                    under UDO_HOME, Ctrl-C stops it
udo node ls
udo node drain b
udo node capabilities
"""
NODE_COLUMNS = ("NODE", "STATE", "DRIVER", "ADDRESS", "METRICS", "ROUND TRIP MS TO")
# Capabilities in the order of docs/sandbox.md.
CAPABILITIES = {
    "isolates_network": "reaches no network",
    "opens_endpoints": "except endpoints that it requests and the node allows",
    "isolates_sockets": "reaches no sockets but the two servers'",
    "isolates_reads": "sees no files but its own, its runtime's and programs",
    "isolates_writes": "changes no files but in its scratch space",
    "isolates_processes": "sees and signals no processes but its own",
    "isolates_keys": "can access no keys but its slot's",
    "isolates_users": "runs as a user that owns nothing here",
    "memory_limit": "memory is bounded",
    "process_limit": "processes are bounded",
    "open_files_limit": "open files are bounded",
    "disk_limit": "what it can write is bounded",
    "runs_images": "whole images can be run",
}


@dataclass(frozen=True)
class _Member:
    home: Path | None = option(
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for its sockets, instances and images; UDO_HOME/node by default.",
    )
    node: str | None = option("--name", help="Name of the node; the host's name by default.")
    registry: str | None = option(
        metavar="URL", help="Registry to follow, or URL,URL of its processes; UDO_REGISTRY or the local one by default."
    )
    token_file: Path | None = option(
        type=click.Path(path_type=Path, dir_okay=False), help="The registry's token; UDO_TOKEN_FILE or the local one by default."
    )


@dataclass(frozen=True)
class _ManagerOptions(daemons.NodeOptions, _Member):
    runtime_image: str = ""  # no option of this command
    server: Path | None = option(
        type=click.Path(path_type=Path, dir_okay=False), help="A valkey-server or redis-server instead of the bundled one."
    )
    tls: Path | None = daemons.tls()
    listen: str = option(
        default="",
        metavar="HOST:PORT",
        help="Address on which other hosts reach this node by TLS; its queue server uses the next port. Port 0: any two free "
        "ports, which later starts use again. By default other hosts cannot connect.",
    )
    policies: Path | None = option(
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="TOML file of balancing policies of your own that deployments may name; their modules lie beside it. See docs/elasticity.md.",
    )


@base.group("node", EXAMPLES)
@grouped(_ManagerOptions, "wish")
@click.pass_context
def command(ctx: click.Context, wish: _ManagerOptions) -> None:
    """Run a node manager in the foreground. Every host with Spark executors needs one."""
    if ctx.invoked_subcommand:
        return
    from udo_cli.platform import foreground
    from udo_cli.settings import CliSettings

    settings = CliSettings()
    token = wish.token_file or settings.token_file or settings.local.token_file
    home, registry = wish.home or settings.local.node, wish.registry or settings.registry_url()
    told = replace(wish, home=home, registry=registry, token_file=token if token.exists() else None)
    ctx.exit(foreground.run("node_manager", daemons.arguments(told)))


@command.command("ls", examples="udo node ls --json")
@base.json_option
def ls(as_json: bool) -> None:
    """List the nodes that the registry knows."""
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        nodes = api.nodes()
    if as_json:
        output.emit(nodes)
        return
    output.table(NODE_COLUMNS, map(node_row, nodes), "no nodes; start one with: udo node")


def node_row(n: dict[str, Any]) -> tuple[str, ...]:
    """The row of a node. Its address is HOST:SOCKET; for metrics on a loopback address the row names the host that can read them."""
    host = n["address"].rpartition(":")[0]
    metrics = n["metrics_address"]
    near = f" (on {host} only)" if host and urlsplit(metrics).hostname in ("127.0.0.1", "localhost", "::1") else ""
    drained = ", drained" if n.get("drained") else ""
    delays = ", ".join(f"{node} {ms:.2f}" for node, ms in sorted(n.get("delays_ms", {}).items(), key=lambda pair: pair[1]))
    state = f"live{drained}" if n["live"] else f"away since {n['last_seen']}"
    return (n["node"], state, n["driver"], n["address"], f"{metrics}{near}", delays)


@command.command("drain", examples="udo node drain b\nudo node drain b --undo\nudo node drain b --json")
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let it have slots of deployments over nodes again.")
@base.wait_option("Seconds to wait for each move of key groups, and for replicas.")
@base.json_option
def drain(node: str, undo: bool, wait_s: float, as_json: bool) -> None:
    """Move all slots of deployments over nodes off NODE, while queries run, so that it can be stopped for good.

    Stateless slots go to other nodes; key groups move to the slots on other nodes; slots with replicas go to nodes that hold them, once
    these have as many other replicas. NODE gets no new ones. If the command is interrupted, give it again. Deployments that have slots
    of their own on each node stay there.
    """
    from udo_cli.platform import over_nodes, remote
    from udo_cli.text import output

    with remote.registry() as api:
        if all(n["node"] != node for n in api.nodes()):
            raise NotFound(f"the registry knows no node {node!r}; look at: udo node ls")
        left = api.drain(node, undo=undo)
        moved = [d["deployment"] for d in left if d["keyed"] or d["waits"]]
        emptied = [d["deployment"] for d in left if d["keyed"]]
        for name in emptied:
            over_nodes.empty(remote.node(), name, node, wait_s, output.say)
        if moved:
            left = remote.await_drained(api, node, emptied, wait_s, output.say)
    if left:
        reasons = "; ".join(f"{d['deployment']}: {d['why']}" for d in left)
        raise Conflict(f"node {node} still has slots or replicas of {len(left)} deployments over nodes: {reasons}")
    if as_json:
        output.emit({"node": node, "drained": not undo, "moved": moved})
    else:
        what = "may have slots of deployments over nodes" if undo else "has no slots of deployments over nodes any more"
        click.echo(f"node {node} {what}")


@command.command("capabilities", examples="udo node capabilities --json")
@base.json_option
def capabilities(as_json: bool) -> None:
    """Show what an operator can and cannot do with each node's driver, as the node determined at its start."""
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        nodes = [{name: n[name] for name in ("node", "driver", "capabilities")} for n in api.nodes() if n["live"]]
    if as_json:
        output.emit(nodes)
        return
    header = ("AN OPERATOR", *(f"{n['node']} ({n['driver']})".upper() for n in nodes))
    rows = [(text, *("yes" if n["capabilities"].get(name) else "no" for n in nodes)) for name, text in CAPABILITIES.items()]
    output.table(header, rows if nodes else [], "no nodes; start one with: udo node")
    for n in nodes:
        if remark := n["capabilities"].get("remark"):
            click.echo(f"{n['node']}: {remark}")
