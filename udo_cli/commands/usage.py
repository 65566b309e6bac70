"""`udo usage`: events, bytes, processor time and state over time of each deployment, as the nodes have metered them."""

from __future__ import annotations

from typing import Any

import click

from udo_cli import base
from udo_cli.options import completing
from udo_cli.text.times import when

EXAMPLES = """
udo usage                     each deployment, over all nodes that can be asked from here
udo usage fraud --json        also by node, and the state of each query
"""
COLUMNS = ("DEPLOYMENT", "NODES", "SINCE", "EVENTS IN", "EVENTS OUT", "IN", "OUT", "CPU SECONDS", "STATE, MIB HOURS")
_SUMMED = ("events_in", "events_out", "bytes_in", "bytes_out", "cpu_s", "state_byte_hours")
Json = dict[str, Any]


@base.command("usage", EXAMPLES)
@click.argument("deployment", default="", shell_complete=completing.deployments)
@base.nodes_option
@base.json_option
def command(deployment: str, address: str | None, as_json: bool) -> None:
    """Show what DEPLOYMENT, or each, has used so far, also after it was undeployed. Figures are kept over restarts.

    Events and bytes are those that owners read and answered, repeated ones included; processor time is that of owners.
    """
    from udo_cli.platform.usage import ask_all
    from udo_cli.text import output

    replies, silent = ask_all(address, lambda node: node.usage(deployment))
    for line in silent:
        output.say(line)
    told = [_row(d, reply.node) for _, reply in replies for d in reply.deployments]
    found = summed(told)
    if as_json:
        output.emit({"deployments": found, "not_asked": silent})
    else:
        output.table(COLUMNS, map(_shown, found), "nothing was used yet")


def _row(d: Any, node: str) -> Json:
    figures = {name: getattr(d, name) for name in ("since", "until", *_SUMMED)}
    return {"deployment": d.deployment, "node": node, **figures, "queries": dict(d.query_state_byte_hours)}


def summed(told: list[Json]) -> list[Json]:
    """One entry for each deployment, by name: the sums over its nodes, and the nodes."""
    found = list[Json]()
    for name in sorted({t["deployment"] for t in told}):
        of_it = [t for t in told if t["deployment"] == name]
        queries: dict[str, float] = {}
        for t in of_it:
            for query, more in t["queries"].items():
                queries[query] = queries.get(query, 0.0) + more
        found.append(
            {
                "deployment": name,
                "since": min(t["since"] for t in of_it),
                "until": max(t["until"] for t in of_it),
                **{n: sum(t[n] for t in of_it) for n in _SUMMED},
                "queries": [{"session": query, "state_byte_hours": more} for query, more in sorted(queries.items())],
                "nodes": [{"node": t["node"], **{n: t[n] for n in _SUMMED}} for t in of_it],
            }
        )
    return found


def _shown(d: Json) -> tuple[str, ...]:
    from udo_cli.text.output import size

    return (
        d["deployment"],
        ", ".join(n["node"] for n in d["nodes"]),
        when(d["since"]),
        f"{d['events_in']:,}",
        f"{d['events_out']:,}",
        size(d["bytes_in"]),
        size(d["bytes_out"]),
        f"{d['cpu_s']:,.1f}",
        f"{d['state_byte_hours'] / 2**20:,.2f}",
    )
