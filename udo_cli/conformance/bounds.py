"""Cases: an answer is at most as large as Start allows; a larger one is a Failure that says so, before the whole answer is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from udo_runtime.child.wire import Gone
from udo_runtime.state.codec import pack

from udo_cli.conformance.cases import Open, case
from udo_cli.conformance.events import limited
from udo_cli.conformance.player import KEYED, AnsweredFailure, Known, Mismatch, Player, require
from udo_cli.conformance.schemas import EVENTS, KEYED_BOTH, N, answers, events, keyed
from udo_protocol.proto import operator_pb2 as pb

# Small, so that little has to be sent, but above the size from which tables lie in shared memory.
BOUND = 256 << 10
# Bytes of values that leave room for the rest of a table: validity bits, offsets, and the table's entry in the message.
_BELOW = BOUND * 15 // 16
# A number, and values of some 100 bytes for each type whose size is counted in its own way.
_VALUES: list[tuple[pa.DataType, Any]] = [
    (pa.int64(), 7),
    (pa.string(), "x" * 96),
    (pa.binary(), b"x" * 96),
    (pa.list_(pa.int64()), list(range(12))),
    (pa.list_(pa.struct([("name", pa.string()), ("n", pa.int64())])), [{"name": "x" * 20, "n": n} for n in range(3)]),
    (pa.map_(pa.string(), pa.int64()), [(f"entry {n:6}", n) for n in range(4)]),
]
_SCHEMA = pa.schema([(f"v{n}", t) for n, (t, _) in enumerate(_VALUES)])
_ROW_BYTES = 8 + 5 * 100


@contextmanager
def _bounded(open_: Open, role: str, schemas: tuple[pa.Schema, pa.Schema], shares: bool = True, bound: int = BOUND) -> Iterator[Player]:
    with open_(role) as p:
        p.start(schemas, KEYED if role == "keyed" else None, shares=shares, answer_bytes=bound)
        yield p


def _numbers(bytes_: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(bytes_ // 8), pa.int64())], schema=N)


def _filled(bytes_: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([value] * (bytes_ // _ROW_BYTES), t) for t, value in _VALUES], schema=_SCHEMA)


def _require_told(what: str, failure: pb.Failure, rows: int | None = None) -> None:
    for words in (f"the bound is {BOUND}", "return less per event, or send fewer", *([] if rows is None else [f" {rows} events"])):
        require(f"{what}: whether its message has {words!r}: {failure.message}", True, words in failure.message)
    require(f"{what}: its code", "", failure.code)


@case("bounds", "an answer just below the bound is answered, and any if there is none")
def below(open_: Open) -> None:
    for shares, bound, bytes_ in ((True, BOUND, _BELOW), (False, BOUND, _BELOW), (False, 0, 16 * BOUND)):
        with _bounded(open_, "forward", (N, N), shares, bound) as p:
            require("the answer in batches", True, (sent := _numbers(bytes_)).equals(p.data(sent)))
    with _bounded(open_, "each", (_SCHEMA, _SCHEMA)) as p:
        require("the answer event by event", True, (sent := _filled(_BELOW)).equals(p.data(sent)))


@case("bounds", "a batch above the bound is a Failure that tells the bound, wherever the tables lie, and it goes on")
def above(open_: Open) -> None:
    for shares in (True, False):
        with _bounded(open_, "forward", (N, N), shares) as p:
            large, small = _numbers(BOUND + 8), _numbers(8)
            _require_told("a batch", p.fails(large), large.num_rows)
            require("the next answer", True, small.equals(p.data(small)))


@case("bounds", "answers above the bound are a Failure that names the event where they reach it, and it goes on")
def gathered(open_: Open) -> None:
    with _bounded(open_, "each", (_SCHEMA, _SCHEMA)) as p:
        _require_told("events", failure := p.fails(sent := _filled(4 * BOUND)))
        reached = failure.row * _ROW_BYTES if failure.HasField("row") else 0
        if not BOUND * 9 // 10 <= reached <= BOUND * 11 // 10:
            raise Mismatch(f"expected the event with which {BOUND} bytes are reached, got that behind {reached}")
        require("the next answer", True, (some := sent.slice(0, 3)).equals(p.data(some)))


@case("bounds", "an event that is answered without end is a Failure that names it, in little memory, and it goes on")
def endless(open_: Open) -> None:
    with _bounded(open_, "events", (EVENTS, N)) as p:
        require("an answer", [2], p.data(events(("add", 1))).column(0).to_pylist())
        with limited(p):
            try:
                failure = p.fails(events(("add", 1), ("endless", 7), ("add", 1)))
            except Gone:
                raise Mismatch("it took much memory, or ended") from None
        _require_told("answers without end", failure)
        require("its row", 1, failure.row if failure.HasField("row") else None)
        require("the next answer", [2], p.data(events(("add", 1))).column(0).to_pylist())


@case("bounds", "states count: an answer that is too large with them is a Failure, and it goes on")
def states(open_: Open) -> None:
    filled = "x" * (BOUND // 4)
    known = [Known(f"k{n}", pack({"n": n, "filled": filled})) for n in range(4)]
    for shares in (True, False):
        with _bounded(open_, "keyed", KEYED_BOTH, shares) as p:
            rows = keyed(*((k.key, "count", 1, None) for k in known))
            try:
                p.keyed(rows, known)
            except AnsweredFailure as e:
                _require_told("states", e.failure, 4)
            else:
                raise Mismatch("expected Failure, got an answer")
            got = p.keyed(rows.slice(0, 3), known[:3])
            require("the next answers", [("k0", 1, None), ("k1", 2, None), ("k2", 3, None)], answers(got.rows))
            require("their states", {n: {"n": n + 1, "filled": filled} for n in range(3)}, got.values)
