"""Makes a session of what is stored of it, wherever that lies: the newest checkpoint, a savepoint, a recording. No I/O of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from udo_protocol.state.pieces import StoredGroup
from udo_runtime.state.groups import Group
from udo_runtime.state.session import Session
from udo_runtime.state.versions import Versions


def restored(
    name: str,
    record: Mapping[str, Any],
    stored: Iterable[tuple[int, StoredGroup]],
    versions: Versions | None = None,
    *,
    follow: bool = False,
) -> Session:
    """A session from its record and groups. Values are decoded when their group's first key is opened; with `follow` at once, and what
    is done from then on can be taken back."""
    groups: dict[int, Group] = {}
    for number, group in stored:
        groups[number] = Group.restore(group, versions if number >= 0 else None)
        if follow:
            groups[number].follow()
    session = Session(name, groups, versions)
    session.renew(**record)
    return session
