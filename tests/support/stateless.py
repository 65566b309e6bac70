"""A producer for a stateless operator: it sends frames and collects answers."""

from __future__ import annotations

import pyarrow as pa

from tests.conftest import Servers, bound
from tests.runtime.conftest import IN, P
from udo_protocol.formats.schema import schema_id, to_ipc
from udo_protocol.queue import lane_end
from udo_protocol.queue.frame import DATA, Frame, Header, encode


def lane(servers: Servers, name: str = "l", schema: pa.Schema = IN) -> lane_end.LaneEnd:
    end = lane_end.LaneEnd(servers.queue(), P, name)
    end.open(to_ipc(schema))
    return end


def send(end: lane_end.LaneEnd, n: int, values: list[int], schema: pa.Schema = IN) -> None:
    batch = pa.record_batch([pa.array(values, schema.field(0).type)], schema=schema)
    header = Header(lane=end.lane, number=n, kind=DATA, schema=schema_id(to_ipc(schema)), trace=b"t")
    assert end.push(n, n - 1, encode(header, batch)).status == lane_end.Push.ACCEPTED


def collect(end: lane_end.LaneEnd, count: int) -> list[Frame]:
    frames: list[Frame] = []
    while len(frames) < count:
        got = end.collect(round(1000 * bound(10)))
        assert got, f"only {len(frames)} of {count} answers within 10 s, on a busy machine later"
        frames += got
    return frames
