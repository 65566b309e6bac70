"""`udo update`: replace a deployment's version while queries run, at once or after a canary; or only compare (--diff)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from udo_cli import base
from udo_cli.exits import ExitCode
from udo_cli.options import completing, given, trial
from udo_cli.options.typed import grouped

EXAMPLES = """
udo update fraud 2
udo update fraud latest
udo update fraud sha256:1f0c... --json
udo update fraud --env THRESHOLD=0.9 --file model.bin     the same version, with a different threshold and model
udo update fraud 2 --secret API_KEY --unset THRESHOLD
udo update fraud 2 --diff --for 60s -o differences.jsonl
udo update fraud 2 --canary 10% --for 60s --rollback-if 'errors>0' --rollback-if 'p99_ms>5'
udo update fraud --promote                                do not wait for the end of its canary
"""
_EXAMPLES_KEPT = 1000


@base.command("update", EXAMPLES)
@click.argument("name", shell_complete=completing.deployments)
@click.argument("version", metavar="[VERSION]", required=False, shell_complete=completing.versions)
@grouped(given.ConfigOptions, "config")
@click.option("--unset", multiple=True, metavar="NAME", help="Remove a variable, secret or file of the deployment.")
@base.wait_option("Seconds that the new version may take to become ready.", least=1)
@grouped(trial.TrialOptions, "wish")
@base.json_option
def command(
    name: str,
    version: str | None,
    config: given.ConfigOptions,
    unset: tuple[str, ...],
    wait_s: float,
    wish: trial.TrialOptions,
    as_json: bool,
) -> None:
    """Let VERSION answer for deployment NAME: no event is lost, doubled or reordered.

    The update is refused before anything starts (exit code 4) if the schemas of VERSION do not fit running queries, or if it
    neither reads nor migrates their state; and if no node is live. If VERSION does not become ready, or its migrate() raises, the
    old version continues. A node that is away is named, and updated when it returns. Progress goes to stderr.

    Variables, secrets and files of the deployment stay as they are, except those named by --env, --secret, --file and --unset.
    Without VERSION only these change: the same version is loaded with the new values and takes over in the same way.

    With --canary it serves a share of the new lanes first. The canary of a keyed operator answers no query: it follows the state
    of a share of the key groups and processes their events for comparison. The registry promotes VERSION when the time is over,
    or rolls it back as soon as a condition holds (exit code 8), even if this command has ended; `udo rollback NAME` ends it by
    hand, and `udo update NAME --promote` promotes VERSION at once, whatever it has counted so far.

    With --diff it answers no query: its answers are compared with those of the serving version. The exit code is 9 if they
    differ, 10 if nothing could be compared.
    """
    wish.require_consistent()
    changes = bool(config or unset)
    if wish.promote and (version is not None or changes or wish.canary is not None or wish.diff):
        raise click.UsageError("--promote ends the canary that is under way: give neither a VERSION nor anything to change with it")
    if version is None and not (changes or wish.promote):
        raise click.UsageError("nothing to change: give the VERSION to go to, or --env, --secret, --file or --unset")
    if wish.diff:
        if version is None or changes:
            raise click.UsageError("--diff compares a VERSION with the serving one under the deployment's own variables, secrets and files")
        _compare(name, version, wish.for_s or 60.0, wish.out, as_json)
        return
    from udo_cli.platform import remote
    from udo_cli.text import output

    read = config.read()
    read.require_once()
    change: dict[str, dict[str, Any]] = {"env": {**read.env}, "secrets": {**read.secrets}, "files": {**read.files}}
    with remote.registry() as api:
        serving = api.deployment(name)
        _remove(change, serving, unset)
        changed = change if any(change.values()) else None
        events = api.promote(name) if wish.promote else api.update(name, version or serving["digest"], wait_s, wish.canary_wish(), changed)
        done = remote.follow(events, output.say)
        found = api.deployment(name)
        on, missed = remote.reached(api, done["id"])
    rolled_back = done["phase"] == "rolled_back"
    if as_json:
        told = {"name": name, "version": found["version"], "digest": found["digest"], "took_ms": done["at_ms"], "id": done["id"]}
        told |= {"nodes": on, "missed": missed}
        output.emit(told | ({"outcome": done["phase"], "detail": done["detail"]} if wish.canary is not None else {}))
    elif rolled_back:
        click.echo(f"{name}: rolled back after {done['at_ms']:.0f} ms: {done['detail']}")
    else:
        click.echo(f"{name}: {found['operator']}@{found['version']} answers after {done['at_ms']:.0f} ms{remote.where(on, missed)}")
    if rolled_back:
        click.get_current_context().exit(ExitCode.ROLLED_BACK)


def _remove(change: dict[str, dict[str, Any]], serving: dict[str, Any], unset: tuple[str, ...]) -> None:
    """Add the removal of the variables, secrets and files in `unset` to `change`."""
    from udo_protocol.errors import NotFound

    for name in unset:
        kinds = [kind for kind in change if name in serving[kind]]
        if not kinds:
            there = ", ".join(sorted({n for kind in change for n in serving[kind]})) or "none"
            raise NotFound(f"--unset {name}: {serving['name']} has no such variable, secret or file; there are: {there}")
        for kind in kinds:
            if name in change[kind]:
                raise click.UsageError(f"{name} is both set and removed (--unset)")
            change[kind][name] = None


def _compare(name: str, version: str, for_s: float, out: Path | None, as_json: bool) -> None:
    from contextlib import closing

    from udo_cli.platform import remote
    from udo_cli.text import output
    from udo_protocol.diff_report import DiffReport
    from udo_protocol.errors import UdoError
    from udo_protocol.node import diff_reports

    with remote.registry() as api:
        operator = api.deployment(name)["operator"]
        digest = api.version(operator, version)["digest"]
    report = DiffReport()
    examples: list[dict[str, Any]] = []
    last, interrupted = "", False
    try:
        with closing(remote.node().diff(name, "", digest, for_s=for_s, examples=_EXAMPLES_KEPT)) as events:  # type: ignore[type-var]
            for event in events:
                report = diff_reports.parse(event.report_json)
                examples += map(json.loads, event.examples_json)
                if (line := trial.progress(report)) != last and not report.final:
                    output.say(last := line)
    except KeyboardInterrupt:
        interrupted = True
        output.say("interrupted: the diff has ended; so far:")
    except UdoError:
        if out is not None and examples:
            trial.write(out, examples)
        raise
    if out is not None:
        trial.write(out, examples)
    if as_json:
        output.emit({"name": name, **report.document(), "differences": examples})
    elif report.version:
        trial.show(name, report, examples)
    click.get_current_context().exit(ExitCode.INTERRUPTED if interrupted else trial.EXITS[report.outcome])
