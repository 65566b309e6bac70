"""Decodes Arrow bytes from other processes; no other module does. The lengths in the batches that it returns can be trusted.

Arrow trusts a message's offsets and lengths, and reads whatever lies there. Therefore the message's own numbers are first
checked against its bytes, then every column is validated in full, and only then is anything returned.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from operator import add
from typing import Any

import pyarrow as pa

from udo_protocol.errors import ProtocolError
from udo_protocol.limits import BYTELESS_ROWS, NESTED_TYPES, SCHEMA_BYTES

_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<Ii")  # the start of an encapsulated message: continuation mark, size of the metadata
_INT, _UINT, _LONG, _VTABLE = (struct.Struct(form).unpack_from for form in ("<i", "<I", "<q", "<6H"))
_PAD = bytes(12)  # reading a vtable may go beyond its end
RECORD_BATCH = 3  # Arrow's MessageHeader
# Below this many rows, Arrow's own check of a whole batch is faster than ours column by column.
_FEW_ROWS = 512
# Text of up to this many bytes per value is checked faster in one piece than value by value (measured: benchmarks validation).
_SHORT_TEXT_BYTES = 64
_SAMPLE_BYTES = 512
_ARROW_ERRORS = (pa.ArrowException, OSError, EOFError, MemoryError, OverflowError, IndexError, struct.error)


def read(body: pa.Buffer, schema: pa.Schema, rows: int | None, *, text: bool = True, exact: bool = False) -> pa.RecordBatch:
    """The batch of `rows` rows (None: any number) in this record batch message. ProtocolError says what is wrong with it.

    Without `text`, UTF-8 is not checked: that is left to the code that makes Python strings of it. `exact` requires as many columns and
    buffers as the schema has: a batch message does not carry its schema, and Arrow ignores extra ones. It is for messages that user code
    wrote; columns of another type with the same number of buffers still pass.
    """
    try:
        mark, size = _PREFIX.unpack_from(body)
        if mark != _CONTINUATION or not 0 < size <= len(body) - _PREFIX.size:
            raise ProtocolError(f"expected an Arrow message, got {len(body)} bytes that do not start like one")
        _check_layout(body.slice(_PREFIX.size, size), len(body) - _PREFIX.size - size, rows, schema if exact else None)
        batch = pa.ipc.read_record_batch(body, schema)
        _validate(batch, text)
    except _ARROW_ERRORS as e:
        raise ProtocolError(f"{len(body)} bytes are no record batch of the announced schema: {e}") from e
    return batch


@cache
def _layout(types: tuple[pa.DataType, ...]) -> tuple[int, int]:
    """The numbers of columns (children included) and of buffers that a batch of these types has."""
    nodes, buffers = len(types), 0
    for t in types:
        buffers += 0 if pa.types.is_null(t) else t.num_buffers  # a null column has none, whatever num_buffers says
        below = _layout(tuple(t.field(i).type for i in range(t.num_fields)))
        nodes, buffers = nodes + below[0], buffers + below[1]
    return nodes, buffers


def read_schema(data: bytes | pa.Buffer) -> pa.Schema:
    """The schema in this message; ProtocolError if it has a type that frames do not carry."""
    if len(data) > SCHEMA_BYTES:
        raise ProtocolError(f"a schema of {len(data)} bytes; the bound is {SCHEMA_BYTES}")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except _ARROW_ERRORS as e:
        raise ProtocolError(f"{len(data)} bytes are no Arrow schema: {e}") from e
    _require_carried(schema)
    return schema


def read_stream(source: Any, *, text: bool = True) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of an IPC stream (a buffer, or an opened Arrow file); the batches are read lazily."""
    try:
        messages = pa.ipc.MessageReader.open_stream(source)
        first = messages.read_next_message()
        if len(first.metadata) > SCHEMA_BYTES:
            raise ProtocolError(f"a schema of {len(first.metadata)} bytes; the bound is {SCHEMA_BYTES}")
        schema = pa.ipc.read_schema(first)
    except (*_ARROW_ERRORS, StopIteration) as e:
        raise ProtocolError(f"expected an Arrow stream: {e or 'it is empty'}") from e
    _require_carried(schema)
    return schema, _batches(messages, schema, text)


def read_event(data: bytes) -> pa.RecordBatch:
    """The one row of the IPC stream in which a dead letter keeps its event; its text is not checked."""
    schema, batches = read_stream(pa.py_buffer(data), text=False)
    batch = next(batches, None)
    if batch is None or batch.num_rows != 1:
        raise ProtocolError(f"expected one event, got {0 if batch is None else batch.num_rows}")
    return batch


def read_file(source: Any) -> Any:
    """A reader of an IPC file; pass each of its batches to `validated`."""
    return pa.ipc.open_file(source)


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, if it is valid; pyarrow's ArrowInvalid says why not."""
    _validate(batch, text=True)
    return batch


def not_carried(t: pa.DataType, depth: int = 0) -> str:
    """The part of this type that frames do not carry; '' if they carry all of it.

    Views, dictionaries and run-end encoding let a few bytes stand for any number of values, and no frame needs them. Extension types
    run code of their own.
    """
    if depth > NESTED_TYPES:
        return f"types nested more than {NESTED_TYPES} deep"
    if not any(is_one(t) for is_one in _CARRIED):
        return str(t)
    for i in range(t.num_fields):
        try:
            _ = t.field(i).name
        except UnicodeDecodeError as e:
            return f"a field whose name is no text: {e}"
        if why := not_carried(t.field(i).type, depth + 1):
            return why
    return ""


_CARRIED = (
    *(pa.types.is_primitive, pa.types.is_decimal, pa.types.is_null),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_struct, pa.types.is_map),
)


def _require_carried(schema: pa.Schema) -> None:
    if why := not_carried(pa.struct(list(schema))):
        raise ProtocolError(f"the schema has a type that frames do not carry: {why:.200}")


def _batches(messages: Any, schema: pa.Schema, text: bool) -> Iterator[pa.RecordBatch]:
    try:
        for message in messages:
            _check_layout(message.metadata, len(message.body), None)
            batch = pa.ipc.read_record_batch(message, schema)
            _validate(batch, text)
            yield batch
    except _ARROW_ERRORS as e:
        raise ProtocolError(f"the Arrow stream is damaged: {e}") from e


# -- the message's own numbers ------------------------------------------------------------------------------------------


def _check_layout(meta: pa.Buffer, body_bytes: int, rows: int | None, schema: pa.Schema | None = None) -> None:
    """Check a record batch message: nothing lies outside its body, few bytes do not claim to be many rows, the columns are the schema's.

    Reads the flatbuffer unverified; Arrow verifies it later, and then both have read the same. This runs for every frame, hence members
    are read together rather than by name (their order: Arrow's Message.fbs).
    """
    data = bytes(meta) + _PAD
    message: int = _UINT(data)[0]
    _, kind, header, length = members(data, message)
    if not kind or data[kind] != RECORD_BATCH or not header:
        raise ProtocolError("expected a record batch, got an Arrow message of another kind")
    announced: int = _LONG(data, length)[0] if length else 0
    if announced != body_bytes:
        raise ProtocolError(f"expected {announced} bytes behind the Arrow metadata, got {body_bytes}: truncated or garbled")
    count, nodes, buffers, compression = members(data, header + _UINT(data, header)[0])
    if compression:
        raise ProtocolError("the record batch is compressed: frames carry uncompressed ones only")
    found: int = _LONG(data, count)[0] if count else 0
    if rows is not None and found != rows:
        raise ProtocolError(f"the record batch has {found} rows, its frame announces {rows}")
    most = 8 * body_bytes + BYTELESS_ROWS  # a value takes at least a bit, except in columns without bytes
    if not 0 <= found <= most:
        raise ProtocolError(f"{body_bytes} bytes cannot be {found} rows")
    lengths = numbers(data, nodes)  # number of values and of nulls of each column
    if lengths and not (min(lengths) >= 0 and max(lengths) <= most):
        raise ProtocolError(f"{body_bytes} bytes cannot be columns of these lengths: {lengths[::2]}")
    places = numbers(data, buffers)  # offset and length of each buffer
    if places and not (min(places) >= 0 and max(map(add, places[::2], places[1::2])) <= body_bytes):
        raise ProtocolError(f"columns lie outside of {body_bytes} bytes: {places}")
    if schema is not None and (got := (len(lengths) // 2, len(places) // 2)) != (wanted := _layout(tuple(schema.types))):
        raise ProtocolError(f"expected the {wanted[0]} columns (of {wanted[1]} buffers) of its schema, got {got[0]} (of {got[1]})")


def members(data: bytes, table: int) -> tuple[int, int, int, int]:
    """The positions of the first four members of a flatbuffer table; 0 for an absent one."""
    size, _, a, b, c, d = _VTABLE(data, table - _INT(data, table)[0])  # bytes beyond `size` are not members
    return (
        table + a if a and size > 4 else 0,
        table + b if b and size > 6 else 0,
        table + c if c and size > 8 else 0,
        table + d if d and size > 10 else 0,
    )


def numbers(data: bytes, vector: int) -> tuple[int, ...]:
    """All numbers of a vector of pairs of 64-bit numbers; () if there is no vector."""
    if not vector:
        return ()
    start = vector + _UINT(data, vector)[0]
    return struct.unpack_from(f"<{2 * _UINT(data, start)[0]}q", data, start + 4)


# -- the columns' values ------------------------------------------------------------------------------------------------


def _validate(batch: pa.RecordBatch, text: bool) -> None:
    """Raise ArrowInvalid unless `validate(full=True)` would pass; without `text`, treat all text as bytes."""
    if text and batch.num_rows < _FEW_ROWS or all(map(pa.types.is_primitive, batch.schema.types)):
        batch.validate(full=True)
        return
    for column in batch.columns:
        t = column.type
        bare = _bare(t)
        if bare is t or (text and (t.num_fields or not _looks_ascii(column))):
            column.validate(full=True)
            continue
        column.view(bare).validate(full=True)
        if text and not bytes(column.buffers()[2] or b"").isascii():  # ASCII is UTF-8 wherever its values begin and end
            column.validate(full=True)


def _looks_ascii(column: pa.Array) -> bool:
    """Whether values are short and the first ones ASCII: checking the whole buffer at once is then faster than checking each value."""
    values = column.buffers()[2]
    return values is None or (len(values) <= _SHORT_TEXT_BYTES * len(column) and bytes(values[:_SAMPLE_BYTES]).isascii())


def _bare(t: pa.DataType) -> pa.DataType:
    """The type with bytes in place of text; the same object if there is no text in it."""
    if pa.types.is_string(t):
        return pa.binary()
    if pa.types.is_large_string(t):
        return pa.large_binary()
    if not t.num_fields:
        return t
    fields = [t.field(i) for i in range(t.num_fields)]
    types = [_bare(f.type) for f in fields]
    if all(b is f.type for b, f in zip(types, fields, strict=True)):
        return t
    bare = [f.with_type(b) for f, b in zip(fields, types, strict=True)]
    if pa.types.is_struct(t):
        return pa.struct(bare)
    if pa.types.is_map(t):
        return pa.map_(bare[0].type.field(0), bare[0].type.field(1), t.keys_sorted)
    if pa.types.is_large_list(t):
        return pa.large_list(bare[0])
    return pa.list_(bare[0], t.list_size) if pa.types.is_fixed_size_list(t) else pa.list_(bare[0])
