"""A slot's record of a session, which its checkpoints make durable beside the session's key groups."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from udo_protocol.limits import KEY_GROUPS
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import PieceKeys
from udo_protocol.state import pieces


@dataclass(frozen=True)
class SessionRecord:
    """last_ended: the highest epoch with an answered END; run: the place of its newest run; keys, bytes: of the state in this slot.

    key_groups: the number that its keys are spread over, None if that is not known yet. failed: attempts that met an error, each
    (partition, run, epoch, attempt). restoring: groups that have arrived only in part from a store, each (group, run, epoch, attempt) with
    the attempt that restores them; None without a store. at: when it was written, in s since 1970.
    """

    last_ended: int | None = None
    run: int = 0
    keys: int = 0
    bytes: int = 0
    key_groups: int | None = KEY_GROUPS
    failed: Sequence[Sequence[int]] = ()
    restoring: Sequence[Sequence[int]] | None = None
    at: float = 0.0

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SessionRecord:
        """From JSON; fields of a later release are ignored."""
        return cls(**{name: document[name] for name in cls.__dataclass_fields__ if name in document})

    def in_run(self, run: int) -> SessionRecord:
        """The record with this as its newest run."""
        return replace(self, run=run)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {name: value for name, value in asdict(self).items() if name != "restoring" or value is not None}


def text(record: SessionRecord, at: float) -> str:
    """The stored form, written at that time."""
    return json.dumps({**record.document(), "at": round(at, 3)})


def read(state: Connection, keys: PieceKeys, savepoint: str = "") -> dict[str, SessionRecord]:
    """Each session's record, of the state or of a savepoint. SlotBroken if one is not as `text` writes it."""
    key = keys.savepoint(savepoint).sessions
    return {name: parsed(data, key) for name, data in pieces.records(state, keys, savepoint).items()}


def parsed(data: bytes, key: str) -> SessionRecord:
    """A record from its stored form, which is not trusted. SlotBroken, which names `key`, if it is malformed."""
    document = untrusted.document(data, key)
    with untrusted.reading(key, "records of sessions with last_ended, run, bytes and at"):
        last, restoring = document["last_ended"], document.get("restoring")
        return SessionRecord(
            last_ended=None if last is None else untrusted.number(last, key, least=-1),
            run=untrusted.number(document["run"], key),
            keys=untrusted.number(document.get("keys"), key),
            bytes=untrusted.number(document["bytes"], key),
            key_groups=untrusted.number(document.get("key_groups"), key, KEY_GROUPS, 1),
            failed=_attempts(document.get("failed") or ()),
            restoring=None if restoring is None else _attempts(restoring),
            at=untrusted.moment(document["at"], key),
        )


def _attempts(found: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    return [tuple(map(int, attempt)) for attempt in found]
