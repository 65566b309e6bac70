"""Rehearsal: before an instance is ready, its operator answers the sample events of its package, so that it is warm for the first frame.

A JVM compiles while it runs: its first frames take 0.2 to 0.8 s. Answers, states and timers of a rehearsal are discarded. The samples are
sent as they are, then repeated in frames of growing size, so that a slow operator gets no more than it has time for.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from udo_protocol.errors import ProtocolError, UsageError
from udo_protocol.formats import sample_events
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime.child.host import Child, Failed
from udo_runtime.child.wire import INDEX, Received
from udo_runtime.execution.distinct_keys import distinct
from udo_runtime.failure import ProcessingError

if TYPE_CHECKING:
    from udo_runtime.child.keys import StoredKeys

# A JVM has compiled the relevant code after some ten thousand events. More frames are sent only while there is time.
_FRAMES, _ROWS, _MOST_S = 50, 1024, 2.0
# Bytes of one frame; far below the bound of a message.
_FRAME_BYTES = 1 << 20


def read(path: str, schema: pa.Schema) -> pa.RecordBatch:
    """The sample events in this file, written by the operator's author. ProcessingError if there are none."""
    file_name = Path(path).name
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{file_name} is no file")
            return sample_events.rehearsed(file.read(sample_events.REHEARSED_BYTES + 1), schema, file_name)
    except (OSError, UsageError) as e:
        raise ProcessingError(f"its sample events to rehearse: {e}") from e


class Rehearsal:
    """The rehearsal of one operator's process. `columns`: the columns of its key, none for a stateless operator."""

    def __init__(self, child: Child, samples: pa.RecordBatch, output: pa.Schema, columns: Sequence[str]) -> None:
        self._child, self._samples, self._output, self._columns = child, samples, output, columns
        self._known: StoredKeys | None = None  # the samples' keys after the first frame; later frames do not change their states

    def run(self) -> None:
        """Send frames until enough are answered. ProcessingError with the event if one fails: an operator that cannot work is not used."""
        begun, took_s = time.monotonic(), 0.0
        for frame in self._frames():
            started = time.monotonic()
            if started + took_s > begun + _MOST_S:
                return
            self._once(frame)
            took_s = time.monotonic() - started

    def _frames(self) -> Iterator[pa.RecordBatch]:
        rows, size = self._samples.num_rows, max(1, self._samples.nbytes)
        most = max(1, min(_ROWS // rows, _FRAME_BYTES // size))
        for n in range(_FRAMES):
            yield pa.Table.from_batches([self._samples] * min(2**n, most)).combine_chunks().to_batches()[0]

    def _once(self, frame: pa.RecordBatch) -> None:
        tables = [(pb.Part.EVENTS, frame)]
        keys: StoredKeys | None = None
        if self._columns:
            index, keys = self._keyed(frame)
            tables += [(pb.Part.INDEX, index), (pb.Part.KEYS, keys.table())]
        try:
            reply = self._child.rehearse(pb.Message(rehearse=pb.Data()), tables)
            if (kind := reply.message.WhichOneof("kind")) != "answer":
                raise ProtocolError(f"expected an Answer, got {kind}")
            reply.table(pb.Part.ROWS, self._output)
            if keys is not None:
                self._note(reply, keys)
        except Failed as e:
            e.name_event(frame)
            told = f" ({e.event})" if e.event else ""
            raise ProcessingError(f"it fails on its sample events{told}: {e}", e.traceback, e.event, e.wire_code) from e
        except ProtocolError as e:
            raise self._child.blame(e) from e

    def _keyed(self, frame: pa.RecordBatch) -> tuple[pa.RecordBatch, StoredKeys]:
        """INDEX, and the keys of a frame, which are the same in each, with their known states."""
        from udo_runtime.child.keys import StoredKeys  # needs MessagePack; a stateless operator may bring its own version

        index, values, _ = distinct([frame.column(column) for column in self._columns])
        keys = self._known or StoredKeys(values, [0] * len(values), [None] * len(values))
        return pa.RecordBatch.from_arrays([index], schema=INDEX), keys

    def _note(self, reply: Received, keys: StoredKeys) -> None:
        """Validate the reply's states and timers, and keep the states of the first frame."""
        from udo_runtime.child.keys import StoredKeys, changes

        found = {row: state for row, state, _ in changes(reply, len(keys.values)).states}
        if self._known is None:
            stored = [found.get(row, before) for row, before in enumerate(keys.stored)]
            self._known = StoredKeys(keys.values, keys.numbers, stored)
