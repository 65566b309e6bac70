"""A small operator in a thread, speaking the slot log as an instance does: for lane tests without a node manager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.conftest import bound
from udo_protocol.errors import UdoError
from udo_protocol.formats.schema import schema_id, to_ipc
from udo_protocol.queue import frame, slot, slot_reader
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys

Answer = Callable[[pa.RecordBatch], Any]


class EchoOperator:
    """Answers the frames of one slot with `answer(batch)`: a batch, a Failure, SKIPPED, None for no rows, or the bytes of a frame."""

    def __init__(
        self, servers: Any, keys: SlotKeys, schema: pa.Schema, output: pa.Schema | None = None, answer: Answer = lambda b: b
    ) -> None:
        self._conn = servers.queue()
        self._schema, self._answer = schema, answer
        state = servers.state()
        token = slot.next_token(state, keys)
        slot.promote(state, self._conn, keys, token)
        state.close()
        self._reader = slot_reader.SlotReader(self._conn, keys, "echo", token)
        self.output_id = slot.store_schema(self._conn, keys, to_ipc(output or schema))
        self.frames: list[int] = []
        self.headers: list[frame.Header] = []
        self._gate = threading.Event()
        self._gate.set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Read nothing more until `go_on`."""
        self._gate.clear()

    def go_on(self) -> None:
        """Answer again."""
        self._gate.set()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._gate.set()
        self._thread.join(bound(5))
        self._conn.close()

    def _run(self) -> None:
        cursor = 1
        try:
            while not self._stop.is_set():
                self._gate.wait()
                read = self._reader.read(cursor)
                if not read.frames:
                    self._reader.park(cursor, 50)
                    continue
                for seq, data in enumerate(read.frames, read.first):
                    if not self._gate.is_set():
                        break
                    self._reader.emit(seq, [self._reply(frame.decode(data))])
                    cursor = seq + 1
        except UdoError:
            return  # the server is already gone

    def _reply(self, asked: frame.Frame) -> tuple[str, list[frame.Bytes]]:
        header = asked.header
        self.frames.append(header.rows)
        self.headers.append(header)
        reply = frame.Header(lane=header.lane, number=header.number, kind=frame.ANSWER, version="1")
        answer = self._answer(asked.batch(self._schema))
        if isinstance(answer, bytes):  # sent as they are
            return header.lane, [answer]
        if isinstance(answer, frame.Failure):
            reply.kind = frame.ERROR
            reply.failure.CopyFrom(answer)
            return header.lane, frame.encode(reply)
        if answer == frame.SKIPPED:
            reply.kind = frame.SKIPPED
            return header.lane, frame.encode(reply)
        if answer is None:
            return header.lane, frame.encode(reply)
        reply.rows, reply.schema = answer.num_rows, self.output_id
        return header.lane, frame.encode(reply, answer)


def connect(path: str) -> Connection:
    """Return a connection, for tests that look into the slot."""
    return Connection(path)


def identity(schema: pa.Schema) -> bytes:
    """Return the wire id of a schema."""
    return schema_id(to_ipc(schema))
