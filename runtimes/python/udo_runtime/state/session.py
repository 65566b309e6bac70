"""The keyed state of one session (a query, or a batch job): its groups, runs, epochs and watermark. No I/O.

The watermark of an epoch is the highest event time of the epochs before it, minus the declared delay. It is the same on a retry: the
highest event time of each partition is kept in a group of its own (a time group) and undone with the attempt that set it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from udo_protocol.errors import StateLost
from udo_protocol.queue.event_times import EventTimes, behind, combined
from udo_protocol.state.session_record import SessionRecord
from udo_runtime.state.codec import pack, unpack
from udo_runtime.state.groups import RESTORED, Group
from udo_runtime.state.label import Label
from udo_runtime.state.versions import Versions

# The key of the highest event time in a time group: group -(p + 1) for partition p.
_HIGHEST = "highest"
# Open keys of a session; beyond this number all are packed and closed, so that an epoch with a million keys does not need a million
# dicts.
_OPEN_KEYS = 1 << 15


class Session:
    """The keyed state of one session. `groups`: number -> group, restored from the stored form; None: the session is new."""

    def __init__(self, name: str, groups: dict[int, Group] | None = None, versions: Versions | None = None) -> None:
        self.name, self._versions = name, versions
        self.groups = groups or {}
        self.last_ended: int | None = None  # highest epoch with an answered END
        self.run = 0
        # The highest epoch that has touched a group: frames of an older one are stale.
        self.epoch = self._epoch()
        self.changed = groups is None  # the next checkpoint has to write the session's record
        self.unsaved: set[int] = set()  # groups that may have changed since the last checkpoint
        self.former = any(group.former for group in self.groups.values())  # some values may be of another state version
        self.key_groups: int | None = None  # number of key groups over which its keys are spread; None: it is new
        # Attempts that met an error, as (partition, *label). Part of checkpoints: later frames of such an attempt must not complete the
        # epoch, not even in the next instance.
        self.failed: set[tuple[int, ...]] = set()
        # Groups that have arrived from a store in part, and the attempt that restores them; None: the session has no store
        # (restoring.py). Part of checkpoints.
        self.restoring: dict[int, Label] | None = None
        self._watermark: tuple[int, int | None] = (-1, None)
        # Key -> state of open keys of all groups: all of the groups' `live`, or a part.
        self.states: dict[Any, dict[str, Any]] = {}

    def _epoch(self) -> int:
        """The highest epoch that has touched a group. An attempt at epoch e + 1 restores a group as epoch e left it."""
        return max((g.label.epoch + (g.label.attempt == RESTORED) for g in self.groups.values() if g.label), default=-1)

    def renew(self, record: SessionRecord) -> None:
        """Set all but the groups from a checkpoint's record (engine/content.py, `record`); discards a standby's tentative changes."""
        self.last_ended, self.run, self.failed = record.last_ended, record.run, {tuple(f) for f in record.failed}
        self.restoring = None if record.restoring is None else {n: Label(*label) for n, *label in record.restoring}
        self.key_groups = record.key_groups
        self.epoch, self._watermark, self.changed = self._epoch(), (-1, None), False
        self.states.clear()

    def require_groups(self, key_groups: int) -> None:
        """Raise StateLost if the session's keys are spread over another number of key groups."""
        if self.key_groups is None:
            self.key_groups = key_groups
        elif self.key_groups != key_groups:
            raise StateLost(
                f"session {self.name} keeps its state in {self.key_groups} key groups, and the deployment has {key_groups}, where its keys "
                f"would lie in other ones. Deploy the operator with --key-groups {self.key_groups}, or drop the session: udo state drop"
            )

    def hand_over(self, numbers: Collection[int]) -> list[Group]:
        """Remove these groups, which belong to another slot; returns those that there were."""
        left = [group for n in numbers if (group := self.groups.pop(n, None)) is not None]
        self.changed |= bool(left)
        self.unsaved.difference_update(numbers)
        if self.restoring is not None:
            self.restoring = {n: label for n, label in self.restoring.items() if n not in numbers}
        self.states.clear()
        return left

    def adopt(self, record: SessionRecord, groups: Mapping[int, Group]) -> None:
        """Add groups of another slot, with that slot's `record` of the session. Every END goes to every slot, so this slot's own epochs
        and event times are valid; if it has had no END yet, it continues from the record."""
        self.groups |= {n: group for n, group in groups.items() if n >= 0 or n not in self.groups}
        if self.last_ended is None:
            self.last_ended = record.last_ended
        self.run = max(self.run, record.run)
        self.failed |= {tuple(f) for f in record.failed}
        self.key_groups = self.key_groups or record.key_groups
        if self.restoring is None and record.restoring is not None:
            self.restoring = {}  # groups that have arrived in part are restored from the beginning
        self.epoch, self._watermark, self.changed = self._epoch(), (-1, None), True
        self.former |= any(group.former for group in groups.values())
        self.states.clear()

    def fail(self, label: Label, partition: int) -> None:
        """Note that an attempt has met an error; its further frames are skipped."""
        self.failed.add((partition, *label))
        self.changed |= bool(self.groups)

    def overtaken(self, label: Label) -> bool:
        """Whether a newer run, or a later epoch of this run, has been seen."""
        return label.run < self.run or (label.run == self.run and label.epoch < self.epoch)

    def admit(self, label: Label, *, start_empty: bool = False, since: int | None = None) -> bool:
        """Whether frames of this label may be processed; False: they are STALE. StateLost if epochs are missing.

        `since`: the last epoch before the label's in which anything happened, to which the state has to reach; None: the previous one.

        Frames of an older run are STALE, and so are frames of an epoch that was followed by a later one of this run: its watermark is no
        longer known, and Spark does not use its answers.
        """
        if self.overtaken(label):
            return False
        needed = label.epoch - 1 if since is None else since
        if self.last_ended is None:
            if needed >= 0 and not start_empty:
                raise StateLost(
                    f"session {self.name} is at epoch {label.epoch}, and this node has never had state of it: expected state up to epoch "
                    f"{needed}, found none. If the operator is new in this query, call it with start='empty'"
                )
        elif not min(needed, label.epoch) <= self.last_ended <= label.epoch and not start_empty:
            raise StateLost(
                f"session {self.name} continues with epoch {label.epoch}, but its state reaches up to epoch {self.last_ended}: "
                f"expected epoch {self.last_ended} (again) or {self.last_ended + 1}. If nothing evaluated the call in the epochs between "
                "(foreachBatch left its DataFrame alone), call the operator with start='empty', which goes on from the state there is. "
                "Otherwise the query's checkpoint and the operator's state are from different times: restore the matching one"
            )
        if label.run > self.run:
            self.run, self.changed = label.run, True
        return True

    def touch(self, numbers: Iterable[int], label: Label, partition: int) -> bool:
        """Begin or continue an attempt in these groups. False if one has a newer label: the frame is STALE, and nothing has changed."""
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
        """A new group. Time groups (numbers below 0) have no state version, since operators do not see them."""
        return Group(self._versions if number >= 0 else None)

    def _require(self, numbers: Iterable[int], label: Label) -> None:
        """For a session restored from a store: raise StateLost for a group without state, which would otherwise count as new."""
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
        """Open keys in their groups (`numbers`), which have been touched before. Afterwards all of them are in `states`."""
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

    def pack(self, *, close: bool = False) -> None:
        """Pack the states of open keys in groups that may have changed; `close`: also close the keys.

        A state that cannot be stored fails its attempt, which then cannot END, not even after a restart.
        """
        if close:
            self.states.clear()
        for group in self._there(self.unsaved):
            try:
                group.pack(close=close)
            except TypeError:
                assert group.label is not None, "only an attempt opens keys"
                self.fail(group.label, group.partition)

    def _there(self, numbers: Iterable[int]) -> list[Group]:
        return [group for n in numbers if (group := self.groups.get(n)) is not None]

    def close(self, numbers: Iterable[int]) -> None:
        """Pack and close the open keys of these groups. TypeError if a state cannot be stored."""
        self.states.clear()
        for n in numbers:
            self.groups[n].pack(close=True)

    @property
    def size(self) -> int:
        """Bytes of all keys and packed states."""
        return sum(g.size for g in self.groups.values())

    @property
    def keys(self) -> int:
        """The number of keys that have state or a timer."""
        return sum(g.keys for n, g in self.groups.items() if n >= 0)

    def end(self, numbers: Iterable[int], label: Label, *, void: bool = False) -> None:
        """END an attempt in these groups, which it has touched. `void`: it was cut short (`Group.end`)."""
        for n in numbers:
            self.groups[n].end(void=void)
        if self.last_ended is None or label.epoch > self.last_ended:
            self.last_ended, self.changed = label.epoch, True
            self.failed = {f for f in self.failed if f[2] >= label.epoch}

    def has_ended(self, numbers: Iterable[int], epoch: int) -> bool:
        """Whether an attempt at this epoch has ENDed for one of these groups."""
        return any(g.label is not None and g.label.epoch == epoch and (g.ended or g.candidate is not None) for g in self._there(numbers))

    # -- event time --------------------------------------------------------------------------------------------------

    def saw(self, highest: EventTimes, partition: int) -> None:
        """Note the highest event times of a frame of this partition, whose time group has been touched."""
        if highest:
            state = self.groups[time_group(partition)].open(_HIGHEST)
            state.update(combined((state, highest)))

    def watermark_us(self, epoch: int, delay_us: int, inputs: Sequence[str] = ()) -> int | None:
        """The watermark of an epoch in µs since 1970; None if an input has no known event time. Constant within the epoch."""
        if self._watermark[0] != epoch:
            seen = behind(combined(self._before(epoch)), inputs)
            self._watermark = (epoch, None if seen is None else seen - delay_us)
        return self._watermark[1]

    def highest(self, epoch: int, partition: int) -> EventTimes:
        """The highest event times of all partitions in earlier epochs, and of this partition in this epoch."""
        own = self.groups.get(time_group(partition))
        raw = own and own.values.get(_HIGHEST)
        return combined([*self._before(epoch), *([unpack(raw)] if raw else [])])

    def _before(self, epoch: int) -> Iterator[EventTimes]:
        """The highest event times of each partition before that epoch."""
        return (_before(g, epoch) for n, g in self.groups.items() if n < 0)

    def restore_time(self, highest: EventTimes, epoch: int, partition: int) -> None:
        """Set the highest event times before `epoch`, from a store, in the time group of the partition that restores them."""
        self._watermark = (-1, None)
        number = time_group(partition)
        group = self.groups.setdefault(number, self.group(number))
        self.unsaved.add(number)
        if group.label is not None and group.label.epoch >= epoch:  # an earlier attempt has restored it
            return
        known = combined((_before(group, epoch), highest))
        group.clear()
        group.fill({pack(_HIGHEST): pack(known)})
        group.restored(epoch - 1)


def _stale(mine: Label | None, label: Label) -> bool:
    if mine is None:
        return False
    if label.run < mine.run or label.epoch < mine.epoch:
        return True
    return label.epoch == mine.epoch and (label.run, label.attempt) < (mine.run, mine.attempt)


def time_group(partition: int) -> int:
    """The number of a partition's time group, which holds its highest event times."""
    return -(partition + 1)


def _before(group: Group, epoch: int) -> EventTimes:
    """The highest event times in a time group before `epoch`, without those of attempts at this or later epochs."""
    if group.label is None:
        return {}
    group.pack()
    raw = group.values.get(_HIGHEST)
    if group.label.epoch >= epoch or not group.ended:
        raw = group.undo.get(_HIGHEST, raw)
        if group.label.epoch < epoch and group.candidate is not None:
            raw = group.candidate.get(_HIGHEST, raw)
    return {} if raw is None else unpack(raw)
