"""Cases: large tables, through memory shared with the operator's process if it can share, and through the socket."""

from __future__ import annotations

import pyarrow as pa
from udo_runtime.child.shared import HALF_BYTES, LEAST_BYTES
from udo_runtime.child.wire import Gone
from udo_runtime.state.codec import pack

from udo_cli.conformance.cases import Open, case
from udo_cli.conformance.player import KEYED, STOP_S, AnsweredFailure, Known, Mismatch, Player, keyed_tables, require
from udo_cli.conformance.schemas import KEYED_BOTH, N, keyed
from udo_protocol.proto import operator_pb2 as pb

# Enough for each of their tables to be large.
_ROWS, _KEYS = 30_000, 2_000
_BOTH = (N, N)
# (offset, bytes): after the shared memory; across the end of the requests' half; with a sum that overflows; too large for a signed number.
_OUTSIDE = ((2 * HALF_BYTES, 64), (HALF_BYTES - 64, HALF_BYTES), (2**64 - 64, 128), (64, 2**63))


@case("memory", "large batches come and go as they are, with shared memory and without")
def batches(open_: Open) -> None:
    for shares in (True, False):
        with open_("forward") as p:
            p.start(_BOTH, shares=shares)
            for start, stop in ((0, _ROWS), (0, 3), (7, _ROWS)):
                for first in (0, 1):  # the second is written over the first
                    numbers = pa.array(range(first, _ROWS + first), pa.int64())
                    rows = pa.RecordBatch.from_arrays([numbers], schema=N).slice(start, stop - start)
                    require(f"{rows.num_rows} rows{' in shared memory' if shares else ''}", True, rows.equals(p.data(rows)))


@case("memory", "several large tables of a request, and of an answer, come and go as they are")
def states(open_: Open) -> None:
    filled = "x" * 2 * (LEAST_BYTES // _KEYS)
    known = [Known(f"k{n}", pack({"n": n, "filled": filled})) for n in range(_KEYS)]
    tables = keyed_tables(keyed(*((k.key, "count", 1, None) for k in known)), known)
    for shares in (True, False):
        with open_("keyed") as p:
            p.start(KEYED_BOTH, KEYED, shares=shares)
            for _ in range(2):
                answer = p.answered(pb.Data(), tables, _KEYS)
                require("answers", [n + 1 for n in range(_KEYS)], answer.rows.column("n").to_pylist())
                require("states", {n: {"n": n + 1, "filled": filled} for n in range(_KEYS)}, answer.values)


@case("memory", "a table outside of the shared memory, or in memory that was not agreed on, is refused")
def outside(open_: Open) -> None:
    for shares, places in ((True, _OUTSIDE), (False, ((0, 64),))):
        for at, size in places:
            with open_("forward") as p:
                p.start(_BOTH, shares=shares)
                if p.shares == shares:  # an operator that cannot share has only the other case
                    _refused(p, at, size)


def _refused(p: Player, at: int, size: int) -> None:
    message = pb.Message(data=pb.Data())
    message.parts.add(table=pb.Part.EVENTS, bytes=size, shared_offset=at)
    p.send_bare(message)
    try:
        reply = p.reply()
    except AnsweredFailure:
        return
    except Gone:
        if "signal" in (how := p.process.end(STOP_S)) and "ABRT" not in how:
            raise Mismatch(f"{size} bytes at {at}: expected a Failure, or that it ends with an error; it {how}") from None
        return
    raise Mismatch(f"{size} bytes at {at}: expected a Failure, got {reply.message.WhichOneof('kind')}")
