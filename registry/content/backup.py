"""A backup of the registry: one tar archive of all rows at one commit, and of the image files that they name.

    registry.json            {format, revision of the tables, registry, made_at}
    tables/NAME.jsonl        one row per line, secrets included
    blobs/ALGORITHM/HEX      each file once
    complete.json            {rows, blobs}: without it the archive was cut off

Nodes and their last reports are left out: they report again. Tokens and keys are not part of it.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.orm import Session

from registry.store import identity
from registry.store.blobs import Blobs
from registry.store.models import Base, Node, NodeState
from udo_protocol.errors import Unavailable

FORMAT = 1
_OMITTED = {Node.__tablename__, NodeState.__tablename__}
_PIECE = 1 << 20


def tables() -> list[Table]:
    """The tables to back up, referenced ones first."""
    return [table for table in Base.metadata.sorted_tables if table.name not in _OMITTED]


def rows(session: Session, revision: str, now: float) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """(content of registry.json, rows of each table), read while nobody writes."""
    head = {"format": FORMAT, "revision": revision, "registry": identity.stored(session), "made_at": now}
    return head, {table.name: [dict(row) for row in session.execute(select(table)).mappings()] for table in tables()}


def archive(head: dict[str, Any], stored: dict[str, list[dict[str, Any]]], blobs: Blobs) -> Iterator[bytes]:
    """The archive, piece by piece. Unavailable if an image was deleted, and its files collected, meanwhile."""
    yield from _entry("registry.json", json.dumps(head).encode())
    for name, found in stored.items():
        yield from _entry(f"tables/{name}.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in found))
    digests = sorted({row["digest"] for name in ("manifests", "repository_blobs") for row in stored[name]})
    for digest in digests:
        yield from _file(f"blobs/{digest.replace(':', '/')}", digest, blobs.path(digest))
    total = {"rows": sum(map(len, stored.values())), "blobs": len(digests)}
    yield from _entry("complete.json", json.dumps(total).encode())
    yield bytes(2 * tarfile.BLOCKSIZE)


def _head(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.PAX_FORMAT)


def _entry(name: str, data: bytes) -> Iterator[bytes]:
    yield _head(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _file(name: str, digest: str, path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise Unavailable(f"blob {digest} was deleted while the backup was made; make it again") from None
    with file:
        size = left = file.seek(0, 2)
        file.seek(0)
        yield _head(name, size)
        while left and (piece := file.read(min(_PIECE, left))):
            left -= len(piece)
            yield piece
        if left:
            raise Unavailable(f"blob {digest}: {left} bytes could not be read")
    yield bytes(-size % tarfile.BLOCKSIZE)
