"""`udo node`: a node manager in the foreground; `udo node ls`: the nodes the registry knows."""

from __future__ import annotations

from pathlib import Path

import click

from udo_cli import base

EXAMPLES = """
udo node --home /run/udo --registry http://registry:5000 --token-file token     as a service runs it
udo node                                                                        under UDO_HOME, Ctrl-C stops it
udo node ls
"""


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
@click.option("--driver", default="process", show_default=True, help="How it runs operators.")
@click.option("--warm", type=click.IntRange(0), default=1, show_default=True, help="Warm instances kept ready.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), default=0, help="Port of the Prometheus endpoint; 0: any free one.")
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
    warm: int,
    metrics_port: int,
    server: Path | None,
) -> None:
    """Run a node manager here in the foreground: beside every Spark executor there must be one."""
    if ctx.invoked_subcommand:
        return
    from udo_cli import foreground
    from udo_cli.settings import Settings

    settings = Settings()
    arguments = ["--home", str(home or settings.local.node), "--driver", driver, "--warm", str(warm), "--metrics-port", str(metrics_port)]
    arguments += ["--registry", url or settings.registry_url()]
    token = token_file or settings.token_file or settings.local.token_file
    for option, value in (("--token-file", token if token.exists() else None), ("--node", name), ("--server", server)):
        arguments += [option, str(value)] if value else []
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
    rows = [(n["node"], "live" if n["live"] else "gone", n["driver"], n["address"], n["metrics_address"], n["last_seen"]) for n in nodes]
    output.table(("NODE", "STATE", "DRIVER", "ADDRESS", "METRICS", "LAST SEEN"), rows, "no nodes; start one with: udo node")
