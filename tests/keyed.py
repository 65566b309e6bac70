"""A keyed attempt as a Spark task makes it, without Spark: opens a lane at a node, sends events with their groups, ENDs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from udo_protocol.errors import UdoError
from udo_protocol.formats.schema import GROUP_COLUMN, from_ipc, schema_id, to_ipc
from udo_protocol.node.api import Node
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.frame import ANSWER, DATA, END, Bytes, Frame, Header, Kind, encode
from udo_protocol.queue.lane_end import LaneEnd, Push

GROUPS = range(4)


class Attempt:
    """One try of a task at an epoch of a session; the first input column is an int64, the key; a second may be event time."""

    def __init__(
        self,
        node: Node,
        deployment: str,
        session: str,
        epoch: int,
        attempt: int,
        run: str = "r1",
        *,
        groups: Sequence[int] = GROUPS,
        **asked: bool,
    ) -> None:
        name = f"{session}.{run}.{epoch}.{attempt}"
        reply = node.open_lane(deployment, name, session=session, epoch=epoch, run=run, call="c", **asked)  # type: ignore[arg-type]
        self._groups = groups
        schema = from_ipc(reply.input_schema)
        self._schema = schema.append(pa.field(GROUP_COLUMN, pa.int32()))
        slot = reply.slots[0]
        self._conn = Connection(slot.queue_socket, login=Login(slot.user, slot.password))
        self.lane = LaneEnd(self._conn, slot.prefix, name)
        try:
            self.lane.open(to_ipc(self._schema))
        except UdoError:
            self.close()
            raise
        self._output = from_ipc(reply.output_schema)
        self._marks = {"session": session, "label": Label(run=reply.run, epoch=epoch, attempt=attempt)}
        self._sent = self._got = 0

    def send(self, keys: Sequence[int], times: Sequence[Any] = ()) -> None:
        """Push one frame; with `times` if the input has a second column."""
        columns = [pa.array(keys, pa.int64()), pa.array([k % len(GROUPS) for k in keys], pa.int32())]
        if times:
            columns.insert(1, pa.array(times, self._schema.field(1).type))
        batch = pa.record_batch(columns, schema=self._schema)
        self._push(encode(self._header(DATA, schema=schema_id(to_ipc(self._schema)), rows=batch.num_rows), batch))

    def end(self) -> None:
        """The attempt is complete."""
        self._push(encode(self._header(END, groups=self._groups)))

    def _header(self, kind: Kind, **more: Any) -> Header:
        self._sent += 1
        return Header(lane=self.lane.lane, number=self._sent, kind=kind, **self._marks, **more)

    def _push(self, frame: list[Bytes]) -> None:
        assert self.lane.push(self._sent, self._sent - 1, frame).status is Push.ACCEPTED

    def frames(self) -> list[Frame]:
        """All answers due."""
        found: list[Frame] = []
        while self._got < self._sent:
            got = self.lane.collect(15_000)
            assert got, "an answer is missing"
            self._got += len(got)
            found += got
        return found

    def answers(self) -> list[Any]:
        """The first column of all answered events; every frame must have been answered properly."""
        frames = self.frames()
        assert {f.header.kind for f in frames} == {ANSWER}, [f.header.failure.message for f in frames]
        return [n for f in frames for n in f.batch(self._output).column(0).to_pylist()]

    def run(self, keys: Sequence[int]) -> list[Any]:
        """A whole epoch."""
        self.send(keys)
        self.end()
        found = self.answers()
        self.lane.close()
        self.close()
        return found

    def close(self) -> None:
        """Drop the connection, as a task that dies does."""
        self._conn.close()
