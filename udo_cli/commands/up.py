"""`udo up`: a registry and a node manager in the background."""

from __future__ import annotations

from pathlib import Path

import click

from udo_cli import base

EXAMPLES = """
udo up
udo up --warm 2 --metrics-port 9464
udo up --driver docker                        operators in containers (docs/docker.md)
udo up --require-signatures trusted-keys
udo up --tls certs/node1 --listen 10.0.0.2:5000    for other hosts, too (docs/executors.md)
UDO_HOME=/srv/udo udo up
"""


@base.command("up", EXAMPLES)
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Address on which the registry listens; port 0: any free port, which later starts use again.",
)
@base.tls_option
@click.option(
    "--node-listen",
    default="",
    metavar="HOST:PORT",
    help="With --tls: address on which other hosts reach the node; its queue server uses the next port. By default the registry's address "
    "and any two free ports, which later starts use again.",
)
@click.option("--node", default="", metavar="NAME", help="Name of this node; the host's name by default.")
@base.driver_option
@base.sandbox_option
@base.allow_network_option
@click.option("--runtime-image", default="", metavar="IMAGE", help="Docker driver: image in which Python operators run (docs/docker.md).")
@base.command_image_option
@click.option(
    "--warm",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Number of warm instances, and of warm engines if one was needed, that are kept ready.",
)
@base.metrics_options
@base.cut_state_option
@click.option(
    "--require-signatures",
    "keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Accept only versions signed by one of the public keys *.pub in this folder.",
)
@base.wait_option("Seconds to wait until each answers.", least=1, default=60.0)
@base.json_option
def command(
    listen: str,
    tls: Path | None,
    node_listen: str,
    node: str,
    driver: str,
    sandbox: str,
    allow_network: tuple[str, ...],
    runtime_image: str,
    command_image: str,
    warm: int,
    metrics_port: int,
    metrics_host: str,
    cut_state: bool,
    keys: Path | None,
    wait_s: float,
    as_json: bool,
) -> None:
    """Start a registry and a node manager under UDO_HOME (default ~/.udo) and wait until both answer.

    One that already runs is left as it is. Stop both with `udo down`.
    """
    from udo_cli import local, output
    from udo_cli.settings import CliSettings

    trusted = keys.absolute() if keys else None
    options = local.UpOptions(
        listen,
        node,
        driver,
        warm,
        metrics_port,
        wait_s,
        trusted,
        runtime_image,
        sandbox,
        metrics_host,
        cut_state,
        allow_network,
        tls.absolute() if tls else None,
        node_listen,
        command_image=command_image,
    )
    with local.interruptible():
        started = local.start(CliSettings().local, options, output.say)
    if as_json:
        told = {"registry": started.registry, "node": started.node, "started": list(started.fresh), "remarks": list(started.remarks)}
        output.emit(told)
        return
    click.echo(f"registry {started.registry}\nnode     {started.node}")
    for remark in started.remarks:
        output.say(remark)
    output.say("both are running already" if not started.fresh else "next: udo init my-operator, udo push my-operator; stop with: udo down")
