"""Tells whether a program is statically linked, so that it needs no file of the system it runs on. The program is somebody else's: nothing
in it is trusted, and it is not run."""

from __future__ import annotations

import struct
from pathlib import Path

# A 64-bit little-endian ELF file: where its header says where its program headers are, how large and how many.
_MAGIC, _HEADER_BYTES = b"\x7fELF\x02\x01", 64
_TABLE, _ENTRIES = struct.Struct("<32xQ"), struct.Struct("<54xHH")
_ENTRY_BYTES, _PT_INTERP = 56, 3


def static(program: Path) -> bool:
    """Whether it is an ELF program that names no loader, as `CGO_ENABLED=0 go build` makes it. False for all else, and if unreadable."""
    try:
        with program.open("rb") as f:
            header = f.read(_HEADER_BYTES)
            if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
                return False
            (table,), (size, count) = _TABLE.unpack_from(header), _ENTRIES.unpack_from(header)
            f.seek(table)
            entries = f.read(_ENTRY_BYTES * count)
    except (OSError, ValueError, OverflowError):
        return False
    whole = size == _ENTRY_BYTES and len(entries) == _ENTRY_BYTES * count > 0
    return whole and all(struct.unpack_from("<I", entries, n)[0] != _PT_INTERP for n in range(0, len(entries), _ENTRY_BYTES))
