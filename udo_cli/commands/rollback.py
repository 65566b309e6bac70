"""`udo rollback`: back to a former version while queries run."""

from __future__ import annotations

import click

from udo_cli import base
from udo_cli.options import completing

EXAMPLES = """
udo rollback fraud            to the previous version
udo rollback fraud 1          to a named former version
"""


@base.command("rollback", EXAMPLES)
@click.argument("name", shell_complete=completing.deployments)
@click.argument("version", required=False, shell_complete=completing.former)
@base.wait_option("Seconds that the former version may take to become ready.", least=1)
@base.json_option
def command(name: str, version: str | None, wait_s: float, as_json: bool) -> None:
    """Go back to a former version of deployment NAME while queries run, or end its canary."""
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        done = remote.follow(api.rollback(name, version, wait_s), output.say)
        found = api.deployment(name)
        on, missed = remote.reached(api, done["id"])
    if as_json:
        told = {"name": name, "version": found["version"], "digest": found["digest"], "took_ms": done["at_ms"], "id": done["id"]}
        output.emit(told | {"nodes": on, "missed": missed})
    else:
        click.echo(f"{name}: back to {found['operator']}@{found['version']} after {done['at_ms']:.0f} ms{remote.where(on, missed)}")
