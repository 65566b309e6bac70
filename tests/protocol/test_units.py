"""The parts of udo_protocol that do no I/O: schemas, frames, manifests, lifecycle tables, back-off, errors."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import bound
from udo_protocol import errors, lifecycle
from udo_protocol.clock import FakeClock, SteadyTime
from udo_protocol.formats import manifest, schema
from udo_protocol.queue import transport
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.frame import DATA, Header, decode, encode

TYPES = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "float",
    "double",
    "bool",
    "string",
    "large_string",
    "binary",
    "date32[day]",
    "timestamp[us]",
    "timestamp[ms, tz=UTC]",
    "decimal128(10, 2)",
    "list<string>",
    "struct<a: int64, b: list<double>>",
    "map<string, int64>",
]


@pytest.mark.parametrize("text", TYPES)
def test_a_type_reads_back_as_it_was_written(text: str) -> None:
    parsed = schema.parse_type(text)
    assert schema.parse_type(schema.type_text(parsed)) == parsed


@pytest.mark.parametrize("text", ["", "int65", "list<", "struct<a>", "map<string>", "timestamp[h]"])
def test_an_unknown_type_is_named(text: str) -> None:
    with pytest.raises(errors.SchemaError, match="expected"):
        schema.parse_type(text)


@pytest.mark.parametrize(
    ("have", "want", "fits"),
    [
        ("int16", "int64", True),
        ("int64", "int16", False),
        ("int32", "double", True),
        ("int64", "double", False),
        ("float", "double", True),
        ("uint16", "int32", True),
        ("uint32", "int32", False),
        ("string", "large_string", True),
        ("string", "int64", False),
        ("timestamp[ms]", "timestamp[us]", True),
        ("timestamp[ns]", "timestamp[us]", False),
        ("timestamp[us, tz=UTC]", "timestamp[us]", False),
        ("decimal128(8, 2)", "decimal128(10, 2)", True),
        ("decimal128(10, 2)", "decimal128(10, 4)", False),
        ("list<int16>", "list<int32>", True),
        ("struct<a: int16>", "struct<a: int32>", True),
        ("struct<a: int16>", "struct<b: int16>", False),
        ("map<string, int8>", "map<string, int16>", True),
        ("null", "string", True),
    ],
)
def test_widening_is_safe_only(have: str, want: str, fits: bool) -> None:
    assert schema.widens(schema.parse_type(have), schema.parse_type(want)) is fits


def test_misfits_name_the_column_what_was_expected_and_what_came() -> None:
    have, want = schema.parse_schema({"a": "string", "x": "int64"}), schema.parse_schema({"a": "int64", "b": "double"})
    with pytest.raises(errors.SchemaError) as e:
        schema.require_fit(have, want, "fraud@1", "Rename a column.")
    text = str(e.value)
    assert "column 'a': expected int64, got string" in text
    assert "column 'b' (double) is missing; there are: a, x" in text
    assert text.endswith("Rename a column.")


def test_an_update_may_need_less_and_answer_more_but_not_the_reverse() -> None:
    small, large = schema.parse_schema({"a": "int64"}), schema.parse_schema({"a": "int64", "b": "int64"})
    assert schema.update_misfits(large, small, small, large) == []
    assert len(schema.update_misfits(small, large, large, small)) == 2


def test_conform_selects_by_name_and_widens() -> None:
    batch = pa.record_batch({"x": pa.array(["a"]), "n": pa.array([1], pa.int16())})
    want = pa.schema([("n", pa.int64())])
    assert schema.conform(batch, want).equals(pa.record_batch({"n": [1]}))
    assert schema.conform(same := pa.record_batch({"n": [1]}), want) is same


@pytest.mark.parametrize("kind", ["timestamp[{}]", "list<timestamp[{}]>", "struct<t: timestamp[{}]>"])
def test_a_time_beyond_the_range_of_a_finer_unit_is_an_error_that_names_the_column(kind: str) -> None:
    year_3000 = 32_503_680_000
    value = {"timestamp[{}]": year_3000, "list<timestamp[{}]>": [year_3000]}.get(kind, {"t": year_3000})
    batch = pa.record_batch([pa.array([value], schema.parse_type(kind.format("s")))], ["at"])
    want = schema.parse_schema({"at": kind.format("ns")})
    assert schema.misfits(batch.schema, want) == []
    with pytest.raises(errors.ProtocolError, match=r"column 'at': expected .*ns.*1678 to 2261.*32503680000"):
        schema.conform(batch, want)


@given(lane=st.text(max_size=40), number=st.integers(0, 2**63), trace=st.binary(max_size=20), values=st.lists(st.integers(-(2**62), 2**62)))
def test_a_frame_reads_back_as_it_was_written(lane: str, number: int, trace: bytes, values: list[int]) -> None:
    batch = pa.record_batch({"v": pa.array(values, pa.int64())})
    header = Header(lane=lane, number=number, kind=DATA, trace=trace, rows=len(values))
    frame = decode(b"".join(bytes(p) for p in encode(header, batch)))
    assert frame.header == header
    assert frame.batch(batch.schema).equals(batch)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_frame_or_a_protocol_error(data: bytes) -> None:
    try:
        decode(data)
    except errors.ProtocolError as e:
        assert str(e)


@given(cut=st.integers(1, 100), position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_damaged_frame_never_passes_as_a_crash(cut: int, position: int, flip: int) -> None:
    batch = pa.record_batch({"v": [1, 2, 3]})
    good = bytearray(b"".join(bytes(p) for p in encode(Header(lane="l", number=1, kind=DATA), batch)))
    with pytest.raises(errors.ProtocolError):
        decode(good[:-cut])
    good[position % len(good)] ^= flip
    try:
        decode(bytes(good)).batch(batch.schema)
    except errors.ProtocolError as e:
        assert str(e)


GOOD = {"name": "fraud", "version": "1", "entry": "op:flag", "input": {"a": "int64"}, "output": {"b": "int64"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "No Spaces"}, "name"),
        ({"entry": "flag"}, "entry"),
        ({"input": {}}, "input"),
        ({"output": {"b": "int65"}}, "unknown column type 'int65'"),
        ({"runtime": "cobol"}, "runtime"),
        ({"limits": {"memory_mb": 1}}, "limits.memory_mb"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_malformed_manifest_lists_the_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(errors.ManifestError, match="not a valid operator manifest") as e:
        manifest.parse({**GOOD, **change}, "operator.toml")
    assert message in str(e.value)


def test_a_manifest_that_is_missing_or_no_toml_says_so(tmp_path: Path) -> None:
    with pytest.raises(errors.ManifestError, match="udo init"):
        manifest.load(tmp_path)
    (tmp_path / "operator.toml").write_text("name = ")
    with pytest.raises(errors.ManifestError, match="not valid TOML"):
        manifest.load(tmp_path)


def test_a_lifecycle_moves_only_as_its_table_allows() -> None:
    life = lifecycle.Lifecycle(lifecycle.INSTANCE, "starting", "instance i1")
    for state in ("loading", "standby", "owner", "leaving", "stopped"):
        life.move(state)
    assert life.final
    with pytest.raises(errors.Conflict, match="instance i1 is stopped: it may become nothing, not owner"):
        life.move("owner")


@pytest.mark.parametrize(("table", "page"), [(lifecycle.INSTANCE, "instances.md"), (lifecycle.UPDATE, "updates.md")])
def test_every_lifecycle_table_is_closed_and_its_diagram_stands_in_the_docs(table: dict[str, tuple[str, ...]], page: str) -> None:
    assert {n for nexts in table.values() for n in nexts} <= set(table)
    docs = Path(__file__).parents[2] / "docs" / "design" / page
    assert lifecycle.diagram(table) in docs.read_text("utf-8")


def test_back_off_grows_linearly_to_its_ceiling_and_starts_again_after_an_event() -> None:
    clock = FakeClock()
    backoff = LinearBackoff(20, 50, clock)
    while not backoff.at_ceiling:
        backoff.pause()
    assert [round(s * 1e6) for s in clock.slept] == [20, 40]
    backoff.pause()
    assert backoff.pause_us == 50
    backoff.reset()
    backoff.pause()
    assert backoff.pause_us == 20
    with pytest.raises(ValueError, match="above 0"):
        LinearBackoff(0, 10)


def test_an_error_keeps_its_class_across_a_wire() -> None:
    for cls in (errors.SchemaError, errors.NotFound, errors.ServerLost, errors.OperatorError, errors.Unavailable, errors.SlotsAway):
        assert type(errors.by_code(cls.code, "x")) is cls
    assert type(errors.by_code("of the future", "x")) is errors.UdoError


def test_a_server_that_still_reads_its_file_counts_as_away() -> None:
    """It refuses every command with LOADING while it reads its append-only file, which may be large."""
    with tempfile.TemporaryDirectory(prefix="udo-") as name, socket.socket(socket.AF_UNIX) as listener:
        path = f"{name}/s"
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"$12\r\nrun_id:abc\r\n\r\n")
                peer.recv(1000)
                peer.sendall(b"-LOADING Valkey is loading the dataset in memory\r\n")

        thread = Thread(target=serve)
        thread.start()
        conn = Connection(path, timeout_s=bound(10))
        assert conn.run_id == "abc"
        with pytest.raises(errors.ServerLost, match="still reading its file"):
            conn.call("GET", "k")
        thread.join(bound(10))


def test_steady_time_follows_the_clock_but_not_its_jumps() -> None:
    shown, passed = [1000.0], [0.0]
    now = SteadyTime(lambda: shown[0], lambda: passed[0])

    def after(seconds: float, ahead: float = 0.0) -> float:
        passed[0] += seconds
        shown[0] += seconds + ahead
        return now()

    assert after(10) == 1010
    assert after(1, ahead=0.01) == pytest.approx(1011.01)  # as when the clock is corrected gradually
    assert after(10, ahead=1200) == pytest.approx(1022.01)  # 11 s in 10 s
    assert after(0, ahead=-2400) == pytest.approx(1022.01)
    assert after(10) == pytest.approx(1031.01)  # 9 s in 10 s: it never goes back
    assert after(100_000) == pytest.approx(shown[0])


def test_a_usual_frame_is_taken_whole_by_a_unix_socket_whose_server_does_not_read(tmp_path: Path) -> None:
    frame = bytes(10_000 * 32 + 500)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        stream = transport.connect(str(tmp_path / "s"), 0.2)
        try:
            assert stream.sendmsg([memoryview(frame)]) == len(frame)
        finally:
            stream.close()
