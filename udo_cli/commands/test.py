"""`udo test`: run an operator on sample events, without Spark, registry or node."""

from __future__ import annotations

import json
from pathlib import Path

import click

from udo_cli import base, given

EXAMPLES = """
udo test fraud --events fraud/events.json
udo test fraud --events sample.parquet --batch-rows 10000 --json
MODEL_KEY=... udo test fraud --events sample.csv --secret MODEL_KEY --file model.bin
"""


@base.command("test", EXAMPLES)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--events", type=click.Path(path_type=Path, dir_okay=False), help="JSON, CSV or parquet; events.json in DIRECTORY by default."
)
@click.option("--batch-rows", type=click.IntRange(1), default=10_000, show_default=True, help="Events given to the operator at a time.")
@given.options
@base.json_option
def command(
    directory: Path,
    events: Path | None,
    batch_rows: int,
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    files: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the operator in DIRECTORY on sample events and print its answers, one JSON object a line.

    Input and output are checked against operator.toml. On failure: the operator's traceback and the offending event.
    """
    from udo_cli import events as samples
    from udo_cli import output
    from udo_cli.packing import build, isolated
    from udo_cli.settings import Settings

    values = given.environment(env) | given.secret_values(secrets)
    contents = given.file_contents(files)
    target = build.Target.of(None, None)
    manifest = build.load_manifest(directory, None, target)
    batches = samples.read(events or directory / "events.json", manifest.input_schema, batch_rows)
    _, dependencies = build.unpacked_dependencies(manifest, target, directory, Settings().local.dependencies, output.say)
    trial = isolated.answer(manifest, directory.absolute(), dependencies, batches, values, contents)
    answers = trial.answers.to_pylist()
    count = sum(b.num_rows for b in batches)
    if as_json:
        output.emit({"operator": manifest.reference, "events": count, "took_ms": trial.took_ms, "answers": answers})
        return
    for answer in answers:
        click.echo(json.dumps(answer, default=str))
    output.say(f"{manifest.reference}: {count} events, {len(answers)} answers, {trial.took_ms:.1f} ms")
