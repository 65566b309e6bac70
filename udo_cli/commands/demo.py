"""`udo demo`: the whole platform on a stream of card payments, with a live update in the middle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from udo_cli import base
from udo_cli.exits import ExitCode
from udo_cli.options import daemons
from udo_cli.options.typed import grouped, option

EXAMPLES = """
udo demo
udo demo --rate 20000 --seconds 60
udo demo --data payments.parquet --update-at 100000
udo demo --driver docker                      operators in containers (docs/docker.md)
udo demo --json > report.json
"""


@dataclass(frozen=True)
class DemoOptions:
    """The stream, and how the node runs the operators in it."""

    data: Path | None = option(
        type=click.Path(path_type=Path, dir_okay=False), help="Parquet or CSV of card payments instead of generated ones."
    )
    rate: float | None = option(type=click.FloatRange(1), help="Rows per second; 60,000 by default, with --data as fast as possible.")
    seconds: float | None = option(type=click.FloatRange(1), help="Length of the stream; 20 by default.")
    rows: int | None = option(type=click.IntRange(1), help="Total number of rows.")
    update_at: int | None = option(type=click.IntRange(1), metavar="ROW", help="Row at which fraud v2 replaces v1; the middle by default.")
    seed: int = option(type=int, default=7, show_default=True, help="Seed of the generator.")
    driver: str = daemons.driver()


@base.command("demo", EXAMPLES)
@grouped(DemoOptions, "wish")
@base.json_option
def command(wish: DemoOptions, as_json: bool) -> None:
    """Run the platform on a stream of card payments and replace the fraud operator while the query runs.

    Starts a registry and a node manager, pushes the operators `forward` and `fraud`, streams payments, some of them frauds,
    through both with Spark, updates `fraud` to version 2, and checks that every event was answered once and in order. Takes
    about a minute and leaves no process and no file behind. The exit code is 1 if the check fails.
    """
    from udo_cli.platform import local
    from udo_cli.text import output

    with local.interruptible():
        from udo_cli.demo import plan, run, show

        output.say("making card payments" if wish.data is None else f"reading {wish.data}")
        made = plan.make(wish.data, wish.rate, wish.seconds, wish.rows, wish.update_at, wish.seed)
        with show.screen() as screen:
            report = run.run(made, wish.driver, output.say, screen)
    if as_json:
        output.emit(report.document())
    else:
        for what, how in report.lines():
            click.echo(f"{what:>26}  {how}")
    if not report.good:
        raise SystemExit(ExitCode.INTERNAL)
