"""Cases: every Arrow type that a Spark schema can carry, and unsigned integers, through batches and event by event; batches of every shape;
other columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from udo_cli.conformance.cases import Open, case
from udo_cli.conformance.player import AnsweredFailure, Mismatch, Player, require
from udo_cli.conformance.schemas import EVENTS, N, events

_DAY = dt.date(2024, 2, 29)
_TIME = dt.datetime(2024, 2, 29, 23, 59, 59, 999_999)
_OLD = dt.datetime(1583, 1, 1)
_TEXT = ["", "a", "üß€", "日本語", "👩‍👩‍👧", "e\u0301", "\x00\x7f", "x" * 100_000, "\ufeffa"]
_FLOATS = [0.0, -0.0, 1.5, -1e300, float("inf"), float("-inf"), float("nan"), 5e-324]
# Values of this length and more are left out of the case with many rows.
_LONG = 1_000
_POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])

Columns = dict[str, tuple[pa.DataType, Sequence[Any]]]
GROUPS: dict[str, Columns] = {
    "integers and booleans": {
        "i8": (pa.int8(), [0, -128, 127]),
        "i16": (pa.int16(), [0, -(2**15), 2**15 - 1]),
        "i32": (pa.int32(), [0, -(2**31), 2**31 - 1]),
        "i64": (pa.int64(), [0, -(2**63), 2**63 - 1, 2**53 + 1]),
        "b": (pa.bool_(), [True, False]),
    },
    "unsigned integers": {
        "u8": (pa.uint8(), [0, 2**8 - 1]),
        "u16": (pa.uint16(), [0, 2**16 - 1]),
        "u32": (pa.uint32(), [0, 2**32 - 1]),
        "u64": (pa.uint64(), [0, 2**53 + 1, 2**64 - 1]),
    },
    "floats with NaN, infinities and -0.0": {
        "f32": (pa.float32(), [0.0, -0.0, 1.5, float("inf"), float("nan")]),
        "f64": (pa.float64(), _FLOATS),
    },
    "text and binary": {
        "text": (pa.string(), _TEXT),
        "large": (pa.large_string(), _TEXT),
        "binary": (pa.binary(), [b"", b"\x00\xff", b"x" * 100_000]),
        "large_binary": (pa.large_binary(), [b"", b"\x00\xff"]),
    },
    "decimals": {
        "money": (pa.decimal128(10, 2), [Decimal("0.00"), Decimal("-12.50"), Decimal("99999999.99")]),
        "whole": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1 - 10**38)]),
        "fine": (pa.decimal128(38, 38), [Decimal("0." + "9" * 38)]),
    },
    "dates and times, with and without zone": {
        "date": (pa.date32(), [_DAY, dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
        "naive": (pa.timestamp("us"), [_TIME, _OLD]),
        "utc": (pa.timestamp("us", "UTC"), [_TIME, _OLD]),
        "berlin": (pa.timestamp("us", "Europe/Berlin"), [_TIME, _OLD]),
        "lasted": (pa.duration("us"), [dt.timedelta(days=-1, microseconds=1), dt.timedelta(0)]),
    },
    "lists, structs and maps": {
        "list": (pa.list_(pa.int64()), [[], [1, None, 3]]),
        "texts": (pa.list_(pa.string()), [["ü", None], []]),
        "struct": (_POINT, [{"x": 1, "y": "a"}, {"x": None, "y": None}]),
        "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("b", None)]]),
        "deep": (pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(_POINT)))])), [[{"m": [("k", [{"x": 1, "y": "ü"}, None])]}], []]),
    },
}


def _batch(columns: Columns, schema: pa.Schema) -> pa.RecordBatch:
    """All values, each followed by a null; shorter columns are repeated."""
    rows = 2 * max(len(values) for _, values in columns.values())
    arrays = [pa.array([values[i // 2 % len(values)] if i % 2 == 0 else None for i in range(rows)], t) for t, values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _shapes(batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    rows, schema = batch.num_rows, batch.schema
    return {
        "values and nulls": batch,
        "no rows": batch.slice(0, 0),
        "one row": batch.slice(0, 1),
        "a slice": batch.slice(1, rows - 2),
        "only nulls": pa.RecordBatch.from_arrays([pa.nulls(3, t) for t in schema.types], schema=schema),
    }


def _same(what: str, sent: pa.RecordBatch, got: pa.RecordBatch) -> None:
    require(f"{what}: rows", sent.num_rows, got.num_rows)
    for name, a, b in zip(sent.schema.names, sent.columns, got.columns, strict=True):
        if not _bits(a).equals(_bits(b)):
            row = next((i for i in range(len(a)) if not _bits(a.slice(i, 1)).equals(_bits(b.slice(i, 1)))), 0)
            raise Mismatch(f"{what}: column {name} ({a.type}), row {row}: expected {_shown(a, row)}, got {_shown(b, row)}")


def _bits(column: pa.Array) -> pa.Array:
    """Floats as their bits, so that NaNs compare equal, each as the same NaN; other columns unchanged."""
    if not pa.types.is_floating(column.type):
        return column
    one = pa.array([float("nan") if v is not None and v != v else v for v in column.to_pylist()], column.type)
    return one.view(pa.int32() if pa.types.is_float32(column.type) else pa.int64())


def _shown(column: pa.Array, row: int) -> str:
    return f"{column.slice(row, 1)[0]!s:.60}"


def _forwarded(p: Player, batch: pa.RecordBatch) -> None:
    for what, sent in _shapes(batch).items():
        _same(what, sent, p.data(sent))


def _enter(name: str, columns: Columns) -> None:
    schema = pa.schema([(column, t) for column, (t, _) in columns.items()])

    @case("types", f"{name}: in batches")
    def forward(open_: Open) -> None:
        with open_("forward", (schema, schema)) as p:
            _forwarded(p, _batch(columns, schema))

    @case("types", f"{name}: event by event")
    def each(open_: Open) -> None:
        with open_("each", (schema, schema)) as p:
            _forwarded(p, _batch(columns, schema))


for _name, _columns in GROUPS.items():
    _enter(_name, _columns)


@case("types", "columns without values (null): in batches")
def nulls(open_: Open) -> None:
    _nulls(open_, "forward")


@case("types", "columns without values (null): event by event")
def nulls_each(open_: Open) -> None:
    _nulls(open_, "each")


def _nulls(open_: Open, role: str) -> None:
    schema = pa.schema([("nothing", pa.null()), ("n", pa.int64())])
    with open_(role, (schema, schema)) as p:
        sent = pa.RecordBatch.from_arrays([pa.nulls(3), pa.array([1, None, 3])], schema=schema)
        _same("nulls", sent, p.data(sent))


@case("types", "10,000 rows of all types: event by event")
def many(open_: Open) -> None:
    columns: Columns = {"null": (pa.null(), [None])}
    for name, (t, values) in (column for group in GROUPS.values() for column in group.items()):
        columns[name] = t, [v for v in values if not isinstance(v, (str, bytes)) or len(v) < _LONG]
    schema = pa.schema([(name, t) for name, (t, _) in columns.items()])
    some = _batch(columns, schema)
    [sent] = pa.Table.from_batches([some] * (10_000 // some.num_rows + 1)).slice(1, 10_000).combine_chunks().to_batches()
    with open_("each", (schema, schema)) as p:
        _same("many", sent, p.data(sent))


@case("types", "a batch of 100,000 rows")
def large(open_: Open) -> None:
    with open_("forward", (N, N)) as p:
        sent = pa.RecordBatch.from_arrays([pa.array(range(100_000), pa.int64())], schema=N)
        _same("rows", sent, p.data(sent))


@case("types", "a map with a key twice, or with the key -0.0, is a Failure or answered as it came: event by event")
def keys_of_maps(open_: Open) -> None:
    keys: dict[str, tuple[pa.DataType, list[Any]]] = {"a key twice": (pa.string(), ["a", "a", "b"]), "-0.0": (pa.float64(), [-0.0, 0.5])}
    for what, (t, found) in keys.items():
        maps = pa.array([[(key, n) for n, key in enumerate(found)], [(found[-1], 7)]], pa.map_(t, pa.int64()))
        sent = pa.RecordBatch.from_arrays([maps], ["m"])
        with open_("each", (sent.schema, sent.schema)) as p:
            try:
                got = p.data(sent)
                _same(what, sent, got)
                _same(what, *(pa.RecordBatch.from_arrays([batch.column(0).keys], ["key"]) for batch in (sent, got)))  # by their bits
            except AnsweredFailure:
                pass
            _same(f"after {what}", sent.slice(1), p.data(sent.slice(1)))


@case("schema", "an answer with other columns than the output schema is a Failure of code schema")
def other_columns(open_: Open) -> None:
    other = pa.schema([("n", pa.int64()), ("m", pa.string())])
    for output in (other, EVENTS, pa.schema([("n", pa.float64())]), pa.schema([("other", pa.int64())])):
        with open_("forward", (N, output)) as p:
            failure = p.fails(pa.RecordBatch.from_pydict({"n": [1]}, schema=N))
            require(f"the code for {output.names}", "schema", failure.code)
    pair, swapped = (pa.struct([(name, pa.int64()) for name in names]) for names in ("ab", "ba"))
    sent = pa.RecordBatch.from_pydict({"p": pa.array([{"a": 1, "b": 2}], pair)})
    for role in ("forward", "each"):  # the names of a struct's fields count, not their places
        with open_(role, (sent.schema, pa.schema([("p", swapped)]))) as p:
            try:
                require(f"{role}: a struct with its fields in another order", sent.to_pylist(), p.data(sent).to_pylist())
            except AnsweredFailure as e:
                require(f"{role}: the code for a struct with its fields in another order", "schema", e.failure.code)


@case("schema", "a value of another type in an answered event is a Failure of code schema, and it goes on")
def other_type(open_: Open) -> None:
    with open_("events", (EVENTS, N)) as p:
        require("the code", "schema", p.fails(events(("add", 1), ("wrong", 1))).code)
        require("the next answer", [2], p.data(events(("add", 1))).column(0).to_pylist())


@case("schema", "an integer beyond 2^53 answered in a column of doubles is a Failure of code schema")
def rounded(open_: Open) -> None:
    with open_("events", (EVENTS, pa.schema([("n", pa.float64())]))) as p:
        require("the code", "schema", p.fails(events(("add", 2**53))).code)


@case("schema", "a text of 2,000,000 characters answered in a column of integers is a Failure of code schema, and it goes on")
def long_text(open_: Open) -> None:
    text = pa.schema([("n", pa.string())])
    with open_("each", (text, N)) as p:
        require("the code", "schema", p.fails(pa.RecordBatch.from_pydict({"n": ["x" * 2_000_000]}, schema=text)).code)
        require("the next answer", [None], p.data(pa.RecordBatch.from_pydict({"n": [None]}, schema=text)).column(0).to_pylist())


@case("schema", "a number beyond its column is a Failure of code schema, and it goes on")
def beyond(open_: Open) -> None:
    with open_("events", (EVENTS, pa.schema([("n", pa.int8())]))) as p:
        require("the code", "schema", p.fails(events(("add", 1), ("add", 299))).code)
        require("the next answer", [127], p.data(events(("add", 126))).column(0).to_pylist())
