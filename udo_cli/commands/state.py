"""`udo state`: the keyed state of deployments, by session: list, show, export, import, drop, release."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from udo_cli import base
from udo_cli.options import completing
from udo_cli.options.typed import grouped, option
from udo_cli.text.times import when
from udo_protocol.errors import NotFound, UsageError
from udo_protocol.limits import RUNS_OF_A_PLAN

if TYPE_CHECKING:
    from udo_cli.state_file import Summary
    from udo_protocol.proto import node_manager_pb2 as pb

EXAMPLES = """
udo state ls                                       sessions of every deployment here; a query's is named by its id
udo state show visits 1f2e                         keys and values; a prefix of a session's name is enough
udo state show visits 1f2e --key 4711 --json
udo state export visits 1f2e visits.state
udo state import visits.state visits NEW-QUERY-ID --start-epoch 0
udo state drop visits 1f2e
udo state release visits 1f2e                      its node is lost for good
"""


@base.group("state", EXAMPLES)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Inspect the keyed state of deployments, back it up, move it to another query, remove what no query uses.

    A session is the state of one query in one deployment. It is on the node that runs the query's tasks; of a deployment over nodes, each
    node with slots has a part. The commands show, export, import and drop it as a whole, whichever of these nodes they ask.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("ls", examples="udo state ls\nudo state ls visits --json")
@click.argument("deployment", default="", shell_complete=completing.deployments)
@base.nodes_option
@base.json_option
def ls(deployment: str, address: str | None, as_json: bool) -> None:
    """List the sessions of DEPLOYMENT, or of all, on every node that can be asked from here, or on the one given.

    A session that no task uses is an orphan, unless its query is started again. Nodes that could not be asked are named.
    """
    from udo_cli.platform import usage
    from udo_cli.text import output

    replies, silent = usage.ask_all(address, lambda node: node.sessions(deployment))
    rows = [_row(reply.node, s) for _, reply in replies for s in reply.sessions]
    for line in silent:
        output.say(line)
    if as_json:
        output.emit(rows)
        return
    broken = [r for r in rows if r["broken"]]
    shown = [
        (
            r["deployment"],
            r["session"],
            r["node"],
            "in use" if r["in_use"] else "orphan",
            _number(r["last_epoch"]),
            r["planned_at"] or "unknown",
        )
        + (r["keys"], output.size(r["bytes"]), r["changed_at"])
        for r in rows
        if not r["broken"]
    ]
    columns = ("DEPLOYMENT", "SESSION", "NODE", "USE", "LAST EPOCH", "PLANNED", "KEYS", "SIZE", "CHANGED")
    output.table(columns, shown, f"no sessions: no keyed operator has ended an epoch on {', '.join(reply.node for _, reply in replies)}")
    for r in broken:
        click.echo(f"{r['deployment']}: its sessions cannot be read: {r['broken']}")


@command.command("show", examples="udo state show visits 1f2e --limit 100\nudo state show visits 1f2e --key '[\"a\", 7]'")
@click.argument("deployment", shell_complete=completing.deployments)
@click.argument("session")
@click.option("--key", help="Only this key; several columns as a JSON list.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of keys.")
@base.node_option
@base.json_option
def show(deployment: str, session: str, key: str | None, limit: int, address: str | None, as_json: bool) -> None:
    """Print the keys and values of a session, one JSON object per line.

    Each as the last epoch that its partition has completed left it: in the middle of a micro-batch some are an epoch ahead of others.
    State that has not been migrated yet after an update is shown as it is stored, with its `state_version`.
    """
    from itertools import islice

    from udo_cli import state_file
    from udo_cli.platform import remote, sessions
    from udo_cli.text import output, state_text

    found, _ = sessions.find(deployment, session, address)
    parts = remote.node(address).export_state(deployment, found.name)
    version = next(parts).header.state_version
    entries = list(islice(state_text.entries(state_file.ended_groups(parts, version, former=True), key), limit))
    parts.close()  # type: ignore[attr-defined]
    if key is not None and not entries:
        raise NotFound(f"session {found.name} of {deployment!r} has no key {key}; it has {found.keys} keys: udo state show {deployment}")
    if as_json:
        output.emit({"deployment": deployment, "session": found.name, "keys": found.keys, "entries": entries})
        return
    for entry in entries:
        click.echo(json.dumps(entry))
    if key is None and found.keys > len(entries):
        output.say(f"{len(entries)} of {found.keys} keys; more with --limit")


@command.command("export", examples="udo state export visits 1f2e visits.state")
@click.argument("deployment", shell_complete=completing.deployments)
@click.argument("session")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@base.node_option
@base.json_option
def export(deployment: str, session: str, file: Path, force: bool, address: str | None, as_json: bool) -> None:
    """Write the state of a session after its last epoch to FILE. Its query may continue meanwhile.

    In the middle of a micro-batch some partitions have completed it and others have not. Such a file is for the same query, which processes
    that micro-batch again. The command says so.
    """
    from udo_cli import state_file
    from udo_cli.platform import remote, sessions
    from udo_cli.text import output
    from udo_protocol.errors import Conflict

    if file.exists() and not force:
        raise Conflict(f"{file} exists; overwrite it with --force")
    found, _ = sessions.find(deployment, session, address)
    if found.last_ended is None:
        raise Conflict(f"session {found.name} of {deployment!r} holds nothing yet: none of its epochs has ended")
    parts = remote.node(address).export_state(deployment, found.name)
    header = next(parts).header
    summary = state_file.write(file, header, state_file.ended_groups(parts, header.state_version))
    if as_json:
        output.emit({"file": str(file), **summary.header, "keys": summary.keys, "bytes": summary.bytes, "groups_behind": summary.behind})
    else:
        epoch = summary.header["last_ended"]
        click.echo(f"{file}: {summary.keys} keys, {output.size(summary.bytes)}, session {found.name} up to epoch {epoch}")
    if summary.behind:
        output.say(f"{_behind(summary)}: the file is for the same query, which processes that epoch again, and not for --start-epoch")


@dataclass(frozen=True)
class ImportOptions:
    """How a query begins with the state, and the losses that are accepted."""

    start_epoch: int | None = option(
        type=click.IntRange(0), help="The first epoch of the query that will use it; by default the one after the export's."
    )
    replace: bool = option(is_flag=True, help="Replace a session of that name.")
    force: bool = option(is_flag=True, help="With --start-epoch: also a file that was written in the middle of a micro-batch.")


@command.command("import", examples="udo state import visits.state visits 9b1d\nudo state import visits.state visits 9b1d --start-epoch 0")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("deployment", shell_complete=completing.deployments)
@click.argument("session")
@grouped(ImportOptions, "wish")
@base.node_option
@base.json_option
def import_(file: Path, deployment: str, session: str, wish: ImportOptions, address: str | None, as_json: bool) -> None:
    """Import FILE as SESSION of DEPLOYMENT: the id of a streaming query, followed by .UID if the call has one.

    Refused while a query uses the session, if a session of that name exists (see --replace), and if the operator has other key
    columns or another state version.
    """
    from udo_cli import state_file
    from udo_cli.platform import remote
    from udo_cli.text import output

    summary, start_epoch = state_file.check(file), wish.start_epoch
    if summary.behind and start_epoch is not None and not wish.force:
        raise UsageError(
            f"{file}: {_behind(summary)}, and with --start-epoch it would not be processed again. Export the state when no micro-batch is "
            "under way; or use --force, if all partitions with events had completed it"
        )
    remote.node(address).import_state(state_file.parts(file, summary, deployment, session, start_epoch, wish.replace))
    next_epoch = summary.header["last_ended"] + 1 if start_epoch is None else start_epoch
    if as_json:
        output.emit({"deployment": deployment, "session": session, "keys": summary.keys, "bytes": summary.bytes, "next_epoch": next_epoch})
    else:
        click.echo(f"{deployment}: session {session} has {summary.keys} keys; its query continues with epoch {next_epoch}")


@command.command("drop", examples="udo state drop visits 1f2e\nudo state drop visits 1f2e --yes --json")
@click.argument("deployment", shell_complete=completing.deployments)
@click.argument("session")
@click.option("--force", is_flag=True, help="Also while a query uses it; the query then fails.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@base.node_option
@base.json_option
def drop(deployment: str, session: str, force: bool, yes: bool, address: str | None, as_json: bool) -> None:
    """Delete a session. Its query begins with empty state or, after its first epoch, fails with StateLost.

    Of a deployment over nodes on every node that has a part of it, or on the one given.
    """
    from udo_cli.platform import sessions
    from udo_cli.text import output

    found, silent = sessions.find(deployment, session, address)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"{found.keys} keys of session {found.name} would be deleted, and there is no terminal to confirm; use --yes")
        click.confirm(f"Delete the {found.keys} keys of session {found.name} of {deployment}?", abort=True, err=True)
    replies = [node.drop_state(deployment, found.name, force=force) for node in found.nodes]
    for line in silent:
        output.say(f"{line}. What it has of the session is given to no query; to remove it, repeat the command when it can be asked")
    dropped = {"keys": sum(r.keys for r in replies), "bytes": sum(r.bytes for r in replies)}
    if as_json:
        output.emit({"deployment": deployment, "dropped": found.name, **dropped})
    else:
        click.echo(f"{deployment}: session {found.name} dropped, {dropped['keys']} keys")


@command.command("release", examples="udo state release visits 1f2e\nudo state release visits 1f2e --force --json")
@click.argument("deployment", shell_complete=completing.deployments)
@click.argument("session")
@click.option("--force", is_flag=True, help="Also while that node is live: if it has lost its disk, or its state is no longer needed.")
@base.json_option
def release(deployment: str, session: str, force: bool, as_json: bool) -> None:
    """Release the home of a session (the node that has its state) after that node has been lost. Only the registry is asked.

    The next node on which the query runs, or on which the session is imported, becomes its home. State that the former home still
    has is no longer used.
    """
    from udo_cli.platform import remote, sessions
    from udo_cli.text import output

    with remote.registry() as api:
        found = sessions.only(deployment, session, [m["session"] for m in api.group_maps(deployment) if m["node"]], " with a home")
        former = next(", ".join(m["nodes"]) for m in api.group_maps(deployment) if m["session"] == found)
        api.release(deployment, found, force=force)
    if as_json:
        output.emit({"deployment": deployment, "released": found, "node": former})
    else:
        click.echo(f"{deployment}: session {found} released from node {former}")


def _behind(summary: Summary) -> str:
    header = summary.header
    return f"{summary.behind} of {header['key_groups']} key groups have not completed epoch {header['last_ended']}"


def _row(node: str, s: pb.StateSession) -> dict[str, Any]:
    return {
        "deployment": s.deployment,
        "session": s.session,
        "node": node,
        "slot": s.slot,
        "in_use": s.in_use,
        "lanes": s.lanes,
        "last_epoch": s.last_ended if s.HasField("last_ended") else None,
        "run": s.run,
        "planned_at": when(s.run / RUNS_OF_A_PLAN / 1000) if s.run >= RUNS_OF_A_PLAN else None,
        "keys": s.keys,
        "bytes": s.bytes,
        "changed_at": when(s.changed_at),
        "used_at": when(s.used_at) if s.used_at else None,
        "broken": s.broken or None,
    }


def _number(epoch: int | None) -> str:
    return "none" if epoch is None or epoch < 0 else str(epoch)
