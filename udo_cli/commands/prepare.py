"""`udo prepare`: prepare a scale-out of a deployment that keeps state, on this node, before its load asks for it."""

from __future__ import annotations

from dataclasses import dataclass

import click

from udo_cli import base
from udo_cli.options import completing
from udo_cli.options.typed import grouped, option
from udo_protocol.limits import MOST_SLOTS

EXAMPLES = """
udo prepare visits 4                          from two slots: two more run and follow the state that they are going to have
udo scale visits 4                            they take over
udo prepare visits --stop                     or they are removed again
udo prepare visits 4 --strategy checkpoint    checkpoints only; the slots start with udo scale
"""


@dataclass(frozen=True)
class PreparationOptions:
    """How the future slots keep up with the state."""

    strategy: str = option(
        type=click.Choice(["active-backup", "checkpoint"]),
        default="active-backup",
        show_default=True,
        help="active-backup: the new slots run beside those that serve, and read what changes; checkpoint: the state is written more "
        "often, and the new slots start when they are needed.",
    )
    refresh_s: float = option(type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two refreshes.")


@base.command("prepare", EXAMPLES)
@click.argument("name", shell_complete=completing.deployments)
@click.argument("slots", type=click.IntRange(2, MOST_SLOTS), required=False)
@grouped(PreparationOptions, "how")
@click.option("--stop", is_flag=True, help="Give the preparation up: the slots that stand ready are removed.")
@base.wait_option("How long to wait until it is ready.")
@base.node_option
@base.json_option
def command(name: str, slots: int | None, how: PreparationOptions, stop: bool, wait_s: float, address: str | None, as_json: bool) -> None:
    """Prepare a scale-out of deployment NAME, which keeps state, to SLOTS slots on this node; its queries go on.

    udo scale NAME SLOTS takes over then. In mode auto the load decides about it. See docs/elasticity.md.
    """
    from udo_cli.platform import remote
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    if stop == (slots is not None):
        raise UsageError("expected a number of slots to prepare for, or --stop")
    remote.node(address).prepare_scale_out(name, slots or 0, how.strategy, how.refresh_s, wait_s)
    if as_json:
        output.emit({"deployment": name, "prepared": slots or 0, **({"strategy": how.strategy} if slots else {})})
    elif slots:
        click.echo(f"{name}: a scale-out to {slots} slots stands prepared ({how.strategy}); take over: udo scale {name} {slots}")
    else:
        click.echo(f"{name}: nothing stands prepared")
