"""A slot without a node manager: lanes, owners, frames."""

from __future__ import annotations

import pyarrow as pa

from tests.conftest import Servers
from udo_protocol.formats.schema import to_ipc
from udo_protocol.limits import SlotLimits
from udo_protocol.queue import lane_end, slot, slot_reader
from udo_protocol.queue.frame import ANSWER, DATA, Header, decode, encode
from udo_protocol.queue.keys import SlotKeys

P = SlotKeys("t", 0)
SCHEMA = to_ipc(pa.schema([("a", pa.int64())]))
BATCH = pa.record_batch({"a": [1, 2, 3]})


def a_lane(servers: Servers, name: str = "l", **limits: int) -> lane_end.LaneEnd:
    end = lane_end.LaneEnd(servers.queue(), P, name, SlotLimits(**limits))  # type: ignore[arg-type]
    end.open(SCHEMA)
    return end


def data(lane: str, n: int, batch: pa.RecordBatch | None = BATCH) -> list[slot.Bytes]:
    return encode(Header(lane=lane, number=n, kind=DATA), batch)


def owner(servers: Servers, token: int | None = None) -> slot_reader.SlotReader:
    state = servers.state()
    token = token or slot.next_token(state, P)
    slot.promote(state, servers.queue(), P, token)
    return slot_reader.SlotReader(servers.queue(), P, f"i{token}", token)


def answer(read: slot_reader.Read) -> list[tuple[str, list[slot.Bytes]]]:
    frames = [decode(f) for f in read.frames]
    return [(f.header.lane, encode(Header(lane=f.header.lane, number=f.header.number, kind=ANSWER))) for f in frames]
