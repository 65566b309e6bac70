"""Writes the recordings of a deployment's slots to one file, part by part as they arrive, each slot in a thread."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Condition
from typing import Any

from udo_protocol import supervised
from udo_protocol.errors import ProtocolError, UdoError, UsageError
from udo_protocol.formats.recording_file import SlotWriter, Writer
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue.frame import decode

INTERRUPTED = "interrupted"
_LOOK_S = 0.1
Json = dict[str, Any]


@dataclass
class Recorded:
    """The contents of one slot's recording; `bytes`: the size of its frames."""

    frames: int = 0
    events: int = 0
    bytes: int = 0
    sessions: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    gaps: list[list[int]] = field(default_factory=list)
    reason: str = "ended by the node"
    ended_at: str = ""


@dataclass(frozen=True)
class RecordedSlot:
    """A slot's header in the file, and what has been recorded of it."""

    header: Json
    made: Recorded


def write(
    path: Path,
    deployment: str,
    slots: Sequence[Iterator[pb.RecordPart]],
    begun: Callable[[list[Json]], None],
    progress: Callable[[list[Recorded]], None],
    stopped: Callable[[], bool],
) -> list[RecordedSlot]:
    """Write the file, which is complete under its name, from the nodes' streams of these slots; return their headers and summaries.

    `begun` gets the headers: every frame answered after this call is recorded. `progress` is called and `stopped` asked about ten times a
    second; a node sends at least one part a second. KeyboardInterrupt if it is stopped before the state at the start has arrived.
    """
    try:
        with Writer(path) as file:
            recording = _Recording([_Slot(place, parts, file) for place, parts in enumerate(slots)])
            try:
                begun(recording.begin(stopped))
                recording.wait(progress, stopped)
            finally:
                recording.stop()
            made = recording.made()
            file.close({"deployment": deployment})
            return made
    except OSError as e:
        raise UsageError(f"{path} cannot be written: {e.strerror or e}") from e


class _Slot:
    """One slot's stream, and what has come of it. `header`: None until it has begun."""

    def __init__(self, place: int, parts: Iterator[pb.RecordPart], file: Writer) -> None:
        self.place, self.parts, self.file = place, parts, file
        self.header: Json | None = None
        self.sink: _Sink | None = None
        self.error: BaseException | None = None
        self.ended = False

    def run(self, changed: Condition, stopping: Callable[[], bool]) -> None:
        """Write it all, or until `stopping`."""
        try:
            self._write(changed, stopping)
        except BaseException as e:  # raised by `made`
            self.error = e
        with changed:
            self.ended = True
            changed.notify_all()

    def _write(self, changed: Condition, stopping: Callable[[], bool]) -> None:
        header = _header(next(self.parts).header)  # raises the node's errors
        writer = self.file.slot(self.place, header)
        sink = self.sink = _Sink(writer)
        with changed:
            self.header = header
            changed.notify_all()
        try:
            for part in self.parts:
                sink.take(part)
                if stopping():
                    sink.summary.reason = INTERRUPTED
                    break
        except UdoError as e:  # the node manager is gone: the parts so far are good
            if not sink.complete:
                raise
            sink.summary.reason = str(e)
        if not sink.complete:
            raise KeyboardInterrupt
        sink.summary.ended_at = _now()
        writer.end(asdict(sink.summary))


class _Recording:
    """The slots' threads."""

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self._slots, self._changed, self._stopping = slots, Condition(), False

    def begin(self, stopped: Callable[[], bool]) -> list[Json]:
        """Start, and return the slots' headers once each has begun. The first error of a slot that cannot."""
        for slot in self._slots:
            supervised.once("record", partial(slot.run, self._changed, lambda: self._stopping))
        self._until(lambda: all(slot.header is not None or slot.ended for slot in self._slots), lambda: None, stopped)
        self._raise(slot for slot in self._slots if slot.header is None)
        return [slot.header for slot in self._slots if slot.header is not None]

    def wait(self, progress: Callable[[list[Recorded]], None], stopped: Callable[[], bool]) -> None:
        """Wait until all have ended; the others end if one fails."""

        def look() -> None:
            progress([slot.sink.summary for slot in self._slots if slot.sink is not None])
            self._stopping |= any(slot.error is not None for slot in self._slots)

        self._until(lambda: all(slot.ended for slot in self._slots), look, stopped)

    def _until(self, done: Callable[[], bool], look: Callable[[], None], stopped: Callable[[], bool]) -> None:
        with self._changed:
            while not done():
                self._changed.wait(_LOOK_S)
                self._stopping |= stopped()
                look()

    def stop(self) -> None:
        """Let the threads end with their next part."""
        self._stopping = True

    def made(self) -> list[RecordedSlot]:
        """What was recorded; an error if a slot's start is missing."""
        self._raise(self._slots)
        return [RecordedSlot(slot.header, slot.sink.summary) for slot in self._slots if slot.header is not None and slot.sink is not None]

    @staticmethod
    def _raise(slots: Iterable[_Slot]) -> None:
        errors = [slot.error for slot in slots if slot.error is not None]
        for error in sorted(errors, key=lambda e: isinstance(e, KeyboardInterrupt)):  # of slots that ended because another one failed
            raise error


def _header(h: pb.RecordHeader) -> Json:
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

    def __init__(self, file: SlotWriter) -> None:
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
