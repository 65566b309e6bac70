"""The `udo` command: a table of its commands. The module of a command is imported only when that command runs.

Only click is imported here, so that `udo --help` answers within 0.3 s.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from udo_cli.base import ReportingGroup
from udo_cli.exits import MEANING, ExitCode

# name -> (module, its line in the list of commands)
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo", "Run the platform on a stream of card transactions and update an operator live."),
    "up": ("up", "Start a registry and a node manager here, in the background."),
    "down": ("down", "Stop what `udo up` started."),
    "init": ("init", "Create an operator from a template."),
    "test": ("test", "Run an operator on sample events, without Spark."),
    "dev": ("dev", "Watch an operator's folder: test every save and let it answer here."),
    "conformance": ("conformance", "Check that an SDK implements the operator protocol."),
    "push": ("push", "Check, package and upload an operator version."),
    "deploy": ("deploy", "Make an operator version callable under a name."),
    "update": ("update", "Replace a deployment's version while queries run."),
    "prepare": ("prepare", "Prepare a scale-out of a deployment that keeps state."),
    "move": ("move", "Move key groups of a deployment to another of its slots."),
    "rebalance": ("rebalance", "Move key groups of a deployment by a plan, in rounds."),
    "scale": ("scale", "Give a deployment more or fewer slots, or replicas."),
    "rollback": ("rollback", "Go back to a former version while queries run."),
    "undeploy": ("undeploy", "Remove a deployment."),
    "ls": ("ls", "List operators or deployments."),
    "inspect": ("inspect", "Show one operator, version or deployment in full."),
    "console": ("console", "Say where the registry's pages for a browser are."),
    "status": ("status", "Show the registry, the nodes and their slots."),
    "logs": ("logs", "Show an operator's log."),
    "state": ("state", "List, show, export, import and drop keyed state."),
    "record": ("record", "Record a deployment's input, to replay it locally."),
    "dead": ("dead", "List, show, send again and drop events that operators failed on."),
    "explain": ("explain", "Say whether a deployment is a bottleneck, by which rules and figures."),
    "events": ("events", "Show what was decided about deployments' slots, and why."),
    "app": ("app", "Name deployments together as an application, with an SLA."),
    "usage": ("usage", "Show what deployments have used: events, bytes, processor time, state."),
    "top": ("top", "Watch rates, depths and latencies live."),
    "node": ("node", "Run a node manager in the foreground; list nodes."),
    "registry": ("registry", "Run a registry in the foreground; read its audit trail."),
    "certs": ("certs", "Make certificates for development, for several hosts."),
    "completion": ("completion", "Print the completion script of a shell."),
}

EXAMPLES = """
udo demo                                  see everything at work in about a minute
udo up && udo init fraud                  a platform and the skeleton of an operator
udo test fraud --events fraud/events.json
udo push fraud && udo deploy fraud        then, in Spark: udo("fraud")(df)
udo update fraud 2                        replace it while the query runs
"""


class _Lazy(ReportingGroup):
    """Looks commands up in the table instead of importing them all."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"udo_cli.commands.{COMMANDS[cmd_name][0]}")
        found: click.Command = module.command
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=3)
            hint = f" Did you mean: {', '.join(near)}?" if near else " See: udo --help"
            raise click.UsageError(f"no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), text) for code, text in MEANING.items()])


@click.group("udo", cls=_Lazy, examples=EXAMPLES, context_settings={"max_content_width": 110})
@click.version_option(package_name="udo-spark", prog_name="udo")
def cli() -> None:
    """Operator as a service for Spark: write an operator once, call it from Spark by name, replace it while the query runs."""


def main() -> None:
    """Entry point of the `udo` script."""
    try:
        cli.main(prog_name="udo")
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None
