"""`udo top`: rates, depths and latencies of this node's slots, live."""

from __future__ import annotations

import time

import click

from udo_cli import base

EXAMPLES = """
udo top
udo top --once
udo top --json --interval-s 5        one JSON line every five seconds
udo top --json --once
"""


@base.command("top", EXAMPLES)
@click.option(
    "--interval-s",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between updates; rates are averages over them.",
)
@click.option("--once", is_flag=True, help="Print once and exit.")
@base.node_option
@base.json_option
def command(interval_s: float, once: bool, address: str | None, as_json: bool) -> None:
    """Watch the slots of this node: events per second, waiting frames, time per frame in the operator. Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    from udo_cli.platform import remote
    from udo_cli.text import output, slot_table
    from udo_cli.text.rates import Rates

    node = remote.node(address)
    rates = Rates()
    rates.look(node.stats(), time.monotonic())
    time.sleep(min(interval_s, 1.0) if once else interval_s)  # two looks make a rate
    if as_json or once:
        while True:
            slots = rates.look(node.stats(), time.monotonic())
            if as_json:
                output.emit({"slots": slots})
            else:
                output.table(slot_table.COLUMNS, map(slot_table.cells, slots), "no slots")
            if once:
                return
            time.sleep(interval_s)
    with Live(console=Console(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(slot_table.drawn(rates.look(node.stats(), time.monotonic())), refresh=True)
            time.sleep(interval_s)
