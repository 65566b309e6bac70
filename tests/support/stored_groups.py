"""A key group's stored form after a checkpoint, as the engine writes it."""

from __future__ import annotations

import itertools

from udo_runtime.engine import content
from udo_runtime.engine.content import Piece
from udo_runtime.state.groups import Group

from udo_protocol.state.pieces import StoredGroup

_names = (f"p{n}" for n in itertools.count())


def checkpoint(group: Group, before: StoredGroup, *, fold: bool = False) -> tuple[StoredGroup, Piece | None]:
    """The stored form after one more checkpoint, and what that wrote: None if nothing had changed. `fold`: into a new base."""
    group.pack()
    if not (group.changed or group.touched or fold):
        return before, None
    made, _ = content._piece("s", 0, group, _names, fold=None, renew=fold)
    base, deltas = (before.base, before.deltas) if made.base is None else (made.base, [])
    if made.delta is not None and made.place.changes:
        deltas = [*deltas, made.delta]
    group.saved()
    assert (len(deltas), len(base or b""), sum(map(len, deltas))) == made.place[1:]
    return StoredGroup(made.meta, base, deltas, made.place), made
