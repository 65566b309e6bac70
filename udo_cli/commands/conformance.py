"""`udo conformance`: play the engine for an SDK's conformance operator, case by case."""

from __future__ import annotations

import shutil
from contextlib import nullcontext

import click

from udo_cli import base
from udo_cli.exits import ExitCode

EXAMPLES = """
udo conformance bin/conformance
udo conformance java -jar build/conformance.jar
udo conformance --only timers --json -- python operator.py
udo conformance conformance@1                     that operator version in the registry, in the sandbox of a node
udo conformance conformance.tar                   ... in an oci-archive or OCI layout
udo conformance my-conformance:1                  a whole image of the local Docker daemon
"""


@base.command("conformance", EXAMPLES)
@click.option("--only", metavar="TEXT", default="", help="Only cases whose part or title contains this text; nothing is timed.")
@click.option("--timeout-s", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Longest wait for each reply.")
@base.json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def command(command: tuple[str, ...], only: str, timeout_s: float, as_json: bool) -> None:
    """Check that COMMAND, an SDK's conformance operator, keeps the operator protocol (docs/operator-protocol.md).

    Needs no platform. COMMAND is a program with its arguments, or one word that names an image: this is unpacked and started as on a node,
    in its sandbox; a whole image is run by the local Docker daemon. Prints a table of cases and the time of a frame; ends with 6 if a
    case failed.
    """
    from udo_cli.conformance import image, player, suite
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    as_image = len(command) == 1 and image.is_image(command[0])
    if not as_image and shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]} cannot be started: expected a program, by its path or on PATH, or an image: NAME@VERSION in the registry, an "
            "oci-archive, an OCI layout, or NAME:TAG in the local Docker daemon"
        )
    results = []
    with image.starting(command[0]) if as_image else nullcontext(player.starting(command)) as start:
        for result in suite.run(start, timeout_s, only):
            results.append(result)
            if not as_json:
                output.say(f"{'failed' if result.why else 'passed'}  {result.case.part}: {result.case.title}")
        if not results:
            raise UsageError(f"no case has {only!r} in its part or title")
        failed = [r for r in results if r.why]
        us = {} if only or failed else suite.frames(start, timeout_s)
    if as_json:
        cases = [
            {"part": r.case.part, "case": r.case.title, "passed": not r.why, "why": r.why, "took_ms": round(r.took_ms, 1)} for r in results
        ]
        output.emit(
            {"command": list(command), "passed": len(results) - len(failed), "failed": len(failed), "cases": cases, "us_per_frame": us}
        )
    else:
        rows = [[r.case.part, r.case.title, "failed" if r.why else "passed", f"{r.took_ms:.0f} ms", r.why] for r in results]
        output.table(["PART", "CASE", "", "TOOK", "WHY"], rows, "")
        for r in failed:
            if r.lines:
                click.echo(f"\n{r.case.part}: {r.case.title}: its process wrote last\n{r.lines}")
        output.table(["FRAME", "µs, MEDIAN"], [[name, f"{value:,.0f}"] for name, value in us.items()], "")
        click.echo(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    if failed:
        raise click.exceptions.Exit(ExitCode.OPERATOR)


command.allow_interspersed_args = False  # options after COMMAND are COMMAND's
