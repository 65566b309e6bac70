"""Mutated frames: structure-aware changes of real ones. Each must be refused with a ProtocolError or give a batch of its own bytes.

`python -m benchmarks.fuzz.frames SEED FIRST COUNT NOTE` runs them in this process and writes the number of the current one into the
file NOTE, so that a parent that sees this process die knows it. Each mutation is reproduced by its seed and number.
"""

from __future__ import annotations

import json
import mmap
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from benchmarks.fuzz.samples import Sample, framed, samples
from udo_protocol.errors import ProtocolError
from udo_protocol.formats import body
from udo_protocol.formats.schema import from_ipc
from udo_protocol.queue.frame import decode

# The bytes around a frame in memory. Eight of them in a row in an answer show that it was read from outside its frame.
POISON = b"\xd5" * 4096
# The limits of one decoding: a mutation that takes more is a bomb.
MEMORY_BYTES = 4 << 30
SLOW_S = 5.0
NUMBERS = (0, 1, 2, 7, 8, -1, -8, 64, 100_000_000, 2**31 - 1, -(2**31), 2**32 - 1, 1 << 40, 2**62, 2**63 - 1, -(2**63))
NODES, BUFFERS = 1, 2  # members of a record batch
NOTE = struct.Struct("<q")


class Wrong(Exception):
    """A mutation was neither refused nor decoded correctly."""


# -- mutations ----------------------------------------------------------------------------------------------------------


@dataclass
class Parts:
    """The positions in a frame that mutations aim at."""

    data: bytearray
    rng: random.Random

    @property
    def body(self) -> int:
        """The offset of the Arrow message's first byte."""
        (size,) = struct.unpack_from("<I", self.data, 8)
        return 16 + int(size) + -int(size) % 8

    @property
    def flatbuffer(self) -> tuple[int, int]:
        """The offset and length of the message's metadata."""
        return self.body + 8, struct.unpack_from("<i", self.data, self.body + 4)[0]

    def members(self) -> tuple[bytes, list[int], list[int]]:
        """The metadata, and the offsets in it of the members of the message and of the record batch."""
        at, size = self.flatbuffer
        data = bytes(self.data[at : at + size]) + bytes(12)
        message = body.members(data, struct.unpack_from("<I", data)[0])
        header = message[2]
        return data, list(message), list(body.members(data, header + struct.unpack_from("<I", data, header)[0]))

    def pairs(self, number: int) -> tuple[int, int]:
        """The offset in the frame of a vector of pairs, and its number of 64-bit numbers."""
        data, _, batch = self.members()
        start = batch[number] + struct.unpack_from("<I", data, batch[number])[0]
        return self.flatbuffer[0] + start + 4, 2 * int(struct.unpack_from("<I", data, start)[0])

    def number(self) -> int:
        """Draw a number that is known to cause trouble, or a small one."""
        return self.rng.choice(NUMBERS) if self.rng.random() < 0.8 else self.rng.randrange(-300, 300)

    def put(self, at: int, form: str) -> None:
        """Write a drawn number at this offset."""
        bits = 8 * struct.calcsize(form)
        struct.pack_into(form, self.data, at, self.number() & ((1 << bits) - 1))


def _vector(number: int) -> Callable[[Parts], None]:
    def change(p: Parts) -> None:
        at, count = p.pairs(number)
        if count:
            p.put(at + 8 * p.rng.randrange(count), "<Q")

    return change


def _rows(p: Parts) -> None:
    at = p.flatbuffer[0] + p.members()[2][0]
    p.put(at, "<Q")
    if p.rng.random() < 0.7:  # the frame's header says the same, as far as it can
        (count,) = struct.unpack_from("<q", p.data, at)
        _reheader(p, lambda h: setattr(h, "rows", count & 0xFFFFFFFF))


def _body_length(p: Parts) -> None:
    p.put(p.flatbuffer[0] + p.members()[1][3], "<Q")


def _kind(p: Parts) -> None:
    p.data[p.flatbuffer[0] + p.members()[1][1]] = p.rng.randrange(8)


def _metadata(p: Parts) -> None:
    at, size = p.flatbuffer
    where = at + p.rng.randrange(max(size, 1))
    if p.rng.random() < 0.5:
        p.data[where] ^= 1 << p.rng.randrange(8)
    else:
        p.put(at + (where - at & ~3), "<I")


def _values(p: Parts) -> None:
    """Change a number in the buffers: offsets, validity, type ids, run ends, view headers, or text."""
    at, size = p.flatbuffer
    start = at + size
    where = start + p.rng.randrange(max(len(p.data) - start, 1))
    form = p.rng.choice(("<B", "<I", "<Q"))
    width = struct.calcsize(form)
    where -= (where - start) % width
    if where + width <= len(p.data):
        p.put(where, form)


def _offsets(p: Parts) -> None:
    """Change a 32-bit number in a buffer that the record batch names."""
    at, count = p.pairs(BUFFERS)
    n = p.rng.randrange(max(count // 2, 1))
    offset, length = struct.unpack_from("<qq", p.data, at + 16 * n)
    begin = sum(p.flatbuffer) + offset
    if length >= 4:
        p.put(begin + 4 * p.rng.randrange(length // 4), "<I")


def _prefix(p: Parts) -> None:
    p.put(p.rng.choice((0, 4, 8, 12)), "<I")


def _header(p: Parts) -> None:
    p.data[16 + p.rng.randrange(max(p.body - 16, 1))] ^= 1 << p.rng.randrange(8)


def _cut(p: Parts) -> None:
    del p.data[p.rng.randrange(max(len(p.data), 1)) :]


def _cut_rightly(p: Parts) -> None:
    """Cut the end off and correct the frame's own length, but not Arrow's."""
    begin = p.body
    del p.data[begin + p.rng.randrange(max(len(p.data) - begin, 1)) :]
    struct.pack_into("<I", p.data, 12, len(p.data) - begin)


def _extend(p: Parts) -> None:
    begin = p.body
    p.data += bytes(8 * p.rng.randrange(1, 64))
    if p.rng.random() < 0.5:
        struct.pack_into("<I", p.data, 12, len(p.data) - begin)


def _reheader(p: Parts, change: Callable[[Any], Any]) -> None:
    header = decode(bytes(p.data)).header
    change(header)
    p.data[:] = framed(header, bytes(p.data[p.body :]))


MUTATIONS: dict[str, Callable[[Parts], None]] = {
    "nodes": _vector(NODES),
    "buffers": _vector(BUFFERS),
    "rows": _rows,
    "body length": _body_length,
    "message kind": _kind,
    "metadata": _metadata,
    "values": _values,
    "offsets": _offsets,
    "prefix": _prefix,
    "header": _header,
    "cut": _cut,
    "cut rightly": _cut_rightly,
    "extended": _extend,
}
# Mutations that Arrow itself would accept are drawn more often than those that it refuses at once.
WEIGHTS = [3 if name in ("values", "offsets", "buffers", "nodes", "rows") else 1 for name in MUTATIONS]


def mutation(seed: int, number: int) -> tuple[Sample, str, bytes, bytes]:
    """Make mutation `number` of a seed: (sample, changes, schema message, frame)."""
    rng = random.Random(f"{seed}:{number}")
    sample = rng.choice(samples())
    data, done = bytearray(sample.frame), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        (name,) = rng.choices(tuple(MUTATIONS), WEIGHTS)
        before = bytes(data)
        try:
            MUTATIONS[name](Parts(data, rng))
            done.append(name)
        except (struct.error, IndexError, ProtocolError):  # an earlier change has removed the place
            data[:] = before
    schema = bytearray(sample.schema)
    if rng.random() < 0.1:
        schema[rng.randrange(len(schema))] ^= 1 << rng.randrange(8)
        done.append("schema")
    elif rng.random() < 0.05:
        schema[:] = rng.choice(samples()).schema
        done.append("another schema")
    return sample, "+".join(done), bytes(schema), bytes(data)


# -- verdict ------------------------------------------------------------------------------------------------------------


def verdict(schema: bytes, data: bytes) -> str:
    """Decode a frame, then once more with its text left to the reader; return 'refused' or 'right' for the first, and raise Wrong for
    anything else. A crash is seen by the parent."""
    found, without_text = _verdict(schema, data, text=True), _verdict(schema, data, text=False)
    if found == "right" and without_text == "refused":
        raise Wrong("refused only where its text is not checked")
    return found


def _verdict(schema: bytes, data: bytes, *, text: bool) -> str:
    surrounded = pa.py_buffer(POISON + data + POISON).slice(len(POISON), len(data))
    try:
        frame = decode(surrounded)
        batch = frame.batch(from_ipc(schema), text=text)
    except ProtocolError:
        return "refused"
    except Exception as e:
        raise Wrong(f"not a typed error: {type(e).__name__}: {e}") from e
    if batch.num_rows != frame.header.rows:
        raise Wrong(f"{batch.num_rows} rows, announced were {frame.header.rows}")
    _require_own_bytes(batch, surrounded, text=text)
    return "right"


def stream_verdict(schema: bytes, data: bytes) -> str:
    """Do the same with the messages as a stream, such as a dead letter's event or the answers of `udo test`."""
    begin = 16 + struct.unpack_from("<I", data, 8)[0] if len(data) > 16 else 0
    stream = schema + data[begin + -begin % 8 :]
    surrounded = pa.py_buffer(POISON + stream + POISON).slice(len(POISON), len(stream))
    return [_stream_verdict(surrounded, text=text) for text in (False, True)][-1]


def _stream_verdict(stream: pa.Buffer, *, text: bool) -> str:
    try:
        _, batches = body.read_stream(stream, text=text)
        for batch in batches:
            _require_own_bytes(batch, stream, text=text)
    except ProtocolError:
        return "refused"
    except Wrong:
        raise
    except Exception as e:
        raise Wrong(f"of the stream not a typed error: {type(e).__name__}: {e}") from e
    return "right"


def _require_own_bytes(batch: pa.RecordBatch, data: pa.Buffer, *, text: bool) -> None:
    for buffer in (b for column in batch.columns for b in column.buffers() if b is not None):
        if buffer.size and not (data.address <= buffer.address and buffer.address + buffer.size <= data.address + len(data)):
            raise Wrong("a column lies outside of its frame")
    columns = batch.columns if text else [column.view(body._bare(column.type)) for column in batch.columns]
    try:
        for column in columns:
            column.validate(full=True)
    except pa.ArrowInvalid as e:
        raise Wrong(f"decoded, but invalid: {e}") from e
    try:
        values = repr([column.to_pylist() for column in columns]).encode("utf-8", "replace")
    except (ValueError, ArithmeticError, LookupError):  # a date or a number that Python does not have
        return
    if repr(POISON[:8])[2:-1].encode() in values and POISON[:8] not in bytes(data):
        raise Wrong("what lay beside the frame is in the answer")


@dataclass(frozen=True)
class Portion:
    """The verdicts about some mutations; `wrong`: in words, what must not happen."""

    refused: int
    right: int
    wrong: list[str]
    slowest_ms: float
    peak_mb: int
    by_mutation: dict[str, int]


def run(seed: int, first: int, count: int, note: Callable[[int], None]) -> Portion:
    """Try `count` mutations and count the verdicts; `note` is called with each number beforehand."""
    outcomes: Counter[str] = Counter()
    by_mutation: Counter[str] = Counter()
    wrong: list[str] = []
    slowest = 0.0
    for sample in samples():  # unchanged: otherwise a decoder that refuses everything would pass
        carried = not any(body.not_carried(f.type) for f in pa.ipc.read_schema(pa.py_buffer(sample.schema)))
        expected = "right" if carried and sample.name not in ("lz4", "zstd") else "refused"
        if (found := verdict(sample.schema, sample.frame)) != expected:
            wrong.append(f"{sample.name} itself: expected {expected}, got {found}")
    for n in range(first, first + count):
        note(n)
        sample, done, schema, data = mutation(seed, n)
        started = time.perf_counter()
        try:
            outcomes[verdict(schema, data)] += 1
            stream_verdict(schema, data)
        except Exception as e:
            wrong.append(f"seed {seed}, number {n} ({sample.name}: {done}): {e}")
        slowest = max(slowest, time.perf_counter() - started)
        by_mutation[done.partition("+")[0]] += 1
        if slowest > SLOW_S:
            wrong.append(f"seed {seed}, number {n} ({sample.name}: {done}) took {slowest:.1f} s")
            break
    return Portion(
        refused=outcomes["refused"],
        right=outcomes["right"],
        wrong=wrong,
        slowest_ms=round(slowest * 1000, 3),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        by_mutation=dict(by_mutation),
    )


def main() -> None:
    """Run the command of the module's docstring."""
    seed, first, count = map(int, sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with open(sys.argv[4], "r+b") as file, mmap.mmap(file.fileno(), NOTE.size) as noted:
        print(json.dumps(asdict(run(seed, first, count, lambda n: NOTE.pack_into(noted, 0, n)))), flush=True)


if __name__ == "__main__":
    main()
