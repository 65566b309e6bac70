"""`udo status`: registry, nodes, deployments, the slots of this host's node, and the parts that do not answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from udo_cli import base
from udo_cli.commands.node import NODE_COLUMNS, node_row
from udo_cli.exits import ExitCode
from udo_protocol.lifecycle import REFUSED

EXAMPLES = """
udo status
udo status --json
"""


@base.command("status", EXAMPLES)
@base.json_option
def command(as_json: bool) -> None:
    """Show whether the registry answers, which nodes are live, the state of each deployment on them, and the slots of this host's node.

    The exit code is 5 if something does not answer: the registry, a node that it knows, this host's node manager or one of its
    servers; otherwise 6 if a deployment fails on a node.
    """
    from udo_cli.platform import remote
    from udo_cli.settings import CliSettings
    from udo_cli.text import output
    from udo_protocol.errors import Unavailable

    found: dict[str, Any] = {"registry": None, "node": None, "problems": []}
    try:
        with remote.registry() as api:
            found["registry"] = {"url": api.url, **api.health(), "nodes": api.nodes(), "deployments": api.deployments()}
    except Unavailable as e:
        found["problems"].append(str(e))
    if address := CliSettings().local_node():
        try:
            found["node"] = _node(address)
        except Unavailable as e:
            found["problems"].append(str(e))
    elif found["registry"] is None:
        raise Unavailable(f"{found['problems'][0]}. There is no node manager on this host either")
    found["problems"] += _away(found["registry"]) + _silent(found["node"])
    failing = _failing(found["registry"])
    code = ExitCode.UNAVAILABLE if found["problems"] else ExitCode.OPERATOR if failing else ExitCode.OK
    found["problems"] += failing
    if as_json:
        output.emit(found)
    else:
        _show(found)
        for problem in found["problems"]:
            output.say(problem)
    click.get_current_context().exit(code)


def _away(registry: dict[str, Any] | None) -> list[str]:
    """Known nodes that do not report, and deployments that no live node serves."""
    if registry is None:
        return []
    away = [f"node {n['node']} ({n['address']}) is away since {n['last_seen']}" for n in registry["nodes"] if not n["live"]]
    if registry["deployments"] and not registry["live_nodes"]:
        away.append(f"no node is live, so nothing serves {', '.join(d['name'] for d in registry['deployments'])}")
    return away


def _silent(node: dict[str, Any] | None) -> list[str]:
    """Servers of this host's node that do not answer."""
    servers = node["servers"] if node else []
    return [f"{s['role']} server (pid {s['pid']}) {s['trouble']}" for s in servers if s["trouble"]]


def _failing(registry: dict[str, Any] | None) -> list[str]:
    states = ((d["name"], n) for d in (registry or {"deployments": []})["deployments"] for n in d["nodes"])
    words = {"failed": "fails", REFUSED: "is refused"}
    return [
        f"{name} {words[n['state']]} on node {n['node']}: {n['detail'].partition(chr(10))[0]}" for name, n in states if n["state"] in words
    ]


def _node(address: str) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    from udo_cli.platform import remote

    reply = remote.node(address).status()
    return {"address": address, **MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)}


def _show(found: dict[str, Any]) -> None:
    from udo_cli.text import output

    if registry := found["registry"]:
        click.echo(f"registry {registry['url']}: {registry['status']}, {registry['live_nodes']} live nodes")
        output.table(NODE_COLUMNS, map(node_row, registry["nodes"]), "no nodes")
        click.echo()
        for d in registry["deployments"]:
            if running := d["update"]:
                click.echo(f"{d['name']}: {_running(running)}")
        slots = {d["name"]: f"{d['slots']} in all" if d["placement"] else d["slots"] for d in registry["deployments"]}
        wanted = [(d, (d["name"], f"{d['operator']}@{d['version']}", slots[d["name"]])) for d in registry["deployments"]]
        states = [(*row, *_said(n)) for d, row in wanted for n in d["nodes"] or [{}]]
        output.table(("DEPLOYMENT", "WANTED", "SLOTS", "NODE", "VERSION", "STATE", "DETAIL"), states, "no deployments")
        click.echo()
    if node := found["node"]:
        click.echo(f"node {node['node']} at {node['address']}: driver {node['driver']}, metrics {node['metrics_address'] or 'off'}")
        for server in node["servers"]:
            if server["remark"]:
                click.echo(f"{server['role']} server: {server['remark']}")
        if errors := node["background_errors"]:
            counts = ", ".join(f"{kind} {count}" for kind, count in sorted(errors.items()))
            click.echo(f"unexpected errors of the node manager's threads since its start: {counts}; see its log")
        for s in node["slots"]:
            if s["diff"]:
                click.echo(f"{s['deployment']}: diff with {s['diff']}")
            if s["canary"] and not s["pinned"]:
                click.echo(f"{s['deployment']}: canary: {s['canary']}")
        rows = [
            (f"{s['deployment']}:{s['slot']}", f"{s['operator']}@{s['version']}", _role(s), s["canary"] if s["pinned"] else "")
            + (
                f"{s['pid']}, {s['operator_pid']}" if s["operator_pid"] else s["pid"],
                s["restarts"],
                s["depth_frames"],
                output.size(int(s["rss_bytes"])),
                s["policy"],
                s["dead_letters"],
                s["groups"],
                s["last_error"],
            )
            for s in node["slots"]
        ]
        columns = ("SLOT", "OPERATOR", "STATE", "SERVES", "PID", "RESTARTS", "DEPTH", "RESIDENT", "ON ERROR", "DEAD", "KEY GROUPS")
        output.table((*columns, "LAST ERROR"), rows, "no slots")


def _said(n: dict[str, Any]) -> tuple[str, ...]:
    """The columns for a node's last report about a deployment; empty `n`: no node has reported."""
    if not n:
        return ("", "", "no node has reported", "")
    return (n["node"], n["version"], f"away since {n['away_since']}" if n["away_since"] else n["state"], n["detail"])


def _role(slot: Mapping[str, Any]) -> str:
    """A slot's state, with a remark if the slot stands ready for a scale-out."""
    return f"{slot['state']} (prepared)" if slot["pinned"] == "prepared" else str(slot["state"])


def _running(update: dict[str, Any]) -> str:
    """An update under way, in one line."""
    if update["state"] != "canary":
        return f"being updated to {update['to_version']}: {update['state']}"
    return f"canary of {update['to_version']}: {update['detail']}"
