"""Database and folder of images belong together: both hold the number of their registry, drawn at its first start."""

from __future__ import annotations

import secrets
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.store.blobs import Blobs
from registry.store.models import Setting, StoredManifest
from udo_protocol.errors import UsageError
from udo_protocol.files import replace_file

# The file in the folder of images.
MARK = "registry-id"
_KEY = "identity"


def draw() -> int:
    """A random number, unlikely to be another registry's: it guards against mix-ups, not against attackers."""
    return secrets.randbelow(2**31 - 1) + 1


def stored(session: Session) -> int | None:
    """The number in the database, None if it has none yet."""
    row = session.get(Setting, _KEY)
    return row.value if row else None


def give(session: Session, folder: Path, number: int, former: int | None = None) -> None:
    """Give this number to the database and to the folder. Where the database has another one until the commit, the folder gets both, since
    the commit may fail; the next start keeps that of the database."""
    numbers = [known for known in (former, number) if known is not None]
    replace_file(folder / MARK, "".join(f"{known}\n" for known in numbers).encode(), mode=0o644, durable=True)
    session.merge(Setting(key=_KEY, value=number))


def require_same(session: Session, folder: Path, blobs: Blobs) -> int:
    """The registry's number. UsageError if the folder is another registry's, or not that of the database's other processes."""
    known = stored(session)
    try:
        marks = [int(number) for number in (folder / MARK).read_text("utf-8").split()]
        marked = known if known in marks else marks[-1]
    except FileNotFoundError:
        marks, marked = [], None
    except (ValueError, IndexError):
        raise UsageError(f"{folder / MARK}: expected the number of a registry; remove the file if it is not the registry's own") from None
    if marked is None:
        some = session.scalar(select(StoredManifest.digest).limit(1))
        elsewhere = known is not None and session.get_bind().dialect.name == "postgresql"
        if not any(blobs.everything()) and (some is not None or elsewhere):
            raise UsageError(
                f"{folder} does not hold the images of this database (registry {known or 'of no number'}): expected --shared to be the "
                "folder that all its processes have in common. If it was lost, restore a backup: udo registry restore FILE --replace"
            )
    elif marked != known and known is not None:
        raise UsageError(
            f"{folder} holds the images of registry {marked}, this database is that of registry {known}: expected --shared and --database "
            "of the same one"
        )
    elif known is None and session.scalar(select(StoredManifest.digest).limit(1)) is None and any(blobs.everything()):
        raise UsageError(
            f"{folder} holds the images of registry {marked}, this database is empty: name the database of that registry (--database), or "
            "give this one a folder of its own (--data, --shared)"
        )
    number = known or marked or draw()
    if known != number or marks != [number]:
        give(session, folder, number)
    return number
