"""The keyed state of one session (a query, or a batch job): its groups, runs, epochs and watermark. No I/O.

Watermark of epoch e = highest event time over the epochs before e, minus the declared delay; the same on a retry, since
each partition's highest time is kept in a group of its own and taken back with the attempt that saw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from udo_protocol.errors import StateLost
from udo_protocol.limits import KEY_GROUPS
from udo_runtime.state.codec import pack, unpack
from udo_runtime.state.groups import RESTORED, Group, Label
from udo_runtime.state.versions import Versions

# Partition p's highest event time lies in group -(p + 1), under this key.
_HIGHEST = "highest"
# Keys of a session that are open at a time; beyond it all are packed, so that an epoch that touches a million keys does not hold
# a million dicts.
_OPEN_KEYS = 1 << 15


class Session:
    """Groups by number; restored from the durable form or new."""

    def __init__(self, name: str, groups: dict[int, Group] | None = None, versions: Versions | None = None) -> None:
        self.name, self._versions = name, versions
        self.groups = groups or {}
        self.last_ended: int | None = None  # highest epoch of which an END was answered
        self.run = 0
        # Highest epoch that touched a group: whoever comes with an older one has been left behind by its query.
        self.epoch = self._epoch()
        self.changed = groups is None  # its record is to be written with the next checkpoint
        self.unsaved: set[int] = set()  # groups that may have changed since the last checkpoint
        self.former = any(group.former for group in self.groups.values())  # some groups may be of another state version
        self.key_groups: int | None = None  # how many it has been spread over; None: it is new
        # Attempts that met an error, as (partition, *label). Durable: a frame behind the error must not complete the epoch,
        # also not for the next instance.
        self.failed: set[tuple[int, ...]] = set()
        # Groups under way from a store, and whose RESTORE it is; None: nothing ever came from one (restoring.py). Durable.
        self.restoring: dict[int, Label] | None = None
        self._watermark: tuple[int, int | None] = (-1, None)
        # States of open keys, whatever their group: what the groups hold in `live`, or less.
        self.states: dict[Any, dict[str, Any]] = {}

    def _epoch(self) -> int:
        return max((g.label.epoch for g in self.groups.values() if g.label), default=-1)

    def renew(
        self,
        last_ended: int | None,
        run: int,
        failed: Iterable[Iterable[int]] = (),
        restoring: Iterable[Sequence[int]] | None = None,
        key_groups: int = KEY_GROUPS,
        **_: Any,
    ) -> None:
        """Be what a checkpoint's record and the groups say: a standby's, whatever it did on trial."""
        self.last_ended, self.run, self.failed = last_ended, run, {tuple(f) for f in failed}
        self.restoring = None if restoring is None else {n: Label(*label) for n, *label in restoring}
        self.key_groups = key_groups
        self.epoch, self._watermark, self.changed = self._epoch(), (-1, None), False
        self.states.clear()

    def require_groups(self, key_groups: int) -> None:
        """StateLost if its keys have been spread over another number of groups."""
        if self.key_groups is None:
            self.key_groups = key_groups
        elif self.key_groups != key_groups:
            raise StateLost(
                f"session {self.name} keeps its state in {self.key_groups} key groups, and the deployment has {key_groups}, where its keys "
                f"would lie in other ones. Deploy the operator with --key-groups {self.key_groups}, or drop the session: udo state drop"
            )

    def fail(self, label: Label, partition: int) -> None:
        """What this attempt still sends is to be skipped."""
        self.failed.add((partition, *label))
        self.changed |= bool(self.groups)

    def overtaken(self, label: Label) -> bool:
        """Whether a newer run, or a later epoch of this one, has been seen."""
        return label.run < self.run or (label.run == self.run and label.epoch < self.epoch)

    def admit(self, label: Label, *, start_empty: bool = False) -> bool:
        """Whether frames of this label may be processed; False: STALE. StateLost if epochs are missing.

        STALE are those of an older run, and those of an epoch of this run that another one has followed: the watermark of
        their epoch is not known any more, and Spark wants no answers of them.
        """
        if self.overtaken(label):
            return False
        if self.last_ended is None:
            if label.epoch > 0 and not start_empty:
                raise StateLost(
                    f"session {self.name} is at epoch {label.epoch}, and this node has never had state of it: expected state up to epoch "
                    f"{label.epoch - 1}, found none. If the operator is new in this query, call it with start='empty'"
                )
        elif not self.last_ended <= label.epoch <= self.last_ended + 1 and not start_empty:
            raise StateLost(
                f"session {self.name} continues with epoch {label.epoch}, but its state reaches up to epoch {self.last_ended}: "
                f"expected epoch {self.last_ended} (again) or {self.last_ended + 1}. The query's checkpoint and the operator's state "
                "are from different times; restore the matching one, or start='empty'"
            )
        if label.run > self.run:
            self.run, self.changed = label.run, True
        return True

    def touch(self, numbers: Iterable[int], label: Label, partition: int) -> bool:
        """Touch these groups; False if any holds a newer label (then the frame is STALE and must change nothing)."""
        groups = self.groups
        if self.restoring is not None:
            self._require(numbers, label)
        numbers = list(numbers)
        self.unsaved.update(numbers)
        wanted = [groups.get(n) or groups.setdefault(n, self.group(n)) for n in numbers]
        if any(g.label != label and _stale(g.label, label) for g in wanted):
            return False
        for g in wanted:
            if g.label != label:
                self.states.clear()
                g.touch(label, partition)
        if wanted:
            self.epoch = max(self.epoch, label.epoch)
        return True

    def group(self, number: int) -> Group:
        """A new one; time groups are the platform's own and of no version."""
        return Group(self._versions if number >= 0 else None)

    def _require(self, numbers: Iterable[int], label: Label) -> None:
        """What came from a store is all there is: a group without state is lost, not new."""
        for n in numbers:
            group = self.groups.get(n)
            mine = None if group is None else group.label
            if n >= 0 and mine is None:
                raise StateLost(
                    f"session {self.name} was restored from a store, and key group {n} of it was not: expected its state up to epoch "
                    f"{label.epoch - 1} for epoch {label.epoch}. Call the operator with the same store= as before"
                )
            if mine is not None and mine.attempt == RESTORED and label.epoch <= mine.epoch:
                raise StateLost(
                    f"key group {n} of session {self.name} was restored as epoch {mine.epoch} left it, and epoch {label.epoch} is to be "
                    f"processed: its state before epoch {mine.epoch} is not here. Call the operator with the same store= as before"
                )

    def open(self, keys: Sequence[Any], numbers: Sequence[int]) -> None:
        """Open keys, each in its group; these were touched before. Then all are in `states`."""
        if len(self.states) > _OPEN_KEYS:
            self.close(self.groups)
        group_of = dict(zip(keys, numbers, strict=True))
        wanted: dict[int, list[Any]] = {}
        for key in group_of.keys() - self.states.keys():
            wanted.setdefault(group_of[key], []).append(key)
        for number, of_group in wanted.items():
            group = self.groups[number]
            group.open_all(of_group)
            self.states.update(zip(of_group, map(group.live.__getitem__, of_group), strict=True))

    def settle(self) -> None:
        """Pack what is open and may have changed.

        State that cannot be stored fails its attempt: it is not to END, now or after a restart.
        """
        for group in self._there(self.unsaved):
            try:
                group.settle()
            except TypeError:
                assert group.label is not None, "only an attempt opens keys"
                self.fail(group.label, group.partition)

    def _there(self, numbers: Iterable[int]) -> list[Group]:
        return [group for n in numbers if (group := self.groups.get(n)) is not None]

    def close(self, numbers: Iterable[int]) -> None:
        """Pack what is open in these groups."""
        self.states.clear()
        for n in numbers:
            self.groups[n].settle(close=True)

    @property
    def size(self) -> int:
        """Bytes of all keys and values."""
        return sum(g.size for g in self.groups.values())

    @property
    def keys(self) -> int:
        """How many keys have state."""
        return sum(g.keys for n, g in self.groups.items() if n >= 0)

    def end(self, numbers: Iterable[int], label: Label, *, void: bool = False) -> None:
        """END: these groups, touched before, are complete."""
        for n in numbers:
            self.groups[n].end(void=void)
        if self.last_ended is None or label.epoch > self.last_ended:
            self.last_ended, self.changed = label.epoch, True
            self.failed = {f for f in self.failed if f[2] >= label.epoch}

    def has_ended(self, numbers: Iterable[int], epoch: int) -> bool:
        """Whether an attempt at this epoch has ENDed for one of these groups."""
        return any(g.label is not None and g.label.epoch == epoch and (g.ended or g.candidate is not None) for g in self._there(numbers))

    # -- event time --------------------------------------------------------------------------------------------------

    def saw(self, highest_us: int, partition: int) -> None:
        """The highest event time of a frame of that partition, µs since the epoch; its time group was touched before."""
        group = self.groups[time_group(partition)]
        state = group.open(_HIGHEST)
        if highest_us > state.get("t", highest_us - 1):
            state["t"] = highest_us

    def watermark_us(self, epoch: int, delay_us: int) -> int | None:
        """µs since the epoch, None before any event time is known; fixed within an epoch."""
        if self._watermark[0] != epoch:
            seen = [t for n, g in self.groups.items() if n < 0 and (t := _before(g, epoch)) is not None]
            self._watermark = (epoch, max(seen) - delay_us if seen else None)
        return self._watermark[1]

    def highest_us(self, epoch: int, partition: int) -> int | None:
        """Highest event time up to this epoch, as far as the partition can know it: of all before, and of its own."""
        own = self.groups.get(time_group(partition))
        raw = own and own.values.get(_HIGHEST)
        seen = [t for n, g in self.groups.items() if n < 0 and (t := _before(g, epoch)) is not None]
        return max([*seen, unpack(raw)["t"]] if raw else seen, default=None)

    def restore_time(self, highest_us: int, epoch: int, partition: int) -> None:
        """The highest event time before `epoch` comes from a store, in the time group of the partition that brings it."""
        self._watermark = (-1, None)
        number = time_group(partition)
        group = self.groups.setdefault(number, self.group(number))
        self.unsaved.add(number)
        if group.label is not None and group.label.epoch >= epoch:  # an earlier attempt has brought it
            return
        here = _before(group, epoch)
        group.clear()
        group.fill({pack(_HIGHEST): pack({"t": highest_us if here is None else max(here, highest_us)})})
        group.restored(epoch - 1)


def _stale(mine: Label | None, label: Label) -> bool:
    if mine is None:
        return False
    if label.run < mine.run or label.epoch < mine.epoch:
        return True
    return label.epoch == mine.epoch and (label.run, label.attempt) < (mine.run, mine.attempt)


def time_group(partition: int) -> int:
    """Number of the group that holds a partition's highest event time."""
    return -(partition + 1)


def _before(group: Group, epoch: int) -> int | None:
    """A time group's value before `epoch`, whatever attempts of it have come since."""
    if group.label is None:
        return None
    group.settle()
    raw = group.values.get(_HIGHEST)
    if group.label.epoch >= epoch or not group.ended:
        raw = group.undo.get(_HIGHEST, raw)
        if group.label.epoch < epoch and group.candidate is not None:
            raw = group.candidate.get(_HIGHEST, raw)
    return None if raw is None else int(unpack(raw)["t"])
