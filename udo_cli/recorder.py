"""Writes a node's recording to a file, part by part as it arrives."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from udo_protocol.errors import ProtocolError, UdoError, UsageError
from udo_protocol.formats.recording_file import Writer
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue.frame import decode

INTERRUPTED = "interrupted"


@dataclass
class Recorded:
    """The contents of a recording file; `bytes`: the size of its frames."""

    frames: int = 0
    events: int = 0
    bytes: int = 0
    sessions: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    gaps: list[list[int]] = field(default_factory=list)
    reason: str = "ended by the node"
    ended_at: str = ""


def write(
    path: Path,
    parts: Iterator[pb.RecordPart],
    begun: Callable[[dict[str, Any]], None],
    progress: Callable[[Recorded], None],
    stopped: Callable[[], bool],
) -> tuple[dict[str, Any], Recorded]:
    """Write the file, which is complete under its name; return its header and summary.

    `begun` gets the header: every frame answered after this call is recorded. `progress` is called and `stopped` asked after each part;
    the node sends at least one part a second. KeyboardInterrupt if it is stopped before the state at the start has arrived.
    """
    first = next(parts)  # raises the node's errors, before there is a file
    header = _header(first.header)
    try:
        return header, _write(path, header, parts, begun, progress, stopped)
    except OSError as e:
        raise UsageError(f"{path} cannot be written: {e.strerror or e}") from e


def _write(
    path: Path,
    header: dict[str, Any],
    parts: Iterator[pb.RecordPart],
    begun: Callable[[dict[str, Any]], None],
    progress: Callable[[Recorded], None],
    stopped: Callable[[], bool],
) -> Recorded:
    with Writer(path) as file:
        file.header(header)
        begun(header)
        sink = _Sink(file)
        try:
            for part in parts:
                sink.take(part)
                progress(sink.summary)
                if stopped():
                    sink.summary.reason = INTERRUPTED
                    break
        except UdoError as e:  # the node manager is gone: the parts so far are good
            if not sink.complete:
                raise
            sink.summary.reason = str(e)
        if not sink.complete:
            raise KeyboardInterrupt
        sink.summary.ended_at = _now()
        file.close(asdict(sink.summary))
    return sink.summary


def _header(h: pb.RecordHeader) -> dict[str, Any]:
    return {
        "deployment": h.deployment,
        "node": h.node,
        "slot": h.slot,
        "operator": h.operator,
        "version": h.version,
        "digest": h.digest,
        "manifest": json.loads(h.manifest_json),
        "given": {"env": list(h.env), "secrets": list(h.secrets), "files": list(h.files)},  # names only: values stay on the node
        "config": json.loads(h.config_json),
        "keyed": h.keyed,
        "first_seq": h.first_seq,
        "failed": list(h.failed),
        "cuts": dict(h.cuts),
        "started_at": _now(),
    }


class _Sink:
    """Puts the pieces of values and frames together."""

    def __init__(self, file: Writer) -> None:
        self.summary = Recorded()
        self.complete = False  # whether the state at the start has arrived
        self._file = file
        self._group: int | None = None
        self._values: dict[int, list[bytes]] = {}
        self._pieces: list[bytes] = []  # of the value or frame that continues in the next part

    def take(self, part: pb.RecordPart) -> None:
        """Write a part."""
        kind = part.WhichOneof("part")
        if kind != "piece" or part.piece.group != self._group:
            self._end_group()
        self.complete = kind not in ("session", "piece")
        if kind == "session":
            self._file.session(part.session.session, json.loads(part.session.record_json))
            self.summary.sessions += 1
        elif kind == "piece":
            self._group = part.piece.group
            self._pieces.append(part.piece.data)
            if not part.piece.more:
                self._values.setdefault(part.piece.kind, []).append(self._joined())
        elif kind == "schema":
            self._file.schema(part.schema.id, part.schema.ipc)
        elif kind == "gap":
            self.summary.gaps.append([part.gap.first_seq, part.gap.last_seq])
        elif kind == "end":
            self.summary.reason = part.end.reason
        elif kind == "frames":
            self._frames(part.frames)

    def _joined(self) -> bytes:
        whole = b"".join(self._pieces)
        self._pieces.clear()
        return whole

    def _end_group(self) -> None:
        if self._group is not None:
            [meta], base = self._values[pb.StatePiece.META], self._values.get(pb.StatePiece.BASE)
            self._file.group(self._group, (meta, base[0] if base else None, self._values.get(pb.StatePiece.DELTA, [])))
        self._group, self._values = None, {}

    def _frames(self, part: pb.RecordFrames) -> None:
        for seq, data in enumerate(part.frames, part.first_seq):
            self._pieces.append(data)
            if not part.more:
                self._frame(seq, self._joined())

    def _frame(self, seq: int, frame: bytes) -> None:
        self._file.frame(seq, frame)
        s = self.summary
        s.frames, s.bytes, s.last_seq = s.frames + 1, s.bytes + len(frame), seq
        s.first_seq = seq if s.first_seq is None else s.first_seq
        with contextlib.suppress(ProtocolError):  # a malformed frame is recorded all the same
            s.events += decode(frame).header.rows


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
