"""Frames to mutate: one for each of Arrow's column layouts, and for some layouts one with many rows, which decoders check differently."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

from udo_protocol.formats.schema import schema_id, to_ipc
from udo_protocol.queue.frame import DATA, Header, encode

# From 512 rows on, columns are validated one by one (udo_protocol/formats/body.py).
ROWS, MANY_ROWS = 40, 600


@dataclass(frozen=True)
class Sample:
    """A valid frame, and the schema message that goes with it."""

    name: str
    schema: bytes
    frame: bytes


@cache
def samples() -> tuple[Sample, ...]:
    """Make a frame for each of Arrow's column layouts, including those that frames do not carry."""
    n = range(ROWS)
    strings = _texts(ROWS)
    views = [f"a text beyond twelve bytes {i}" for i in n]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([9, 20, ROWS], pa.int32()), pa.array([1, 2, 3]))
    kinds = pa.array([i % 2 for i in n], pa.int8())
    halves = [pa.array([i for i in n if i % 2 == 0]), pa.array([str(i) for i in n if i % 2])]
    columns: dict[str, dict[str, pa.Array]] = {
        "fixed": {"i": pa.array(n), "f": pa.array([i / 3 for i in n]), "b": pa.array([i % 3 == 0 if i % 4 else None for i in n])},
        "times": {"t": pa.array(n, pa.timestamp("us", "UTC")), "d": pa.array(n, pa.date32()), "m": pa.array(n, pa.time64("us"))},
        "decimals": {"d": pa.array([Decimal(i) for i in n], pa.decimal128(10, 2)), "x": pa.array([b"four"] * ROWS, pa.binary(4))},
        "sized": {"l": pa.array([[i, i] for i in n], pa.list_(pa.int32(), 2)), "g": pa.array([["x"]] * ROWS, pa.large_list(pa.string()))},
        **_checked_by_length(ROWS),
        **{f"many {name}": of for name, of in _checked_by_length(MANY_ROWS).items()},
        "dictionaries": {"d": pa.array(strings).dictionary_encode()},
        "views": {"v": pa.array(views, pa.string_view()), "b": pa.array([b"xx"] * ROWS, pa.binary_view())},
        "list views": {"v": pa.array([[i] * (i % 4) for i in n], pa.list_view(pa.int64()))},
        "runs": {"r": runs},
        "unions": {
            "d": pa.UnionArray.from_dense(kinds, pa.array([i // 2 for i in n], pa.int32()), halves),
            "s": pa.UnionArray.from_sparse(kinds, [pa.array(n), pa.array([str(i) for i in n])]),
        },
    }
    made = [_sample(name, pa.record_batch(c)) for name, c in columns.items()]
    packed = pa.record_batch({"s": pa.array(["x" * 4096] * ROWS)})
    return (*made, *(_sample(codec, packed, codec) for codec in ("lz4", "zstd")))


def _texts(rows: int) -> list[str | None]:
    return [f"merchant {i}" if i % 5 else None for i in range(rows)]


def _checked_by_length(rows: int) -> dict[str, dict[str, pa.Array]]:
    """Columns that are checked in one way if they are short, in another one if they are long."""
    n, strings = range(rows), _texts(rows)
    return {
        "strings": {"s": pa.array(strings), "u": pa.array(["ü" * (i % 4) for i in n]), "b": pa.array([b"\xff\0"] * rows)},
        "large": {"s": pa.array(strings, pa.large_string()), "b": pa.array([b"xy"] * rows, pa.large_binary())},
        "lists": {"l": pa.array([[i] * (i % 4) for i in n]), "t": pa.array([["a", None, "bb"]] * rows), "n": pa.nulls(rows)},
        "structs": {"s": pa.array([{"x": i, "y": [str(i)]} if i % 3 else None for i in n])},
        "maps": {"m": pa.array([[("k", str(i)), ("l", None)] for i in n], pa.map_(pa.string(), pa.string()))},
    }


def _sample(name: str, batch: pa.RecordBatch, codec: str | None = None) -> Sample:
    ipc = to_ipc(batch.schema)
    header = Header(lane="lane", number=1, kind=DATA, rows=batch.num_rows, schema=schema_id(ipc))
    if codec is None:
        return Sample(name, ipc, b"".join(map(bytes, encode(header, batch))))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return Sample(name, ipc, framed(header, messages[1].serialize().to_pybytes()))


def framed(header: Any, message: bytes) -> bytes:
    """Make a frame around any bytes, valid or not."""
    head: bytes = header.SerializeToString()
    start = struct.pack("<4sHHII", b"UDOF", 1, 0, len(head), len(message)) + head
    return start + b"\0" * (-len(head) % 8) + message
