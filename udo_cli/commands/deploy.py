"""`udo deploy`: make an operator version callable under a name."""

from __future__ import annotations

from typing import Any

import click

from udo_cli import base, completing, controlling, given
from udo_protocol.limits import KEY_GROUPS, MOST_KEY_GROUPS, MOST_REPLICAS, MOST_SLOTS

EXAMPLES = """
udo deploy fraud                                   the latest version, under the operator's name
udo deploy fraud@2 --name fraud-trial
udo deploy fraud --env THRESHOLD=0.9 --file model.bin
API_KEY=... udo deploy fraud --secret API_KEY      the value is never an argument
udo deploy fraud --on-error dead-letter --retries 2
udo deploy fraud --slots 4                         four instances on each node
udo deploy fraud --mode auto --most 6               one to six, as its load asks for (udo events)
udo deploy fraud --mode auto --idle-after 600       none while nobody calls it for ten minutes
udo deploy fraud --slots 6 --over-nodes            six in total, spread over the nodes
udo deploy visits --slots 6 --over-nodes --replicas 1    each with a copy of its state on another node
"""


@base.command("deploy", EXAMPLES)
@click.argument("operator", metavar="OPERATOR[@VERSION]", shell_complete=completing.operators)
@click.option("--name", help="The name by which queries call it; the operator's name by default.")
@given.options
@given.policy_options
@given.polling_option
@click.option(
    "--key-groups",
    type=click.IntRange(1, MOST_KEY_GROUPS),
    help=f"Number of key groups of a keyed operator, fixed while it is deployed; {KEY_GROUPS} by default.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, MOST_SLOTS),
    default=1,
    show_default=True,
    help="Number of instances on each node, each with its own queue. See: udo scale",
)
@click.option(
    "--over-nodes",
    is_flag=True,
    help="Spread --slots evenly over the live nodes that listen for other hosts, instead of so many on each node.",
)
@click.option(
    "--replicas",
    type=click.IntRange(0, MOST_REPLICAS),
    default=0,
    show_default=True,
    help="Keyed, with --over-nodes: copies of each slot's state on other nodes. An epoch is complete when all of them hold it, and a node "
    "that is lost is replaced by nodes that have copies.",
)
@controlling.options
@base.wait_option("Seconds to wait until all live nodes answer, and slots have their replicas; 0: do not wait.")
@base.json_option
def command(
    operator: str,
    name: str | None,
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    files: tuple[str, ...],
    on_error: str,
    retries: int,
    dead_letters: int | None,
    dead_letter_mb: int | None,
    poll_us: int,
    key_groups: int | None,
    slots: int,
    over_nodes: bool,
    replicas: int,
    elasticity: dict[str, Any],
    wait_s: float,
    as_json: bool,
) -> None:
    """Make OPERATOR callable as `udo(NAME)`; waits until it answers on every live node."""
    from udo_cli import output, remote

    operator_name, version = remote.reference(operator)
    deployment = name or operator_name
    variables, contents = given.environment(env), given.file_contents(files)
    hidden = given.secret_values(secrets)
    limits = given.policy_limits(on_error, retries, dead_letters, dead_letter_mb)
    if poll_us:
        limits["backoff_ceiling_us"] = poll_us
    if key_groups:
        limits["key_groups"] = key_groups
    given.require_once(variables, hidden)
    with remote.registry() as api:
        found = api.deploy(
            deployment,
            operator_name,
            version,
            env=variables,
            secrets=hidden,
            files=contents,
            slots=slots,
            over_nodes=over_nodes,
            policy=on_error,
            limits=limits,
            elasticity=elasticity,
            replicas=replicas,
        )
        if wait_s:
            found = remote.await_answering(api, deployment, wait_s, output.say)
            if replicas:
                found = remote.await_replicas(api, deployment, wait_s, output.say)
        notices = _notices(found, [n["node"] for n in api.nodes() if n["live"]])
    if as_json:
        output.emit({**found, "notices": notices})
        return
    for notice in notices:
        output.say(notice)
    click.echo(f"{deployment}: {found['operator']}@{found['version']} {output.short(found['digest'])}")


def _notices(found: dict[str, Any], live: list[str]) -> list[str]:
    """Notices for the user about this deployment on these nodes."""
    if not found["manifest"].get("key") or len(live) < 2 or found["placement"]:
        return []
    return [
        f"{found['operator']} keeps state, and {len(live)} nodes are live ({', '.join(live)}): without store= a query's state is on the "
        "node where it began, and its tasks on the others are refused. Call it with store= in a location that all nodes reach, or run the "
        "query's executors on one node; see docs/state.md, \"A session's home\""
    ]
