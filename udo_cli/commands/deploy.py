"""`udo deploy`: make an operator version callable under a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from udo_cli import base
from udo_cli.options import completing, controlling, given
from udo_cli.options.typed import grouped, option
from udo_protocol.errors import UsageError
from udo_protocol.limits import KEY_GROUPS, MOST_BACKOFF_US, MOST_KEY_GROUPS, MOST_REPLICAS, MOST_RETRIES, MOST_SLOTS
from udo_protocol.state.dead_letters import FAIL, POLICIES

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


@dataclass(frozen=True)
class DeploymentOptions(given.ConfigOptions):
    """Everything that a deployment is made with, except the controllers of its slots."""

    on_error: str = option(
        type=click.Choice(POLICIES),
        default=FAIL,
        show_default=True,
        help="What happens to events that it fails on: fail the query, or keep them as dead letters (udo dead).",
    )
    retries: int = option(
        type=click.IntRange(0, MOST_RETRIES),
        default=0,
        show_default=True,
        help="How often a batch that failed is retried before --on-error applies.",
    )
    dead_letters: int | None = option(
        type=click.IntRange(1), help="Dead letters kept per node; 10000 by default. Beyond it the query fails."
    )
    dead_letter_mb: int | None = option(type=click.IntRange(1), help="Dead letters kept per node, in MiB; 64 by default.")
    poll_us: int = option(
        type=click.IntRange(0, MOST_BACKOFF_US),
        default=0,
        show_default=True,
        help="Poll an empty queue after 20, 40 ... up to this many µs before sleeping: trades CPU time for latency.",
    )
    key_groups: int | None = option(
        type=click.IntRange(1, MOST_KEY_GROUPS),
        help=f"Number of key groups of a keyed operator, fixed while it is deployed; {KEY_GROUPS} by default.",
    )
    slots: int = option(
        type=click.IntRange(1, MOST_SLOTS),
        default=1,
        show_default=True,
        help="Number of instances on each node, each with its own queue. See: udo scale",
    )
    over_nodes: bool = option(
        is_flag=True, help="Spread --slots evenly over the live nodes that listen for other hosts, instead of so many on each node."
    )
    replicas: int = option(
        type=click.IntRange(0, MOST_REPLICAS),
        default=0,
        show_default=True,
        help="Keyed, with --over-nodes: copies of each slot's state on other nodes. An epoch is complete when all of them hold it, and a "
        "node that is lost is replaced by nodes that have copies.",
    )

    def limits(self) -> dict[str, float]:
        """The deployment's limits that are given. UsageError if options contradict each other."""
        if self.on_error == FAIL and (self.dead_letters or self.dead_letter_mb):
            raise UsageError("--dead-letters and --dead-letter-mb say how many dead letters are kept: they need --on-error dead-letter")
        limits = {
            "retries": self.retries,
            "dead_letters": self.dead_letters,
            "dead_letter_bytes": (self.dead_letter_mb or 0) << 20,
            "backoff_ceiling_us": self.poll_us,
            "key_groups": self.key_groups,
        }
        return {name: value for name, value in limits.items() if value}


@base.command("deploy", EXAMPLES)
@click.argument("operator", metavar="OPERATOR[@VERSION]", shell_complete=completing.operators)
@click.option("--name", help="The name by which queries call it; the operator's name by default.")
@grouped(DeploymentOptions, "wish")
@grouped(controlling.ControllerOptions, "controllers")
@base.wait_option("Seconds to wait until all live nodes answer, and slots have their replicas; 0: do not wait.")
@base.json_option
def command(
    operator: str,
    name: str | None,
    wish: DeploymentOptions,
    controllers: controlling.ControllerOptions,
    wait_s: float,
    as_json: bool,
) -> None:
    """Make OPERATOR callable as `udo(NAME)`; waits until it answers on every live node."""
    from udo_cli.platform import remote
    from udo_cli.text import output

    operator_name, version = remote.reference(operator)
    deployment = name or operator_name
    limits, elasticity, config = wish.limits(), controllers.wish(), wish.read()
    config.require_once()
    with remote.registry() as api:
        found = api.deploy(
            deployment,
            operator_name,
            version,
            env=config.env,
            secrets=config.secrets,
            files=config.files,
            slots=wish.slots,
            over_nodes=wish.over_nodes,
            policy=wish.on_error,
            limits=limits,
            elasticity=elasticity,
            replicas=wish.replicas,
        )
        if wait_s:
            found = remote.await_answering(api, deployment, wait_s, output.say)
            if wish.replicas:
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
