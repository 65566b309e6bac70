"""`udo deploy`: make an operator version callable under a name."""

from __future__ import annotations

from typing import Any

import click

from udo_cli import base, completing, given
from udo_protocol.limits import KEY_GROUPS, MOST_KEY_GROUPS, MOST_SLOTS

EXAMPLES = """
udo deploy fraud                                   the latest version, under the operator's name
udo deploy fraud@2 --name fraud-trial
udo deploy fraud --env THRESHOLD=0.9 --file model.bin
API_KEY=... udo deploy fraud --secret API_KEY      the value is never an argument
udo deploy fraud --on-error dead-letter --retries 2
udo deploy fraud --slots 4                         four instances on each node
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
    help="How many instances serve it on each node, each with a queue of its own; of an operator without state. See: udo scale",
)
@click.option(
    "--wait-s",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    help="How long to wait until all live nodes answer; 0: not at all.",
)
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
            deployment, operator_name, version, env=variables, secrets=hidden, files=contents, slots=slots, policy=on_error, limits=limits
        )
        if wait_s:
            found = remote.await_answering(api, deployment, wait_s, output.say)
        notices = _notices(found, [n["node"] for n in api.nodes() if n["live"]])
    if as_json:
        output.emit({**found, "notices": notices})
        return
    for notice in notices:
        output.say(notice)
    click.echo(f"{deployment}: {found['operator']}@{found['version']} {output.short(found['digest'])}")


def _notices(found: dict[str, Any], live: list[str]) -> list[str]:
    """What a user should know about this deployment on these nodes."""
    if not found["manifest"].get("key") or len(live) < 2:
        return []
    return [
        f"{found['operator']} keeps state, and {len(live)} nodes are live ({', '.join(live)}): without store= a query's state lies on the "
        "node where it began, and its tasks on the others are refused. Call it with store= in a place that all nodes reach, or run the "
        "query's executors on one node; see docs/state.md, \"A session's home\""
    ]
