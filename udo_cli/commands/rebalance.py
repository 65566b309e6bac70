"""`udo rebalance`: move key groups of a deployment by a plan, in rounds, while queries run."""

from __future__ import annotations

from pathlib import Path

import click

from udo_cli import base
from udo_cli.options import completing

EXAMPLES = """
udo inspect visits                            which slot has which key groups
udo rebalance visits --plan plan.json         plan.json: {"0-31": 1000, "40": 0}, key groups -> slot
udo rebalance visits --plan plan.json --moves-under-way 4 --json
"""


@base.command("rebalance", EXAMPLES)
@click.argument("name", shell_complete=completing.deployments)
@click.option(
    "--plan",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help='JSON: key groups -> number of the slot they are to be in, over nodes "NODE:NUMBER". Others stay where they are.',
)
@click.option(
    "--moves-under-way",
    "under_way",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="How many key groups move together (a round). Fewer make shorter pauses, but more of them.",
)
@click.option(
    "--strategy",
    type=click.Choice(["cpal", "direct"]),
    help="How each move is made, see: udo move --help",
)
@base.wait_option("How long to wait for each move; the node finishes it.")
@base.node_option
@base.json_option
def command(name: str, path: Path, under_way: int, strategy: str | None, wait_s: float, address: str | None, as_json: bool) -> None:
    """Move key groups of deployment NAME, which keeps state, to the slots that a plan names, on this node or over nodes.

    The plan runs in rounds. Ctrl-C ends it after the move under way, which the node finishes: each key group is in one slot, and the
    same command again goes on with the rest. The whole plan is checked before the first move.
    """
    from udo_cli.platform import plans, remote
    from udo_cli.text import output
    from udo_protocol import ranges

    plan, node = plans.read(path), remote.node(address)
    planned = plans.rounds(plan, plans.where(node, name, plan), under_way)
    there = len(plan) - sum(len(step.groups) for steps in planned for step in steps)
    done: list[plans.StepDone] = []
    try:
        for last in plans.carry_out(node, name, planned, strategy or "", wait_s, there):
            done.append(last)
            if not as_json:
                moved = f"key groups {ranges.shown(last.step.groups)} to slot {last.step.to}"
                output.say(f"round {last.round} of {last.rounds}: {last.ms:8.1f} ms  {moved}; {last.moved} of {last.total} are in place")
    except KeyboardInterrupt:
        moved_so_far = done[-1].moved if done else there
        output.say(
            f"stopped: {moved_so_far} of {len(plan)} key groups are in place. The node finishes the move under way; the same command "
            "again goes on with the rest"
        )
        raise
    if as_json:
        steps = [{"round": d.round, "groups": list(d.step.groups), "to": d.step.to, "ms": round(d.ms, 1)} for d in done]
        output.emit({"deployment": name, "groups": len(plan), "moved": len(plan) - there, "rounds": len(planned), "moves": steps})
    elif not planned:
        output.say(f"all {len(plan)} key groups of the plan are in place")
