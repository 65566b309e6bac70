"""A complete replay of one slot's recording: writes answers to a file, reports failures as they come, and returns the counts."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from udo_protocol.formats.recording_file import Recording
from udo_protocol.formats.schema import parse_schema
from udo_protocol.queue.frame import DATA, END, ERROR, SKIPPED, STALE, Header
from udo_runtime.drivers.debugger import Quit, Watch
from udo_runtime.drivers.replay import Answered, Replay
from udo_runtime.execution.load import Processor
from udo_runtime.sdk.api import Context

# The origin of an answered event, before the operator's columns.
ORIGIN = pa.schema(
    [
        ("__udo_slot", pa.string()),
        ("__udo_seq", pa.int64()),
        ("__udo_lane", pa.string()),
        ("__udo_session", pa.string()),
        ("__udo_epoch", pa.int64()),
    ]
)
# Failures reported in full; all are counted.
_TOLD = 20


def run(file: Path, request: dict[str, Any], processor: Processor, output: pa.Schema, ctx: Context, answers: Path) -> dict[str, Any]:
    """Replay one slot of `file` and return the outcome. `request`: `slot` (its place in the file), `epoch` (report only its answers and
    failures; None: all), `post_mortem`, `input`, `keyed`."""
    epoch: int | None = request["epoch"]
    watch = Watch(post_mortem=request["post_mortem"])
    processor.open()
    started = time.perf_counter()
    quitted = False
    schema = pa.schema([*ORIGIN, *output])
    with Recording(file) as recording, pa.OSFile(str(answers), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        slot = recording.slots[request["slot"]]
        counts = _Counts(slot.name)
        replay = Replay(slot, processor, request["keyed"], (parse_schema(request["input"]), output), ctx, watch)

        def wanted(header: Header) -> bool:
            watch.armed = epoch is None or header.label.epoch == epoch
            return epoch is None or header.label.epoch <= epoch

        try:
            for a in replay.run(wanted):
                if epoch is not None and (a.frame is None or a.frame.label.epoch != epoch):
                    continue
                counts.add(a)
                if a.answer is not None:
                    writer.write_batch(_with_origin(slot.name, a, a.answer, schema))
        except Quit:
            quitted = True
    took_ms = (time.perf_counter() - started) * 1000
    with suppress(Exception):
        processor.close()
    return {"ok": True, "took_ms": round(took_ms, 3), "quit": quitted, **counts.document()}


def _with_origin(slot: str, a: Answered, answer: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    h = a.frame
    assert h is not None, "only a decoded frame has events to answer"
    labelled = h.HasField("label")
    values = (slot, a.seq, h.lane, h.session if labelled else None, h.label.epoch if labelled else None)
    columns = [pa.array([v] * answer.num_rows, t) for v, t in zip(values, ORIGIN.types, strict=True)]
    return pa.RecordBatch.from_arrays([*columns, *answer.columns], schema=schema)


class _Counts:
    """Counts by session and epoch, in the order of their first frames; a stateless deployment has one row. `slot`: its name."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._rows: dict[tuple[str, int | None], dict[str, Any]] = {}
        self._errors: list[dict[str, Any]] = []

    def add(self, a: Answered) -> None:
        """Count a frame and report its failure."""
        h = a.frame
        key = (h.session, h.label.epoch) if h is not None and h.HasField("label") else ("", None)
        row = self._rows.setdefault(
            key, {"session": key[0], "epoch": key[1], "frames": 0, "events": 0, "answers": 0, "errors": 0, "skipped": 0, "stale": 0}
        )
        row["frames"] += 1
        row["events"] += h.rows if h is not None and h.kind == DATA else 0
        row["answers"] += a.reply.rows
        row["skipped"] += a.reply.kind == SKIPPED
        row["stale"] += a.reply.kind == STALE
        if a.reply.kind == ERROR:
            row["errors"] += 1
            self._tell(a, key)

    def _tell(self, a: Answered, key: tuple[str, int | None]) -> None:
        if len(self._errors) == _TOLD:
            return
        f = a.reply.failure
        what = {DATA: "data", END: "end"}.get(a.frame.kind, "other") if a.frame is not None else "undecodable"
        error = {"slot": self._slot, "seq": a.seq, "frame": what, "session": key[0], "epoch": key[1], "code": f.code, "message": f.message}
        self._errors.append({**error, "event": f.event, "traceback": f.traceback})
        where = f"slot {self._slot}, frame {a.seq}" + (f" (session {key[0]}, epoch {key[1]})" if key[1] is not None else "")
        lines = [f"{where}: {f.message}"] + [f"the event: {f.event}"] * bool(f.event) + [f.traceback] * bool(f.traceback)
        print("\n".join(lines), file=sys.stderr, flush=True)

    def document(self) -> dict[str, Any]:
        """Totals, rows by session and epoch, the first failures."""
        names = ("frames", "events", "answers", "errors", "skipped", "stale")
        rows = list(self._rows.values())
        return {**{n: sum(r[n] for r in rows) for n in names}, "epochs": rows, "failures": self._errors}
