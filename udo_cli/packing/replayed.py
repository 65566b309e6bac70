"""Runs a local operator on a recording, in an interpreter of its own, in the foreground, so that a debugger can use the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from udo_cli.options.given import OperatorConfig
from udo_cli.packing import boxed, isolated
from udo_cli.packing.build import UnpackedOperator
from udo_protocol.errors import NotFound, SchemaError, UsageError
from udo_protocol.files import replacing
from udo_protocol.formats.manifest import Manifest
from udo_protocol.formats.recording_file import Recording
from udo_protocol.formats.schema import from_ipc, misfits


def require_fit(recording: Recording, manifest: Manifest, epoch: int | None) -> None:
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
    """Replay the recording `file`; returns the outcome, and writes the answers to `answers` as parquet. KeyboardInterrupt at Ctrl-C."""
    if answers is not None and not answers.absolute().parent.is_dir():
        raise NotFound(f"there is no folder {answers.absolute().parent} to write {answers.name} to")
    manifest = operator.manifest
    with Recording(file) as recording:
        require_fit(recording, manifest, epoch)
        count = sum(1 for _ in recording.frames())  # reads the whole file, so that damage is found before the operator runs
    with isolated.prepared(operator, config) as trial:
        if manifest.command:  # no Python debugger can look into it
            trial.request.update(isolated.own_process(trial, operator, boxed.find(trial.work, [])))
        trial.request.update(replay=str(file.absolute()), epoch=epoch, post_mortem=post_mortem)
        watched = post_mortem or sys.stdin.isatty()  # then there is no time limit
        bound_s = None if watched else manifest.limits.open_timeout_s + manifest.limits.answer_timeout_s * count
        isolated.run_child(trial, manifest, bound_s, foreground=watched)
        said = isolated.outcome(trial.work, manifest)
        if answers is not None:
            _to_parquet(trial.work / "answers.arrow", answers)
        return said


def _to_parquet(source: Path, target: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from udo_protocol.formats.body import read_stream

    with replacing(target) as new, pa.OSFile(str(source), "rb") as file:
        schema, answers = read_stream(file)
        with pq.ParquetWriter(new, schema) as writer:
            for batch in answers:
                writer.write_batch(batch)
