"""Arrow bytes from another process: crafted, mutated, too large, of types that frames do not carry; and only one module decodes them."""

from __future__ import annotations

import ast
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzz.frames import NOTE, Wrong, verdict
from benchmarks.fuzz.samples import framed, samples
from tests.conftest import bound
from udo_protocol.errors import ProtocolError, SchemaError
from udo_protocol.formats import body, schema
from udo_protocol.limits import HEADER_BYTES, SCHEMA_BYTES
from udo_protocol.queue.frame import ANSWER, DATA, Header, decode, encode

ROOT = Path(__file__).parents[2]
PRODUCT = ("udo_protocol", "registry", "node_manager", "udo_interface", "udo_cli", "runtimes/python")
# The names of pyarrow that make Arrow objects from bytes.
DECODERS = {
    "read_record_batch",
    "read_message",
    "read_schema",
    "read_tensor",
    "open_stream",
    "open_file",
    "MessageReader",
    "RecordBatchStreamReader",
    "RecordBatchFileReader",
    "deserialize",
    "deserialize_pandas",
    "from_buffers",
    "foreign_buffer",
    "_import_from_c",
}
MUTATIONS = 4_000


def frame_of(batch: pa.RecordBatch, change: Callable[[bytes], bytes] = lambda b: b, rows: int | None = None) -> bytes:
    """A frame whose Arrow message was changed after it was serialised."""
    message = change(batch.serialize().to_pybytes())
    return framed(Header(lane="a", number=7, kind=ANSWER, rows=batch.num_rows if rows is None else rows), message)


def numbers(form: str, old: int, new: int) -> Callable[[bytes], bytes]:
    """Replace a number wherever it occurs in a message."""
    return lambda b: b.replace(struct.pack(form, old), struct.pack(form, new))


def text_end(old: int, new: int) -> Callable[[bytes], bytes]:
    """Change the end of the only text in its offsets; the same number in the metadata stays."""

    def change(message: bytes) -> bytes:
        before, _, after = message.rpartition(struct.pack("<ii", 0, old))
        return before + struct.pack("<ii", 0, new) + after

    return change


@pytest.mark.parametrize("end", [2**30, -5, 12999])
def test_text_offsets_outside_of_the_data_are_refused(end: int) -> None:
    batch = pa.record_batch({"s": ["x" * 12345]})

    with pytest.raises(ProtocolError, match="frame 7 of lane a"):
        decode(frame_of(batch, text_end(12345, end))).batch(batch.schema)


def test_a_claim_of_100_million_rows_over_the_buffers_of_four_is_refused() -> None:
    batch = pa.record_batch({"n": pa.array([11, 12, 13, 14])})
    liar = frame_of(batch, numbers("<q", 4, 100_000_000), rows=100_000_000)

    with pytest.raises(ProtocolError, match="cannot be 100000000 rows"):
        decode(liar).batch(batch.schema)


def test_rows_that_take_no_bytes_are_bounded() -> None:
    batch = pa.record_batch({"n": pa.nulls(4)})
    liar = frame_of(batch, numbers("<q", 4, 2**31), rows=2**31)

    with pytest.raises(ProtocolError, match="cannot be 2147483648 rows"):
        decode(liar).batch(batch.schema)


def test_a_frame_that_announces_other_rows_than_it_has_is_refused() -> None:
    batch = pa.record_batch({"n": [1, 2]})

    with pytest.raises(ProtocolError, match="has 2 rows, its frame announces 3"):
        decode(frame_of(batch, rows=3)).batch(batch.schema)
    with pytest.raises(ProtocolError, match="announces 3 rows and has no body"):
        decode(framed(Header(lane="a", number=1, kind=DATA, rows=3), b"")).batch(batch.schema)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_body_is_refused_before_it_is_unpacked(codec: str) -> None:
    batch = pa.record_batch({"s": ["x" * (1 << 24)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    _, message = pa.ipc.MessageReader.open_stream(sink.getvalue())
    before = pa.total_allocated_bytes()

    with pytest.raises(ProtocolError, match="compressed"):
        decode(framed(Header(rows=1), message.serialize().to_pybytes())).batch(batch.schema)
    with pytest.raises(ProtocolError, match="compressed"):
        list(body.read_stream(sink.getvalue())[1])
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("name", ["dictionaries", "views", "list views", "runs", "unions"])
def test_types_of_which_few_bytes_make_many_values_are_not_carried(name: str) -> None:
    (sample,) = (s for s in samples() if s.name == name)

    with pytest.raises(ProtocolError, match="frames do not carry"):
        schema.from_ipc(sample.schema)


@pytest.mark.parametrize("text", ["string_view", "binary_view", "list<string_view>"])
def test_a_manifest_cannot_name_them_either(text: str) -> None:
    with pytest.raises(SchemaError, match="unknown column type"):
        schema.parse_type(text)


def test_a_schema_is_bounded_in_size_and_depth() -> None:
    deep = pa.int64()
    for _ in range(40):
        deep = pa.list_(deep)

    with pytest.raises(ProtocolError, match="nested"):
        schema.from_ipc(schema.to_ipc(pa.schema([("n", deep)])))
    with pytest.raises(ProtocolError, match="bound"):
        schema.from_ipc(bytes(SCHEMA_BYTES + 1))
    with pytest.raises(ProtocolError, match="no Arrow schema"):
        schema.from_ipc(b"not a schema")


def test_a_giant_header_is_not_even_parsed() -> None:
    header = Header(lane="a", number=1)
    header.failure.message = "x" * HEADER_BYTES

    with pytest.raises(ProtocolError, match="frame header of"):
        decode(framed(header, b""))


def test_text_that_is_none_is_refused_unless_it_is_left_to_the_reader() -> None:
    batch = pa.record_batch({"s": ["Zürich", "Bern"], "l": [["Zürich"], []]})
    garbled = frame_of(batch, lambda b: b.replace("ü".encode(), b"\xff\xff"))

    with pytest.raises(ProtocolError, match="UTF8|UTF-8|utf-8"):
        decode(garbled).batch(batch.schema)
    with pytest.raises(UnicodeDecodeError):
        decode(garbled).batch(batch.schema, text=False).to_pylist()


@given(st.lists(st.one_of(st.none(), st.binary(max_size=12), st.text(max_size=6).map(str.encode)), min_size=1, max_size=20))
def test_text_is_refused_exactly_when_arrow_would_refuse_it(values: list[bytes | None]) -> None:
    many = values * (body._FEW_ROWS // len(values) + 1)
    batch = pa.record_batch({"s": pa.array(many, pa.binary())})
    text = pa.schema([("s", pa.string())])
    try:
        batch.column(0).view(pa.string()).validate(full=True)
        valid = True
    except pa.ArrowInvalid:
        valid = False

    try:
        decode(frame_of(batch)).batch(text)
        assert valid
    except ProtocolError:
        assert not valid


def test_thousands_of_mutated_frames_crash_nothing_and_leak_nothing(tmp_path: Path) -> None:
    note = tmp_path / "note"
    note.write_bytes(NOTE.pack(-1))
    command = [sys.executable, "-m", "benchmarks.fuzz.frames", "20261122", "0", str(MUTATIONS), str(note)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=bound(120), check=False)

    assert done.returncode == 0, f"{done.stderr[-2000:]}; number {NOTE.unpack(note.read_bytes())} was under way"
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["refused"] + found["right"] == MUTATIONS and found["right"] > 100


@pytest.mark.parametrize("rows", [40, 600])
def test_an_invalid_batch_is_never_judged_right(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # given two texts whose offsets are swapped, and a decoder that does not notice
    batch = pa.record_batch({"s": ["a", "bb", "ccc"] * (rows // 3)})
    offsets = bytes(batch.column(0).buffers()[1])[: 4 * (batch.num_rows + 1)]
    swapped = frame_of(batch, lambda b: b.replace(offsets, offsets[:4] + offsets[8:12] + offsets[4:8] + offsets[12:]))
    ipc = schema.to_ipc(batch.schema)
    assert verdict(ipc, swapped) == "refused"

    monkeypatch.setattr(body, "_validate", lambda *_: None)
    with pytest.raises(Wrong, match="invalid"):
        verdict(ipc, swapped)


def test_text_that_is_left_to_the_reader_is_judged_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"s": ["Zürich", "Bern"], "l": [["Zürich"], []]})
    garbled = frame_of(batch, lambda b: b.replace("ü".encode(), b"\xff\xff"))

    assert verdict(schema.to_ipc(batch.schema), garbled) == "refused"
    monkeypatch.setattr(body, "_validate", lambda batch, text: None if not text else batch.validate(full=True))
    assert verdict(schema.to_ipc(batch.schema), garbled) == "refused"


def test_some_mutated_frames_have_the_rows_from_which_columns_are_validated_one_by_one() -> None:
    rows = {sample.name: decode(sample.frame).header.rows for sample in samples()}
    many = {name for name, n in rows.items() if n >= body._FEW_ROWS}
    assert many == {f"many {name}" for name in ("strings", "large", "lists", "structs", "maps")}


def test_a_dead_letter_holds_one_event() -> None:
    batch = pa.record_batch({"n": [1, 2]})

    assert body.read_event(stream_of(batch.slice(0, 1))).to_pylist() == [{"n": 1}]
    for wrong in (b"", b"no stream", stream_of(batch), stream_of(batch)[:-40]):
        with pytest.raises(ProtocolError):
            body.read_event(wrong)


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_nothing_else_of_the_product_makes_arrow_objects_of_bytes() -> None:
    found = {(path, name) for path in python_files() if path != "udo_protocol/formats/body.py" for name in decoders_in(path)}

    assert found == set()
    assert decoders_in("udo_protocol/formats/body.py") >= {"read_record_batch", "read_schema"}  # else this test would look for nothing


def python_files() -> Iterator[str]:
    for folder in PRODUCT:
        yield from (str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*.py"))


def decoders_in(path: str) -> set[str]:
    """The names of Arrow's decoders that a file uses, however it imports them."""
    used: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyarrow"):
            used.update(a.name for a in node.names)
    return used & DECODERS


def test_a_frame_is_given_the_number_of_its_events() -> None:
    assert decode(b"".join(map(bytes, encode(Header(), pa.record_batch({"n": [1, 2]}))))).header.rows == 2
