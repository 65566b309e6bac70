"""`udo dead`: dead letters, events that an operator failed on: list, show, send again, drop."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from udo_cli import base
from udo_cli.options import completing
from udo_cli.text.times import when

if TYPE_CHECKING:
    import pyarrow as pa

    from udo_protocol.node.api import NodeClient
    from udo_protocol.proto import node_manager_pb2 as pb

EXAMPLES = """
udo dead ls                                    dead letters of every deployment, on all nodes
udo dead show 3f0c                             reason, traceback and event; a prefix of an id is enough
udo dead replay fraud --all                    after `udo update fraud 2`; removes those that are answered
udo dead replay fraud 3f0c 81aa -o answers.parquet
udo dead drop fraud 3f0c
"""


@base.group("dead", EXAMPLES)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Inspect events that an operator failed on, send them again, or drop them.

    They are kept if the deployment was made with --on-error dead-letter, on the node that ran the query's tasks.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("ls", examples="udo dead ls\nudo dead ls fraud --json\nudo dead ls fraud --unfinished")
@click.argument("deployment", default="", shell_complete=completing.deployments)
@click.option("--unfinished", is_flag=True, help="Instead, list dead letters of attempts that have not ended; they may still be removed.")
@base.nodes_option
@base.json_option
def ls(deployment: str, unfinished: bool, address: str | None, as_json: bool) -> None:
    """List the dead letters of DEPLOYMENT, or of all, oldest first, on every node that can be asked from here, or on the one given.

    Nodes that could not be asked are named.
    """
    from udo_cli.text import output

    found = [letter for _, letter in _letters(address, deployment, unfinished=unfinished)]
    if as_json:
        output.emit([_row(d) for d in found])
        return
    shown = [
        (
            d.id,
            d.deployment,
            d.node,
            d.operator,
            when(d.at),
            _where(d),
            output.size(d.bytes),
            f"({d.replay}) {d.reason}"[:200] if d.replay else d.reason[:200],
        )
        for d in found
    ]
    output.table(("ID", "DEPLOYMENT", "NODE", "OPERATOR", "AT", "FROM", "SIZE", "REASON"), shown, "no dead letters")


@command.command("show", examples="udo dead show 3f0c\nudo dead show 3f0c --json")
@click.argument("id_", metavar="ID")
@base.nodes_option
@base.json_option
def show(id_: str, address: str | None, as_json: bool) -> None:
    """Print one dead letter in full. With --json also the event as an Arrow IPC stream, in base64."""
    from udo_cli.text import output

    ((_, found),) = _chosen(address, "", (id_,), whole=True)
    if as_json:
        arrow = base64.b64encode(found.arrow).decode()
        output.emit({**_row(found), "traceback": found.traceback, "event": _event(found), "arrow": arrow})
        return
    click.echo(f"{found.id}  {found.operator}, deployment {found.deployment} on node {found.node}, {_where(found)}, {when(found.at)}")
    click.echo(f"{found.reason}" + (f" (sent again {found.replays} times)" if found.replays else ""))
    click.echo(f"{'timer' if found.timer else 'event'}: {found.event or '(cannot be shown; see --json)'}")
    if found.traceback:
        click.echo(found.traceback)


@command.command("replay", examples="udo dead replay fraud --all\nudo dead replay fraud 3f0c 81aa -o answers.parquet")
@click.argument("deployment", shell_complete=completing.deployments)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All dead letters of the deployment, oldest first.")
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the answers to FILE: .parquet or .json."
)
@base.nodes_option
@base.json_option
def replay(deployment: str, ids: tuple[str, ...], everything: bool, file: Path | None, address: str | None, as_json: bool) -> None:
    """Send dead letters to DEPLOYMENT again. Those that are answered are removed; those that fail again are kept, with the new reason.

    The answers are printed, one JSON object per line, or written to FILE; they do not reach the query. The exit code is 6 if some
    failed again.

    Dead letters of a keyed operator are processed with the next micro-batch of their query instead, after its events, and their
    answers go to the query.
    """
    from udo_cli.exits import ExitCode
    from udo_cli.platform import remote
    from udo_cli.replay import ReplayLane
    from udo_cli.settings import CliSettings
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    if everything == bool(ids):
        raise UsageError("pass the ids of the dead letters to replay, or --all")
    if file is not None and file.suffix not in (".parquet", ".json"):
        raise UsageError(f"-o {file}: expected a name that ends with .parquet or .json")
    letters = _chosen(address, deployment, ids, whole=True)
    if any(d.keyed for _, d in letters):
        if file is not None:
            raise UsageError(f"{deployment} keeps state: its answers go to the query, not to {file}")
        replies = [node.replay_dead_letters(deployment, some if ids else (), everything=everything) for node, some in _by_node(letters)]
        waiting, timers = sum(reply.waiting for reply in replies), sum(reply.timers for reply in replies)
        if as_json:
            output.emit({"deployment": deployment, "waiting": waiting, "timers": timers})
            return
        click.echo(f"{deployment}: {waiting} dead letters wait for the next micro-batch of their query")
        if timers:
            output.say(f"{timers} timers cannot be sent again")
        return
    answered: list[tuple[NodeClient, pb.DeadLetter, pa.RecordBatch]] = []
    failed: list[pb.DeadLetter] = []
    with ReplayLane(remote.node(None if remote.is_name(address) else address), deployment, CliSettings().certificates()) as again:
        for node, letter in letters:
            outcome = again.send(letter)
            if outcome.failure is None:
                answered.append((node, letter, outcome.answers))
                continue
            f = outcome.failure
            failed.append(letter)
            node.amend_dead_letter(deployment, letter.id, f.code, f.message, f.traceback)
            output.say(f"{letter.id}: {f.message}")
    _deliver([(letter, answers) for _, letter, answers in answered], file, as_json)
    # Dropped only after the answers have been written, so that no letter is lost if writing fails.
    for node, some in _by_node([(node, letter) for node, letter, _ in answered]):
        node.drop_dead_letters(deployment, some)
    output.say(f"{deployment}: {len(answered)} answered, {len(failed)} failed again")
    if failed:
        raise SystemExit(ExitCode.OPERATOR)


@command.command("drop", examples="udo dead drop fraud 3f0c 81aa\nudo dead drop fraud --all --yes")
@click.argument("deployment", shell_complete=completing.deployments)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All dead letters of the deployment.")
@click.option("--unfinished", is_flag=True, help="Instead, drop dead letters of attempts that have not ended.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@base.nodes_option
@base.json_option
def drop(deployment: str, ids: tuple[str, ...], everything: bool, unfinished: bool, yes: bool, address: str | None, as_json: bool) -> None:
    """Delete dead letters of DEPLOYMENT."""
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    if everything == bool(ids):
        raise UsageError("pass the ids of the dead letters to drop, or --all")
    letters = _chosen(address, deployment, ids, unfinished=unfinished)
    if everything and not yes:
        there = len(letters)
        if not sys.stdin.isatty():
            raise UsageError(f"{there} dead letters of {deployment} would be deleted, and there is no terminal to confirm; use --yes")
        click.confirm(f"Delete the {there} dead letters of {deployment}?", abort=True, err=True)
    unseen = everything and yes  # else only those that were listed or counted: more may come while a question is open
    dropped = sum(
        node.drop_dead_letters(deployment, () if unseen else some, everything=unseen, unfinished=unfinished)
        for node, some in _by_node(letters)
    )
    if as_json:
        output.emit({"deployment": deployment, "dropped": dropped})
    else:
        click.echo(f"{deployment}: {dropped} dead letters dropped")


def _letters(address: str | None, deployment: str, ids: tuple[str, ...] = (), **what: bool) -> list[tuple[NodeClient, pb.DeadLetter]]:
    """Dead letters with their nodes, oldest first. Names the nodes that were not asked. `what`: see NodeClient.dead_letters."""
    from udo_cli.platform import usage
    from udo_cli.text import output

    replies, silent = usage.ask_all(address, lambda node: list(node.dead_letters(deployment, ids, **what)))
    for line in silent:
        output.say(line)
    return sorted(((node, letter) for node, some in replies for letter in some), key=lambda found: _order(found[1]))


def _chosen(address: str | None, deployment: str, ids: tuple[str, ...], **what: bool) -> list[tuple[NodeClient, pb.DeadLetter]]:
    """The dead letters with these id prefixes, each of which must name exactly one; without ids all of them; oldest first."""
    from udo_protocol.errors import NotFound, UsageError

    found = _letters(address, deployment, ids, **what)
    for text in ids:
        near = [d.id for _, d in found if d.id.startswith(text)]
        if not near:
            raise NotFound(f"no dead letter {text!r}{f' of {deployment}' if deployment else ''}. List them with: udo dead ls")
        if len(near) > 1:
            raise UsageError(f"ambiguous id prefix {text!r}: {', '.join(near[:5])}")
    return found


def _by_node(letters: list[tuple[NodeClient, pb.DeadLetter]]) -> list[tuple[NodeClient, list[str]]]:
    """The ids of each node's letters."""
    found: dict[NodeClient, list[str]] = {}
    for node, letter in letters:
        found.setdefault(node, []).append(letter.id)
    return list(found.items())


def _deliver(answered: list[tuple[pb.DeadLetter, pa.RecordBatch]], file: Path | None, as_json: bool) -> None:
    from udo_cli.text import output

    if file is not None and file.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parts = [answers for _, answers in answered if answers.num_rows]
        parquet.write_table(pa.Table.from_batches(parts) if parts else pa.table({}), file)
        return
    rows = [{"id": letter.id, "answers": answers.to_pylist()} for letter, answers in answered]
    if file is not None:
        file.write_text("".join(json.dumps(answer, default=str) + "\n" for r in rows for answer in r["answers"]), "utf-8")
    elif as_json:
        output.emit(rows)
    else:
        for r in rows:
            for answer in r["answers"]:
                click.echo(json.dumps(answer, default=str))


def _order(d: pb.DeadLetter) -> tuple[Any, ...]:
    return d.deployment, d.at, d.lane, d.number, d.row


def _where(d: pb.DeadLetter) -> str:
    place = f"frame {d.number} of {d.lane}, {'timer' if d.timer else 'row'} {d.row}"
    return f"epoch {d.epoch}, partition {d.partition}, {place}" if d.keyed else place


def _event(d: pb.DeadLetter) -> Any:
    return json.loads(d.event) if d.event else None


def _row(d: pb.DeadLetter) -> dict[str, Any]:
    hidden = ("traceback", "event", "arrow", "at")
    return {f.name: getattr(d, f.name) for f in d.DESCRIPTOR.fields if f.name not in hidden} | {"at": when(d.at)}
