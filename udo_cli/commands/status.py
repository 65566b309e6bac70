"""`udo status`: registry, nodes, deployments, and the slots of this node."""

from __future__ import annotations

from typing import Any

import click

from udo_cli import base

EXAMPLES = """
udo status
udo status --json
"""


@base.command("status", EXAMPLES)
@base.json_option
def command(as_json: bool) -> None:
    """Show whether the registry answers, which nodes live, how each deployment fares there, and this node's slots.

    Ends with 5 when neither registry nor node answers.
    """
    from udo_cli import output, remote
    from udo_cli.settings import Settings
    from udo_protocol.errors import Unavailable

    found: dict[str, Any] = {"registry": None, "node": None}
    away: list[Unavailable] = []
    try:
        with remote.registry() as api:
            found["registry"] = {"url": api.url, **api.health(), "nodes": api.nodes(), "deployments": api.deployments()}
    except Unavailable as e:
        away.append(e)
    try:
        found["node"] = _node(Settings().node_address())
    except Unavailable as e:
        away.append(e)
    if len(away) == 2:
        raise Unavailable("\n".join(map(str, away)))
    if as_json:
        output.emit(found)
        return
    _show(found)
    for error in away:
        output.say(str(error))


def _node(address: str) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    from udo_cli import remote

    reply = remote.node(address).status()
    return {"address": address, **MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)}


def _show(found: dict[str, Any]) -> None:
    from udo_cli import output

    if registry := found["registry"]:
        click.echo(f"registry {registry['url']}: {registry['status']}, {registry['live_nodes']} live nodes")
        nodes = [(n["node"], "live" if n["live"] else "gone", n["driver"], n["address"], n["last_seen"]) for n in registry["nodes"]]
        output.table(("NODE", "STATE", "DRIVER", "ADDRESS", "LAST SEEN"), nodes, "no nodes")
        click.echo()
        for d in registry["deployments"]:
            if running := d["update"]:
                click.echo(f"{d['name']}: {_running(running)}")
        states = [
            (d["name"], f"{d['operator']}@{d['version']}", n["node"], n["state"], n["detail"])
            for d in registry["deployments"]
            for n in d["nodes"]
        ]
        output.table(("DEPLOYMENT", "WANTED", "NODE", "STATE", "DETAIL"), states, "no deployment has reported from a node")
        click.echo()
    if node := found["node"]:
        click.echo(f"node {node['node']} at {node['address']}: driver {node['driver']}, metrics {node['metrics_address'] or 'off'}")
        for server in node["servers"]:
            if server["trouble"]:
                click.echo(f"{server['role']} server (pid {server['pid']}) {server['trouble']}")
        if errors := node["background_errors"]:
            counts = ", ".join(f"{kind} {count}" for kind, count in sorted(errors.items()))
            click.echo(f"unexpected errors of the node manager's threads since its start: {counts}; see its log")
        for s in node["slots"]:
            if s["diff"]:
                click.echo(f"{s['deployment']}: diff with {s['diff']}")
            if s["canary"] and not s["pinned"]:
                click.echo(f"{s['deployment']}: canary: {s['canary']}")
        rows = [
            (f"{s['deployment']}:{s['slot']}", f"{s['operator']}@{s['version']}", s["state"], s["canary"] if s["pinned"] else "")
            + (
                s["pid"],
                s["restarts"],
                s["depth_frames"],
                output.size(int(s["rss_bytes"])),
                s["policy"],
                s["dead_letters"],
                s["last_error"],
            )
            for s in node["slots"]
        ]
        columns = ("SLOT", "OPERATOR", "STATE", "SERVES", "PID", "RESTARTS", "DEPTH", "RESIDENT", "ON ERROR", "DEAD", "LAST ERROR")
        output.table(columns, rows, "no slots")


def _running(update: dict[str, Any]) -> str:
    """An update that is under way, in a line."""
    if update["state"] != "canary":
        return f"being updated to {update['to_version']}: {update['state']}"
    return f"canary of {update['to_version']}: {update['detail']}"
