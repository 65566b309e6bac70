"""Runs a local operator on a recording, in an interpreter of its own, in the foreground, so that a debugger can use the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from udo_cli.options.given import OperatorConfig
from udo_cli.packing import boxed, isolated
from udo_cli.packing.build import UnpackedOperator
from udo_protocol.errors import NotFound, SchemaError, UsageError
from udo_protocol.files import replacing
from udo_protocol.formats.manifest import Manifest
from udo_protocol.formats.recording_file import Recording, SlotRecording
from udo_protocol.formats.schema import from_ipc, misfits

# Counts of a replay.
COUNTS = ("frames", "events", "answers", "errors", "skipped", "stale")


def require_fit(recording: SlotRecording, manifest: Manifest, epoch: int | None) -> None:
    """SchemaError or UsageError unless the local operator can process these frames, from this state."""
    header, here = recording.header, manifest.reference
    recorded = f"{header['operator']}@{header['version']}"
    problems = sorted({p for ipc in recording.schemas().values() for p in misfits(from_ipc(ipc), manifest.input_schema)})
    if problems:
        raise SchemaError(f"the frames recorded of {recorded} do not fit the input of {here}: {'; '.join(problems)}")
    key = [(name, header["manifest"]["input"][name]) for name in header["manifest"]["key"]]
    wanted = [(name, manifest.input[name]) for name in manifest.key]
    if key != wanted:
        show = [", ".join(f"{n} {t}" for n, t in columns) or "nothing" for columns in (wanted, key)]
        raise SchemaError(f"{here} keeps state by {show[0]}; {recorded} was recorded keeping it by {show[1]}")
    state_version, reads = header["manifest"]["state_version"], (manifest.state_version, *manifest.migrates_from)
    if key and state_version not in reads:
        there = ", ".join(map(str, reads))
        raise SchemaError(f"{here} reads state of version {there}; the recorded state of {recorded} is of version {state_version}")
    if epoch is not None and not header["keyed"]:
        raise UsageError(f"--epoch: {recorded} keeps no state, and the frames of such a deployment name no epoch")


def run(
    operator: UnpackedOperator, file: Path, config: OperatorConfig, *, epoch: int | None, post_mortem: bool, answers: Path | None
) -> dict[str, Any]:
    """Replay the recording `file`, slot by slot, each in a process of its own as in production; returns the outcome, and writes the answers
    to `answers` as parquet. KeyboardInterrupt at Ctrl-C."""
    if answers is not None and not answers.absolute().parent.is_dir():
        raise NotFound(f"there is no folder {answers.absolute().parent} to write {answers.name} to")
    with Recording(file) as recording:
        for slot in recording.slots:
            require_fit(slot, operator.manifest, epoch)
        counts = [
            sum(1 for _ in slot.frames()) for slot in recording.slots
        ]  # reads the whole file: damage is found before the operator runs
    said: list[dict[str, Any]] = []
    with contextlib.ExitStack() as opened:
        add = None if answers is None else opened.enter_context(_to_parquet(answers))
        for place, count in enumerate(counts):
            with isolated.prepared(operator, config) as trial:
                trial.request.update(replay=str(file.absolute()), slot=place, epoch=epoch, post_mortem=post_mortem)
                said.append(_run(operator, trial, count))
                if add is not None:
                    add(trial.work / "answers.arrow")
            if said[-1]["quit"]:
                break
    return _merged(said)


def _run(operator: UnpackedOperator, trial: isolated.Prepared, count: int) -> dict[str, Any]:
    """Replay the `count` frames of one slot."""
    manifest = operator.manifest
    if manifest.command:  # no Python debugger can look into it
        trial.request.update(isolated.own_process(trial, operator, boxed.find(trial.work, [])))
    watched = trial.request["post_mortem"] or sys.stdin.isatty()  # then there is no time limit
    bound_s = None if watched else manifest.limits.open_timeout_s + manifest.limits.answer_timeout_s * count
    isolated.run_child(trial, manifest, bound_s, foreground=watched)
    return isolated.outcome(trial.work, manifest)


def _merged(slots: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The outcome of all slots: sums, by session and epoch too, and their failures one after another."""
    epochs: dict[tuple[str, int | None], dict[str, Any]] = {}
    for row in (row for said in slots for row in said["epochs"]):
        whole = epochs.setdefault((row["session"], row["epoch"]), {**row, **dict.fromkeys(COUNTS, 0)})
        whole |= {name: whole[name] + row[name] for name in COUNTS}
    return {
        "ok": True,
        "took_ms": round(sum(said["took_ms"] for said in slots), 3),
        "quit": slots[-1]["quit"],
        **{name: sum(said[name] for said in slots) for name in COUNTS},
        "epochs": list(epochs.values()),
        "failures": [failure for said in slots for failure in said["failures"]],
    }


@contextlib.contextmanager
def _to_parquet(target: Path) -> Iterator[Callable[[Path], None]]:
    """A function that adds the answers of a slot, a stream of Arrow batches in a file, to the parquet file `target`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from udo_protocol.formats.body import read_stream

    with replacing(target) as new, contextlib.ExitStack() as opened:
        writers: list[pq.ParquetWriter] = []

        def add(source: Path) -> None:
            with pa.OSFile(str(source), "rb") as file:
                schema, answers = read_stream(file)
                if not writers:
                    writers.append(opened.enter_context(pq.ParquetWriter(new, schema)))
                for batch in answers:
                    writers[0].write_batch(batch)

        yield add
