"""The values that keys had before the newest attempt's epoch, by which the attempt is undone. No I/O.

Usually they are not stored. A group is stored as a base and changes; the base with the first `since` of these is the state before the
epoch, and the other changes name the keys that the attempt has changed. So a checkpoint within an epoch writes only what has changed
since the last one, however much the epoch has changed by then, and whoever reads the changes knows the undo. Of a group that was empty
before the epoch the base itself is what the epoch has changed. Otherwise the undo is stored itself, with the group's label: for an
attempt that began with values that no checkpoint has, those of an older one that it undid, and for columns, whose old values are cheap
to store and dear to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from udo_runtime.state.codec import Delta
from udo_runtime.state.columns import joined, stored_columns
from udo_runtime.state.layout import Layout
from udo_runtime.state.noted import Noted
from udo_runtime.state.stored_values import packed_rows, read_values, version_of
from udo_runtime.state.versions import Versions

# The value of `since` if the group had no values before the epoch, and the base has some.
_EMPTY_BEFORE = -1


class Undo:
    """One group's undo.

    `since`: the number of stored changes after which the values are those before the epoch; _EMPTY_BEFORE: those are none, and the base
    is of the epoch; None: the undo is stored itself.
    `beside_base`: bytes of the change that was written together with the present base, since the undo needed it.
    """

    __slots__ = ("_followed", "_noted", "beside_base", "since")

    def __init__(self) -> None:
        self.since: int | None = None
        self.beside_base = 0
        self._noted: Noted | bytes = Noted()  # packed until it is needed, which is rare
        self._followed: Noted | None = None  # that of the attempt as stored, if it follows from the changes

    def begin(self, since: int | None, following: bool) -> None:
        """Begin an attempt, with nothing to undo. `following`: a tentative one, after which `read` comes back to the stored one."""
        self.since, self._noted = since, Noted()
        if not following:
            self._followed = None

    def replace(self, undo: Delta) -> None:
        """Set the values, which are to be stored themselves."""
        self.since, self._noted = None, Noted(undo)

    def noted(self, versions: Versions | None) -> Noted:
        """The values, to which further ones may be added. The group's stored values must have been decoded.

        A standby adds those of its tentative changes to what it has followed: a key that the epoch has not changed has the same value
        as before it.
        """
        if not isinstance(self._noted, Noted):
            self._noted = Noted(read_values(versions, self._noted))
        return self._noted

    # -- stored form -------------------------------------------------------------------------------------------------

    @property
    def packed(self) -> bytes | None:
        """The values in stored form, if they were read so and have not been decoded since."""
        return self._noted if isinstance(self._noted, bytes) else None

    def fold(self, before: Delta, values: Mapping[Any, bytes], dirty: Delta, versions: Versions | None) -> tuple[bytes, bytes | None]:
        """A new base, of the values before the epoch, and the change after it, of those that the epoch has changed, and of all that changed
        since the last checkpoint (`dirty`), for readers of changes. If there were none before the epoch, the base has all values, and no
        change follows: bases are read faster. `before`: the undo."""
        former = {k: v for k, v in {**values, **before}.items() if v is not None}
        if not former:
            self.since, self.beside_base = _EMPTY_BEFORE, 0
            return packed_rows(versions, values), None
        change = packed_rows(versions, dirty | {k: now for k, v in before.items() if (now := values.get(k)) != v})
        self.since, self.beside_base = 0, len(change)
        return packed_rows(versions, former), change

    def read(self, stored: int | bytes, *, same: bool) -> None:
        """Take the undo of a stored group. `same`: that of the attempt whose undo was read last."""
        if not isinstance(stored, int):
            self.replace({})
            self._noted, self._followed = stored, None
            return
        if not same or self._followed is None:
            self._followed = Noted()
        self.since, self._noted = stored, self._followed

    def noting(self, at: int) -> Noted | None:
        """The place to note the values that stored change number `at` (-1: the base) replaces; None: they are not needed."""
        return self._followed if self.since is not None and at >= self.since else None


def stored_undo(noted: Noted, versions: Versions | None, layout: Layout | None, dirty: Delta, values: Mapping[Any, bytes]) -> bytes:
    """The values noted, in stored form. `dirty`: the values that changed since the last checkpoint; without others all of them differ."""
    if noted.blocks:
        assert layout is not None
        return stored_columns(version_of(versions), layout, noted.by_key, joined(noted.blocks, layout))
    undo = noted.by_key
    if len(undo) != len(dirty) or not undo.keys() <= dirty.keys():
        undo = {k: v for k, v in undo.items() if values.get(k) != v}
    return packed_rows(versions, undo)
