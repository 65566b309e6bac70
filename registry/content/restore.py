"""Replace the contents of a registry by a backup: first write its files beside the others, then put all rows and files in one commit.

The registry has another number afterwards, and continues at a generation that it never had: nodes, which compare it with the last one they
know, take the wanted state as new.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sqlalchemy import BigInteger, Integer, delete, func, insert, select, text
from sqlalchemy.orm import Session

from registry.content.backup import FORMAT, tables
from registry.domain import plans
from registry.domain.audit import Caller, record
from registry.store import identity
from registry.store.blobs import Blobs
from registry.store.models import Deployment, Setting, StoredManifest
from udo_protocol.errors import Conflict, UsageError

# More changes than anybody makes between a backup and its restore.
_AHEAD = 1_000_000
_PIECE = 1 << 20
_WHAT = "expected a file made by: udo registry backup"


@dataclass(frozen=True)
class Unpacked:
    """A whole and sound backup: its rows in memory, its files in a folder under their digests."""

    head: dict[str, Any]
    rows: dict[str, list[dict[str, Any]]]
    files: dict[str, Path]


@contextmanager
def unpacked(stream: IO[bytes], folder: Path) -> Iterator[Unpacked]:
    """Read a backup from `stream`; its files are removed at the end unless taken. UsageError if it is not a backup, or incomplete."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="restore-") as place:
        documents, files = dict[str, bytes](), dict[str, Path]()
        try:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    content = tar.extractfile(member)
                    if content is None:
                        raise UsageError(f"entry {member.name!r:.200} is no file; {_WHAT}")
                    if member.name.startswith("blobs/"):
                        digest = member.name.removeprefix("blobs/").replace("/", ":", 1)
                        files[digest] = _kept(content, digest, Path(place) / str(len(files)))
                    else:
                        documents[member.name] = content.read()
        except tarfile.TarError as e:
            raise UsageError(f"this is no backup, or only its beginning ({e}); {_WHAT}") from e
        yield _checked(documents, files)


def _kept(content: IO[bytes], digest: str, path: Path) -> Path:
    algorithm = digest.partition(":")[0]
    if algorithm not in ("sha256", "sha512"):
        raise UsageError(f"entry of digest {digest!r:.200}; {_WHAT}")
    sha = hashlib.new(algorithm)
    with path.open("wb") as file:
        while piece := content.read(_PIECE):
            sha.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    if f"{algorithm}:{sha.hexdigest()}" != digest:
        raise UsageError(f"blob {digest} of the backup has digest {algorithm}:{sha.hexdigest()}: the file is damaged, nothing was changed")
    return path


def _checked(documents: dict[str, bytes], files: dict[str, Path]) -> Unpacked:
    try:
        head, complete = json.loads(documents["registry.json"]), json.loads(documents["complete.json"])
        known = {table.name: set(table.columns.keys()) for table in tables()}
        stored = {
            name.removeprefix("tables/").removesuffix(".jsonl"): [json.loads(line) for line in data.splitlines()]
            for name, data in documents.items()
            if name.startswith("tables/")
        }
        form = head["format"]
        whole = complete == {"rows": sum(map(len, stored.values())), "blobs": len(files)}
    except (KeyError, ValueError, TypeError, AttributeError) as e:
        raise UsageError(f"this is no backup, or only its beginning (no {e}); {_WHAT}") from e
    if form != FORMAT:
        raise UsageError(f"the backup has format {form}, this release reads {FORMAT}: restore it with the release that made it")
    if not whole:
        raise UsageError(f"the backup says it has {complete}, but has other numbers of rows and blobs: it is damaged, nothing was changed")
    if wrong := [name for name in stored if name not in known or any(set(row) != known[name] for row in stored[name])]:
        raise UsageError(f"the backup's tables {', '.join(sorted(wrong))} are not those of this release (revision {head.get('revision')})")
    return Unpacked(head, stored, files)


def put(session: Session, blobs: Blobs, folder: Path, caller: Caller, backup: Unpacked, revision: str, *, replace: bool) -> dict[str, Any]:
    """Restore in one commit; returns a summary. Conflict if the registry is not empty, unless `replace`."""
    if backup.head["revision"] != revision:
        raise UsageError(
            f"the backup has tables of revision {backup.head['revision']}, this registry of {revision}: restore it with the release "
            "that made it, then start this one"
        )
    count = {name: session.scalar(select(func.count()).select_from(model)) or 0 for name, model in _HAS.items()}
    if any(count.values()) and not replace:
        has = ", ".join(f"{n} {name}" for name, n in count.items())
        raise Conflict(f"this registry is not empty ({has}): give a new one, or replace all it has (--replace)")
    before, former = {row.key: row.value for row in session.scalars(select(Setting))}, identity.stored(session)
    for table in reversed(tables()):
        session.execute(delete(table))
    session.expunge_all()
    for table in tables():
        if found := backup.rows.get(table.name):
            session.execute(insert(table), found)
        if session.get_bind().dialect.name == "postgresql":
            _continue_numbers(session, table.name, [c.name for c in table.primary_key if isinstance(c.type, Integer | BigInteger)])
    for digest, path in backup.files.items():
        blobs.keep(path, digest)
    session.merge(Setting(key=plans.KEY, value=max(_value(session, plans.KEY), before.get(plans.KEY, 0))))
    generation = max(_value(session, "generation"), before.get("generation", 0)) + _AHEAD
    session.merge(Setting(key="generation", value=generation))
    session.info["generation"] = generation
    for deployment in session.scalars(select(Deployment)):
        deployment.generation = generation
    number = identity.draw()
    identity.give(session, folder, number, former)
    said = {"registry": number, "was": backup.head["registry"], "made_at": backup.head["made_at"]}
    record(session, caller, "restore", detail=f"backup of registry {said['was']}, now registry {number}")
    return said | {"rows": sum(map(len, backup.rows.values())), "blobs": len(backup.files)}


def _value(session: Session, key: str) -> int:
    row = session.get(Setting, key)
    return row.value if row else 0


_HAS = {"images": StoredManifest, "deployments": Deployment}


def _continue_numbers(session: Session, table: str, keys: list[str]) -> None:
    """Let the database number new rows after the restored ones."""
    if keys != ["id"]:
        return
    session.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), COALESCE((SELECT max(id) FROM {table}), 0) + 1, false)"))
