"""`udo node`: a node manager in the foreground; `udo node ls`: the nodes the registry knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from udo_cli import base

EXAMPLES = """
udo node --home /run/udo --registry http://registry:5000 --token-file token     as a service runs it
udo node                                                                        under UDO_HOME, Ctrl-C stops it
udo node ls
udo node capabilities
"""
NODE_COLUMNS = ("NODE", "STATE", "DRIVER", "ADDRESS", "METRICS")
# In the order of docs/sandbox.md.
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


@base.group("node", EXAMPLES)
@click.option(
    "--home", type=click.Path(path_type=Path, file_okay=False), help="Folder of its sockets, instances, images; UDO_HOME/node by default."
)
@click.option("--name", help="Name of the node; the host's name by default.")
@click.option("--registry", "url", metavar="URL", help="Registry to follow; UDO_REGISTRY or the local one by default.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The registry's token; UDO_TOKEN_FILE or the local one by default.",
)
@base.driver_option
@base.sandbox_option
@base.allow_network_option
@click.option("--warm", type=click.IntRange(0), default=1, show_default=True, help="Warm instances kept ready.")
@base.metrics_options
@base.cut_state_option
@click.option(
    "--server", type=click.Path(path_type=Path, dir_okay=False), help="A valkey-server or redis-server instead of the bundled one."
)
@click.pass_context
def command(
    ctx: click.Context,
    home: Path | None,
    name: str | None,
    url: str | None,
    token_file: Path | None,
    driver: str,
    sandbox: str,
    allow_network: tuple[str, ...],
    warm: int,
    metrics_port: int,
    metrics_host: str,
    cut_state: bool,
    server: Path | None,
) -> None:
    """Run a node manager here in the foreground: beside every Spark executor there must be one."""
    if ctx.invoked_subcommand:
        return
    from udo_cli import foreground
    from udo_cli.settings import CliSettings

    settings = CliSettings()
    arguments = ["--home", str(home or settings.local.node), "--driver", driver, "--warm", str(warm), "--metrics-port", str(metrics_port)]
    arguments += ["--metrics-host", metrics_host, "--sandbox", sandbox, "--registry", url or settings.registry_url()]
    token = token_file or settings.token_file or settings.local.token_file
    for option, value in (("--token-file", token if token.exists() else None), ("--node", name), ("--server", server)):
        arguments += [option, str(value)] if value else []
    arguments += [f"--allow-network={endpoint}" for endpoint in allow_network]
    arguments += ["--cut-state"] if cut_state else []
    ctx.exit(foreground.run("node_manager", arguments))


@command.command("ls", examples="udo node ls --json")
@base.json_option
def ls(as_json: bool) -> None:
    """List the nodes the registry has heard of."""
    from udo_cli import output, remote

    with remote.registry() as api:
        nodes = api.nodes()
    if as_json:
        output.emit(nodes)
        return
    output.table(NODE_COLUMNS, map(node_row, nodes), "no nodes; start one with: udo node")


def node_row(n: dict[str, Any]) -> tuple[str, ...]:
    """A node as the registry knows it. Its address is HOST:SOCKET; metrics that only its host reaches are said to be."""
    host = n["address"].rpartition(":")[0]
    metrics = n["metrics_address"]
    near = f" (on {host} only)" if host and urlsplit(metrics).hostname in ("127.0.0.1", "localhost", "::1") else ""
    return (n["node"], "live" if n["live"] else f"away since {n['last_seen']}", n["driver"], n["address"], f"{metrics}{near}")


@command.command("capabilities", examples="udo node capabilities --json")
@base.json_option
def capabilities(as_json: bool) -> None:
    """Show what each node's driver keeps an operator from, as the node found out when it started."""
    from udo_cli import output, remote

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
