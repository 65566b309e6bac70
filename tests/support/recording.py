"""A recording in a thread, local operators to replay it, and their answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.cli.conftest import Shell
from tests.conftest import bound, wait_until
from udo_cli import recorder
from udo_protocol.node.api import NodeClient


class Recorder:
    """Records `deployment` into `file`; it has everything that is answered from the moment this object exists."""

    def __init__(
        self, node: NodeClient, deployment: str, file: Path, frames: int = 0, for_s: float = 60.0, slots: Sequence[int | None] = (None,)
    ) -> None:
        self._streams = [node.record(deployment, for_s, frames, slot) for slot in slots]
        self._deployment, self._file = deployment, file
        self._started, self._stop = threading.Event(), threading.Event()
        self.last_seq = 0  # the sum of all slots'
        self.made: list[recorder.RecordedSlot] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(bound(20))

    def _run(self) -> None:
        def progress(made: list[recorder.Recorded]) -> None:
            self.last_seq = sum(each.last_seq or 0 for each in made)

        begun = lambda _: self._started.set()  # noqa: E731
        self.made = recorder.write(self._file, self._deployment, self._streams, begun, progress, self._stop.is_set)

    def stop(self, last_seq: int) -> recorder.Recorded:
        """End the recording as Ctrl-C does, once that frame is recorded; of several slots the sum of their last frames."""
        wait_until(lambda: self.last_seq >= last_seq, 20, f"frame {last_seq} to be recorded")
        self._stop.set()
        return self.done()

    def done(self) -> recorder.Recorded:
        """Wait for the end of the recording; what was recorded of its first slot."""
        self._thread.join(bound(90))
        return self.made[0].made


def folder(path: Path, source: str, **manifest: Any) -> Path:
    """Write an operator `t@9` into a folder, in the form for `udo test`."""
    path.mkdir()
    (path / "op.py").write_text(source)
    fields = {"name": "t", "version": "9", **manifest}
    tables = {k: v for k, v in fields.items() if isinstance(v, dict)}
    lines = [f"{k} = {json.dumps(v)}" for k, v in fields.items() if k not in tables]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    (path / "operator.toml").write_text("\n".join(lines))
    return path


def replayed(udo: Shell, operator: Path, file: Path, *args: str, code: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The outcome of a replay, and the answered events with their origin."""
    out = file.with_suffix(".parquet")
    done = udo("test", operator, "--replay", file, "-o", out, "--json", *args, code=code)
    return done.json, pq.read_table(out).to_pylist()
