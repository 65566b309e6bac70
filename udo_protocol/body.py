"""Arrow bytes that came from somebody else, and the only place that decodes them: whoever gets a batch here may trust its lengths.

Arrow believes what a message says about offsets and lengths, and reads whatever lies there. So first the message's own numbers
are held against its bytes, then every column is validated in full, and only then is anything handed out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from udo_protocol.errors import ProtocolError
from udo_protocol.limits import BYTELESS_ROWS, NESTED_TYPES, SCHEMA_BYTES

_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<Ii")  # of an encapsulated message: continuation mark, size of the metadata
_INT, _UINT, _SHORT, _LONG, _PAIR = (struct.Struct(f"<{c}") for c in ("i", "I", "H", "q", "qq"))
# Arrow's Message.fbs: members by their number, and the number of a record batch among the headers.
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _RECORD_BATCH = 1, 2, 3, 3
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
# Below this many rows Arrow's own check of a whole batch is faster than ours column by column.
_FEW_ROWS = 512
# Text of up to this many bytes a value is checked faster in one piece than value by value (measured: benchmarks validation).
_SHORT_TEXT_BYTES = 64
_ARROW_ERRORS = (pa.ArrowException, OSError, EOFError, MemoryError, OverflowError, IndexError, struct.error)


def read(body: pa.Buffer, schema: pa.Schema, rows: int, *, text: bool = True) -> pa.RecordBatch:
    """The batch of `rows` rows in this record batch message. ProtocolError says what is wrong with it.

    Without `text`, whether text is UTF-8 is left to who makes Python strings of it.
    """
    try:
        mark, size = _PREFIX.unpack_from(body)
        if mark != _CONTINUATION or not 0 < size <= len(body) - _PREFIX.size:
            raise ProtocolError(f"expected an Arrow message, got {len(body)} bytes that do not begin as one")
        _check_layout(body.slice(_PREFIX.size, size), len(body) - _PREFIX.size - size, rows)
        batch = pa.ipc.read_record_batch(body, schema)
        _validate(batch, text)
    except _ARROW_ERRORS as e:
        raise ProtocolError(f"{len(body)} bytes are no record batch of the announced schema: {e}") from e
    return batch


def read_schema(data: bytes | pa.Buffer) -> pa.Schema:
    """The schema of this message, if all its types are such as frames carry."""
    if len(data) > SCHEMA_BYTES:
        raise ProtocolError(f"a schema of {len(data)} bytes; the bound is {SCHEMA_BYTES}")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except _ARROW_ERRORS as e:
        raise ProtocolError(f"{len(data)} bytes are no Arrow schema: {e}") from e
    _require_carried(schema)
    return schema


def read_stream(source: Any, *, text: bool = True) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of an IPC stream (a buffer, or an opened Arrow file); the batches are read as they are asked for."""
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
    """The one row of the IPC stream in which a dead letter keeps its event; its text is as it came."""
    schema, batches = read_stream(pa.py_buffer(data), text=False)
    batch = next(batches, None)
    if batch is None or batch.num_rows != 1:
        raise ProtocolError(f"expected one event, got {0 if batch is None else batch.num_rows}")
    return batch


def read_file(source: Any) -> Any:
    """A reader of an IPC file; `validated` is for each of its batches."""
    return pa.ipc.open_file(source)


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, if it is one; pyarrow's ArrowInvalid says why not."""
    _validate(batch, text=True)
    return batch


def not_carried(t: pa.DataType, depth: int = 0) -> str:
    """What in this type keeps it out of frames; '' if nothing does.

    Views, dictionaries and runs let a few bytes stand for any number of values, and no frame needs them. Extension types run
    code of their own.
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


def _check_layout(meta: pa.Buffer, body_bytes: int, rows: int | None) -> None:
    """Of a record batch message: nothing lies outside of its body, and no few bytes claim to be many rows.

    Reads the flatbuffer as it stands; Arrow verifies later that it is one, and then both have read the same.
    """
    data = memoryview(meta)
    message: int = _UINT.unpack_from(data)[0]
    kind, header, length = (_member(data, message, n) for n in (_HEADER_TYPE, _HEADER, _BODY_LENGTH))
    if not kind or data[kind] != _RECORD_BATCH or not header:
        raise ProtocolError("expected a record batch, got an Arrow message of another kind")
    announced: int = _LONG.unpack_from(data, length)[0] if length else 0
    if announced != body_bytes:
        raise ProtocolError(f"expected {announced} bytes behind the Arrow metadata, got {body_bytes}: truncated or garbled")
    batch = header + _UINT.unpack_from(data, header)[0]
    if _member(data, batch, _COMPRESSION):
        raise ProtocolError("the record batch is compressed: frames carry uncompressed ones only")
    at = _member(data, batch, _LENGTH)
    count: int = _LONG.unpack_from(data, at)[0] if at else 0
    if rows is not None and count != rows:
        raise ProtocolError(f"the record batch has {count} rows, its frame announces {rows}")
    most = 8 * body_bytes + BYTELESS_ROWS  # a value takes a bit at least, except in columns that take none
    if not 0 <= count <= most:
        raise ProtocolError(f"{body_bytes} bytes cannot be {count} rows")
    for length, nulls in _pairs(data, batch, _NODES):
        if not 0 <= nulls <= length <= most:
            raise ProtocolError(f"a column claims {length} values, {nulls} of them null, in {body_bytes} bytes")
    for offset, length in _pairs(data, batch, _BUFFERS):
        if offset < 0 or length < 0 or offset + length > body_bytes:
            raise ProtocolError(f"a column claims the bytes {offset} to {offset + length} of {body_bytes}")


def _member(data: memoryview, table: int, number: int) -> int:
    """Where a member of the table lies, 0 if it is absent."""
    vtable = table - _INT.unpack_from(data, table)[0]
    at = 4 + 2 * number
    if at >= _SHORT.unpack_from(data, vtable)[0]:
        return 0
    offset: int = _SHORT.unpack_from(data, vtable + at)[0]
    return table + offset if offset else 0


def _pairs(data: memoryview, table: int, number: int) -> Iterator[tuple[Any, ...]]:
    """The elements of a vector of pairs of 64-bit numbers."""
    at = _member(data, table, number)
    if not at:
        return iter(())
    start = at + _UINT.unpack_from(data, at)[0]
    count = _UINT.unpack_from(data, start)[0]
    return _PAIR.iter_unpack(data[start + 4 : start + 4 + _PAIR.size * count])


# -- the columns' values ------------------------------------------------------------------------------------------------


def _validate(batch: pa.RecordBatch, text: bool) -> None:
    """Raise ArrowInvalid unless `validate(full=True)` would pass; without `text` as if all text were bytes."""
    if text and batch.num_rows < _FEW_ROWS:
        batch.validate(full=True)
        return
    for column in batch.columns:
        t = column.type
        bare = _bare(t)
        if bare is t or (text and t.num_fields):
            column.validate(full=True)
            continue
        column.view(bare).validate(full=True)
        if text and not _is_ascii(column):
            column.validate(full=True)


def _is_ascii(column: pa.Array) -> bool:
    """Whether that is quickly found out of a text column: then it is UTF-8, wherever its values begin and end."""
    values = column.buffers()[2]
    return values is None or (len(values) <= _SHORT_TEXT_BYTES * len(column) and bytes(values).isascii())


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
