"""`udo test`: run an operator on sample events or on a recording, without Spark and without a platform."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from udo_cli import base
from udo_cli.exits import ExitCode
from udo_cli.options import given
from udo_cli.options.given import OperatorConfig
from udo_cli.options.typed import grouped, option

if TYPE_CHECKING:
    from udo_cli.packing.tried import Trial

# Epochs shown at most, the last ones; --json shows all.
_EPOCHS = 20

EXAMPLES = """
udo test fraud --events fraud/events.json
udo test fraud --events sample.parquet --batch-rows 10000 --json
udo test fraud --image fraud:2                             a whole image, in a container (docs/docker.md)
MODEL_KEY=... udo test fraud --replay fraud.rec --pdb
udo test visits --replay visits.rec --epoch 4711 -o answers.parquet
MODEL_KEY=... udo test fraud --events sample.csv --secret MODEL_KEY --file model.bin
"""


@dataclass(frozen=True)
class ReplayOptions:
    """The recording that takes the place of sample events, if any, and what is done with its frames."""

    file: Path | None = option(
        "--replay",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file of `udo record`: run on its frames, starting from its state.",
    )
    epoch: int | None = option(
        type=click.IntRange(0), help="With --replay: report (and debug) only this epoch, after processing those before it."
    )
    post_mortem: bool = option("--pdb", is_flag=True, help="With --replay: open the debugger where the operator raises an exception.")
    answers: Path | None = option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        help="With --replay: write the answers to this parquet file.",
    )


@base.command("test", EXAMPLES)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--events", type=click.Path(path_type=Path, dir_okay=False), help="JSON, CSV or parquet; events.json in DIRECTORY by default."
)
@click.option("--batch-rows", type=click.IntRange(1), default=10_000, show_default=True, help="Number of events per batch.")
@click.option("--image", "source", metavar="REF|FILE", help="Run this whole image instead of the folder's code; needs a Docker daemon.")
@grouped(ReplayOptions, "replay")
@grouped(given.ConfigOptions, "config")
@base.json_option
def command(
    directory: Path,
    events: Path | None,
    batch_rows: int,
    source: str | None,
    replay: ReplayOptions,
    config: given.ConfigOptions,
    as_json: bool,
) -> None:
    """Run the operator in DIRECTORY on sample events and print its answers, one JSON object per line.

    Input and output are checked against operator.toml. An error shows the operator's traceback and the offending event.

    With --image only operator.toml and the events are taken from DIRECTORY: the image runs as on a node with the Docker driver.

    With --replay it runs on recorded frames, slot by slot, in their order and epochs and from the recorded state, in the foreground:
    `breakpoint()` in the operator opens the debugger. It prints a summary; the exit code is 6 if the operator failed on a frame.
    """
    from udo_cli import events as samples
    from udo_cli.packing import build, replayed, tried
    from udo_cli.platform import throwaway
    from udo_cli.settings import CliSettings
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    told = config.read()
    if replay.file is None and (replay.epoch is not None or replay.post_mortem or replay.answers):
        raise UsageError("--epoch, --pdb and -o belong to --replay FILE")
    if source is not None:
        if replay.file is not None:
            raise UsageError("--image and --replay exclude each other: a recording is replayed on the folder's code")
        _image(directory, source, events, batch_rows, told, as_json)
        return
    target, cache = build.Target.of(None, None), CliSettings().local.dependencies
    folder = build.load(directory, None, target)
    manifest = folder.manifest
    if replay.file is not None:
        if events is not None:
            raise UsageError("--events and --replay exclude each other: a recording has its own events")
        dependencies = build.unpacked(folder.dependencies(cache, output.say), cache)
        operator = build.UnpackedOperator(manifest, directory.absolute(), dependencies)
        said = replayed.run(operator, replay.file, told, epoch=replay.epoch, post_mortem=replay.post_mortem, answers=replay.answers)
        _tell(manifest.reference, said, as_json)
        return
    batches = samples.read(events or directory / "events.json", manifest.input_schema, batch_rows)
    with throwaway.workspace("udo-test-") as work, build.telling_what_was_left_out(folder):
        packed = build.build(folder, work, cache, output.say, lasting=False)
        trial = tried.answer(packed, batches, told)
    _show(manifest.reference, sum(b.num_rows for b in batches), trial, as_json)


def _image(directory: Path, source: str, events: Path | None, batch_rows: int, told: OperatorConfig, as_json: bool) -> None:
    """Run a whole image on sample events, for `udo test --image`."""
    from udo_cli import events as samples
    from udo_cli.packing import archive, build, contained, image
    from udo_cli.platform import throwaway
    from udo_cli.text import output

    with throwaway.workspace("udo-image-") as work:
        whole = archive.read(source, work, packed=False)
        manifest = build.load_image_manifest(directory, None, whole)
        batches = samples.read(events or directory / "events.json", manifest.input_schema, batch_rows)
        trial = contained.answer(manifest, image.label(manifest, whole.config, whole.layers), batches, told, output.say)
    _show(manifest.reference, sum(b.num_rows for b in batches), trial, as_json)


def _show(reference: str, count: int, trial: Trial, as_json: bool) -> None:
    from udo_cli.text import output

    rows = trial.answers.to_pylist()
    if as_json:
        output.emit({"operator": reference, "events": count, "took_ms": trial.took_ms, "answers": rows})
        return
    for answer in rows:
        click.echo(json.dumps(answer, default=str))
    output.say(f"{reference}: {count} events, {len(rows)} answers, {trial.took_ms:.1f} ms")


def _tell(reference: str, said: dict[str, Any], as_json: bool) -> None:
    """Print the summary of a replay; exit code 6 if the operator failed on a frame."""
    from udo_cli.packing import replayed
    from udo_cli.text import output

    if as_json:
        output.emit({"operator": reference, **{k: v for k, v in said.items() if k != "ok"}})
    else:
        if said["epochs"] and said["epochs"][0]["epoch"] is not None:
            names = ("session", "epoch", *replayed.COUNTS)
            output.table([n.upper() for n in names], ([row[n] for n in names] for row in said["epochs"][-_EPOCHS:]), "")
        ended = ", interrupted" if said["quit"] else ""
        counts = ", ".join(f"{said[n]} {n}" for n in replayed.COUNTS)
        click.echo(f"{reference}: {counts}, {said['took_ms']:.1f} ms{ended}")
    if said["errors"]:
        raise click.exceptions.Exit(ExitCode.OPERATOR)
