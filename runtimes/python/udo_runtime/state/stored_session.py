"""Restores a session from its stored form in the newest checkpoint, a savepoint or a recording. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from udo_protocol.state.pieces import StoredGroup
from udo_protocol.state.session_record import SessionRecord
from udo_runtime.state.groups import Group
from udo_runtime.state.session import Session
from udo_runtime.state.versions import Versions


def restored(
    name: str,
    record: SessionRecord,
    stored: Iterable[tuple[int, StoredGroup]],
    versions: Versions | None = None,
    *,
    decode: bool = False,
    follow: bool = False,
) -> Session:
    """A session from its record and its stored groups. A group's values are decoded when its first key is opened; with `decode` at once,
    group by group; with `follow`, too, and later changes can be undone (`Group.take_back`)."""
    groups: dict[int, Group] = {}
    for number, group in stored:
        groups[number] = Group.restore(group, versions if number >= 0 else None)
        if decode:
            groups[number].migrate_all()
        if follow:
            groups[number].follow()
    session = Session(name, groups, versions)
    session.renew(record)
    return session
