"""`udo ls`: operators and deployments of the registry."""

from __future__ import annotations

from typing import Any

import click

from udo_cli import base

EXAMPLES = """
udo ls
udo ls deployments
udo ls operators --json
"""


@base.command("ls", EXAMPLES)
@click.argument("what", type=click.Choice(["all", "operators", "deployments"]), default="all")
@base.json_option
def command(what: str, as_json: bool) -> None:
    """List operators with their versions, and deployments with their wanted version and the states of the nodes."""
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        found = {kind: read() for kind, read in (("deployments", api.deployments), ("operators", api.operators)) if what in ("all", kind)}
    if as_json:
        output.emit(found)
        return
    if "deployments" in found:
        rows = [(d["name"], f"{d['operator']}@{d['version']}", output.short(d["digest"]), _states(d)) for d in found["deployments"]]
        output.table(("DEPLOYMENT", "WANTED", "DIGEST", "NODES"), rows, "no deployments; make one with: udo deploy OPERATOR")
    if what == "all":
        click.echo()
    if "operators" in found:
        versions = [
            (o["name"], v["version"], output.short(v["digest"]), v["created_at"]) for o in found["operators"] for v in o["versions"]
        ]
        output.table(("OPERATOR", "VERSION", "DIGEST", "PUSHED"), versions, "no operators; push one with: udo push DIRECTORY")


def _states(deployment: dict[str, Any]) -> str:
    """Number of nodes in each state, with the version if it is not the wanted one."""
    counts: dict[str, int] = {}
    for node in deployment["nodes"]:
        other = f" @{node['version']}" if node["digest"] != deployment["digest"] else ""
        counts[node["state"] + other] = counts.get(node["state"] + other, 0) + 1
    return ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "none"
