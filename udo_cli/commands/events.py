"""`udo events`: the decisions of a node's controllers, or of an application's manager, about slots, with reasons and outcomes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from udo_cli import base
from udo_cli.options import completing

if TYPE_CHECKING:
    from udo_protocol.proto import node_manager_pb2 as pb

EXAMPLES = """
udo events                       the latest decisions about all deployments of this node
udo events fraud --last 200
udo events fraud --all --json    also decisions to change nothing, with their figures
udo events fraud --replay        decides everything again, and says whether it comes out the same
udo events taxi                  of an application: what its manager has granted and declined
"""
COLUMNS = ("AT", "DEPLOYMENT", "DECISION", "RESULT", "WHY")
Json = dict[str, Any]


@base.command("events", EXAMPLES)
@click.argument("deployment", default="", shell_complete=completing.deployments)
@click.option(
    "--last", type=click.IntRange(0), default=50, show_default=True, help="Number of latest events to show; 0: all that are kept."
)
@click.option("--all", "everything", is_flag=True, help="Also decisions in which no step was proposed.")
@click.option("--replay", is_flag=True, help="Decide again on the recorded figures; exits with 9 if a decision comes out differently.")
@base.node_option
@base.json_option
@click.pass_context
def command(ctx: click.Context, deployment: str, last: int, everything: bool, replay: bool, address: str | None, as_json: bool) -> None:
    """Show the decisions about the slots of DEPLOYMENT, or of all, on this node, from its journal; of an application those of its manager.

    In mode advise they were only recorded. A journal holds every figure that a decision went by. See docs/elasticity.md.
    """
    from elasticity.scaling.journal_rows import rows_of
    from udo_cli.exits import ExitCode
    from udo_cli.platform import remote
    from udo_cli.text import output, replays
    from udo_protocol.errors import NotFound

    try:
        told = list(remote.node(address).decisions(deployment))
    except NotFound:
        if (segments := _of_application(deployment)) is None:
            raise
        _show_application(ctx, deployment, segments, last, everything, replay, as_json)
        return
    if replay:
        found = replayed(told)
        if as_json:
            output.emit(found)
        else:
            click.echo(replays.replay_text(found, "deployment", _granted))
        if not found["same"]:
            ctx.exit(ExitCode.DIFFERENT)
        return
    rows = sorted(rows_of(told, everything), key=lambda row: row["at_s"])
    rows = rows[-last:] if last else rows
    if as_json:
        output.emit(rows)
    else:
        output.table(COLUMNS, map(_shown, rows), "no decisions yet")


def _of_application(name: str) -> list[Json] | None:
    """The journal of the application with that name, from the registry; None if there is no such application, or the registry is away."""
    from udo_cli.platform import remote
    from udo_protocol.errors import NotFound, Unavailable

    with contextlib.suppress(NotFound, Unavailable), remote.registry() as api:
        return api.application_journal(name)
    return None


def _show_application(
    ctx: click.Context, name: str, segments: list[Json], last: int, everything: bool, replay: bool, as_json: bool
) -> None:
    from elasticity.scaling.journal_rows import rows_of_application
    from udo_cli.exits import ExitCode
    from udo_cli.text import application_events, output, replays

    if replay:
        found = application_events.replayed_application(name, segments)
        output.emit(found) if as_json else click.echo(replays.replay_text(found, "application", application_events.granted))
        if not found["same"]:
            ctx.exit(ExitCode.DIFFERENT)
        return
    rows = list(rows_of_application(name, segments, everything))
    rows = rows[-last:] if last else rows
    if as_json:
        output.emit(rows)
    else:
        output.table(application_events.COLUMNS, map(application_events.shown, rows), "nothing was proposed yet")


def _shown(row: Json) -> tuple[str, ...]:
    from elasticity.scaling.journal_rows import result_of, step_of

    return row["at"], row["deployment"], step_of(row), result_of(row), row["why"]


def replayed(told: Iterable[pb.DecisionLines]) -> Json:
    """Replay all segments: {decisions, segments, same, differing: [{deployment, segment, number, recorded, now}]}."""
    from dataclasses import asdict

    from elasticity.scaling import journal

    decisions, segments, differing = 0, 0, list[Json]()
    for segment in told:
        header, entries = journal.read(segment.lines)
        decisions, segments = decisions + len(entries), segments + 1
        for entry, again in journal.replay(header, entries):
            where = {"deployment": segment.deployment, "segment": segment.segment, "number": entry.number}
            differing.append({**where, "recorded": asdict(entry.decision), "now": asdict(again)})
    return {"decisions": decisions, "segments": segments, "same": not differing, "differing": differing}


def _granted(decision: Json) -> str:
    return ", ".join(_told(p) for p in decision["granted"]) or "nothing"


def _told(plan: Json) -> str:
    if plan["kind"] == "balance":
        return "balance by " + ", ".join(f"{group} to slot {to}" for group, to in plan["groups"])
    return f"{plan['kind']} to {plan['replicas']}"
