"""A keyed attempt as a Spark task makes it, without Spark: frames of events with their key groups, an END, and the answers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tests.conftest import bound
from tests.support.lanes import opened
from udo_protocol.errors import UdoError
from udo_protocol.formats.schema import GROUP_COLUMN, from_ipc, schema_id, to_ipc
from udo_protocol.node.api import NodeClient
from udo_protocol.proto.frame_pb2 import Label
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.frame import ANSWER, DATA, END, Frame, Header, Kind, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.lane_end import LaneEnd, Push

GROUPS = range(4)
T0 = dt.datetime(2020, 1, 1)


def group_of(key: Any) -> int:
    """The key group: a number, or the sum of a text's characters, modulo the number of groups."""
    return (key if isinstance(key, int) else sum(map(ord, key))) % len(GROUPS)


class Attempt:
    """One attempt of a partition at an epoch of a session, through a LaneEnd or a replacement for it.

    `schemas`: the schema of the events (a key, and maybe a time), and that of the answers.
    """

    def __init__(
        self,
        lane: Any,
        schemas: tuple[pa.Schema, pa.Schema],
        *,
        groups: Sequence[int] = GROUPS,
        close: Callable[[], None] | None = None,
        **header: Any,
    ) -> None:
        self.lane, self.output = lane, schemas[1]
        self.input = schemas[0].append(pa.field(GROUP_COLUMN, pa.int32()))
        self._groups, self._header, self._close = groups, header, close
        self._sent = self._got = 0

    @classmethod
    def at_node(
        cls,
        node: NodeClient,
        deployment: str,
        session: str,
        epoch: int,
        attempt: int,
        run: str = "r1",
        *,
        groups: Sequence[int] = GROUPS,
        job: bool = False,
        **asked: bool,
    ) -> Attempt:
        """Begin an attempt as a task does: the node names the slot, where the lane is opened. `job`: it is part of a batch job."""
        name = f"{session}.{run}.{epoch}.{attempt}"
        reply = opened(node, deployment, name, session=session, epoch=epoch, run=run, call="c", **asked)  # type: ignore[arg-type]
        slot, label = reply.slots[0], Label(run=reply.run, epoch=epoch, attempt=attempt)
        conn = Connection(slot.queue_socket, login=Login(slot.user, slot.password))
        lane = LaneEnd(conn, SlotKeys.parse(slot.prefix), name)
        schemas = from_ipc(reply.input_schema), from_ipc(reply.output_schema)
        made = cls(lane, schemas, groups=groups, close=conn.close, session=session, label=label, job=job)
        try:
            lane.open(to_ipc(made.input))
        except UdoError:
            conn.close()
            raise
        return made

    def send(self, keys: Sequence[Any], times: float | Sequence[Any] = 0.0) -> None:
        """Push one frame. `times`: one for each event, or seconds since T0 for all; only if events have a time."""
        columns = [pa.array(keys, self.input.field(0).type), pa.array(map(group_of, keys), pa.int32())]
        if len(self.input) > len(columns):
            at = [T0 + dt.timedelta(seconds=times)] * len(keys) if isinstance(times, (int, float)) else times
            columns.insert(1, pa.array(at, self.input.field(1).type))
        self.push(DATA, pa.record_batch(columns, schema=self.input), rows=len(keys))

    def end(self, groups: Sequence[int] | None = None, *, void: bool = False, highest_us: int | None = None) -> None:
        """Send END: the attempt is complete."""
        self.push(END, groups=self._groups if groups is None else groups, void=void, highest_us=highest_us)

    def push(self, kind: Kind, batch: pa.RecordBatch | None = None, **header: Any) -> None:
        """Push one frame as it is."""
        self._sent += 1
        if kind == DATA and batch is not None:
            header["schema"] = schema_id(to_ipc(batch.schema))
        frame = encode(Header(lane=self.lane.lane, number=self._sent, kind=kind, **self._header, **header), batch)
        assert self.lane.push(self._sent, self._sent - 1, frame).status is Push.ACCEPTED

    def frames(self) -> list[Frame]:
        """Wait for and return the answers to all frames sent."""
        found: list[Frame] = []
        while self._got < self._sent:
            got = self.lane.collect(round(1000 * bound(15)))
            assert got, f"{self._sent - self._got} answers missing after 15 s"
            self._got += len(got)
            found += got
        return found

    def kinds(self) -> list[Kind]:
        """The kind of answer to each frame."""
        return [f.header.kind for f in self.frames()]

    def answers(self) -> list[Any]:
        """The answered events, as tuples if they have several columns; AssertionError if a frame was not answered properly."""
        frames = self.frames()
        assert {f.header.kind for f in frames} == {ANSWER}, [f.header.failure.message for f in frames]
        rows = [tuple(row.values()) for f in frames for row in f.batch(self.output).to_pylist()]
        return rows if len(self.output) > 1 else [value for (value,) in rows]

    def run(self, keys: Sequence[Any], times: float | Sequence[Any] = 0.0) -> list[Any]:
        """Run a whole epoch of one frame, and return its answers."""
        self.send(keys, times)
        self.end()
        found = self.answers()
        if self._close is not None:
            self.lane.close()
            self.close()
        return found

    def close(self) -> None:
        """Drop the connection, as a dying task does."""
        assert self._close is not None, "its connection is somebody else's"
        self._close()
