"""`udo up`: a registry and a node manager in the background."""

from __future__ import annotations

import click

from udo_cli import base
from udo_cli.options import daemons
from udo_cli.options.typed import grouped

EXAMPLES = """
udo up
udo up --warm 2 --metrics-port 9464
udo up --driver docker                        operators in containers (docs/docker.md)
udo up --require-signatures trusted-keys
udo up --tls certs/node1 --listen 10.0.0.2:5000    for other hosts, too (docs/executors.md)
UDO_HOME=/srv/udo udo up
"""


@base.command("up", EXAMPLES)
@grouped(daemons.UpOptions, "wish")
@base.json_option
def command(wish: daemons.UpOptions, as_json: bool) -> None:
    """Start a registry and a node manager under UDO_HOME (default ~/.udo) and wait until both answer.

    One that already runs is left as it is. Stop both with `udo down`.
    """
    from udo_cli.platform import local
    from udo_cli.settings import CliSettings
    from udo_cli.text import output

    with local.interruptible():
        started = local.start(CliSettings().local, wish, output.say)
    if as_json:
        told = {"registry": started.registry, "node": started.node, "started": list(started.fresh), "remarks": list(started.remarks)}
        output.emit(told)
        return
    click.echo(f"registry {started.registry}\nnode     {started.node}")
    for remark in started.remarks:
        output.say(remark)
    output.say("both are running already" if not started.fresh else "next: udo init my-operator, udo push my-operator; stop with: udo down")
