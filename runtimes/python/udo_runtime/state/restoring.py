"""RESTORE and STATE frames: a lane brings the state of its key groups from a store, or fetches an epoch's changes for it. No I/O.

State from a store is put into the group's values, so the next checkpoint makes it durable. A group that arrives in several parts has no
label until the last one: if the lane ends in between, the group counts as lacking, and the next attempt restores it from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from udo_protocol.errors import Stale
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.queue import event_times
from udo_protocol.queue.frame import STATE, Frame, Header
from udo_protocol.state.stored import ROWS, Rows, Values, body_bytes, bytes_of, fitting
from udo_runtime.state.groups import RESTORED, VOID, Group
from udo_runtime.state.label import Label, label_of
from udo_runtime.state.session import Session


def answer(session: Session, frame: Frame, reply: Header, frame_bytes: int) -> pa.RecordBatch | None:
    """Fill in `reply` to a RESTORE or STATE frame, and return its rows (for STATE). Stale if a newer attempt, run or epoch is known."""
    header, label = frame.header, label_of(frame.header)
    if header.kind == STATE:
        return _state(session, header, label, reply, body_bytes(frame_bytes))
    if session.overtaken(label):
        raise Stale(f"session {session.name} has gone on to a newer run or epoch")
    if frame.body is None:
        _lacking(session, header, label.epoch, reply)
    else:
        _restore(session, frame, label)
    return None


def _current(group: Group | None, epoch: int) -> bool:
    """Whether the group has the state needed for `epoch`: that after the previous epoch, or that before an attempt at `epoch`."""
    if group is None or group.label is None or _imported(group.label):
        return False
    if group.label.epoch == epoch:
        return group.label.attempt != RESTORED
    # If a limit cut the epoch short on this node (VOID), another node may have evaluated it in full.
    return group.label.epoch == epoch - 1 and (group.ended is True or bool(group.candidate))


def _runs_before(session: Session, epoch: int, numbers: Iterable[int]) -> set[int] | None:
    """The runs that ENDed the previous epoch in these groups, as far as no attempt at `epoch` has touched them; None if some lack state."""
    groups = [session.groups.get(n) for n in numbers]
    if not all(_current(g, epoch) for g in groups):
        return None
    return {g.label.run for g in groups if g is not None and g.label is not None and g.label.epoch < epoch}


def _imported(label: Label) -> bool:
    """Whether the label is from `udo state import`: imported state is used only if the lane's store has none."""
    return label.run == 0 and label.attempt != RESTORED


def _usable(session: Session, group: Group | None, epoch: int) -> int:
    """The epoch of a group's state if it is not current but may be used; -1: none.

    Older state, or that of an epoch cut short, is valid if its partition took no part in the epochs since (because of a limit).
    """
    if group is None or group.label is None or not group.ended or session.last_ended is None:
        return -1
    older = group.label.epoch < epoch - 1 or (group.label.epoch < epoch and group.ended == VOID) or _imported(group.label)
    return group.label.epoch if older and epoch - 1 <= session.last_ended <= epoch else -1


def _lacking(session: Session, header: Header, epoch: int, reply: Header) -> None:
    """Name in `reply` the groups that lack state, and say whether event times may be lacking too (`behind`). Each slot knows those of the
    previous epoch: from the events of partitions with groups in it, and from the END of the others. So none are lacking if no slot lacks
    a group of its own, and one run has ENDed them all: a partition of a newer run takes over a time group that was for other events."""
    groups = session.groups
    runs = _runs_before(session, epoch, header.groups if header.full else range(session.key_groups or KEY_GROUPS))
    reply.behind = runs is None or len(runs) > 1 or not _follows(session, epoch)
    if runs is not None and len(runs) == 1:
        (reply.run_before,) = runs
    for n in header.groups:
        if not _current(groups.get(n), epoch):
            reply.groups.append(n)
            reply.epochs.append(_usable(session, groups.get(n), epoch))


def _restore(session: Session, frame: Frame, label: Label) -> None:
    header = frame.header
    parts: dict[int, dict[bytes, bytes]] = {n: {} for n in header.groups}
    for n, key, value in zip(*(c.to_pylist() for c in frame.batch(ROWS).columns), strict=True):
        parts.setdefault(n, {})[key] = value
    _begin(session, label)
    under_way = session.restoring
    assert under_way is not None
    lacking = [n for n in parts if not _current(session.groups.get(n), label.epoch)]
    session.unsaved.update(lacking)
    if any(n in under_way and under_way[n] > label for n in lacking):
        raise Stale(f"a newer attempt restores the same key groups of session {session.name}")
    complete = set(header.groups)
    for n in lacking:
        group = session.groups.setdefault(n, session.group(n))
        if under_way.get(n) != label:
            group.clear()
            under_way[n] = label
        group.fill(parts[n], header.state_version)
        if n in complete:
            group.restored(label.epoch - 1)
            del under_way[n]
    if highest := event_times.told(header):
        session.restore_time(highest, label.epoch, header.partition)
    session.states.clear()
    session.changed = True


def _begin(session: Session, label: Label) -> None:
    """Discard the session's state if it does not precede this epoch: it is missing, older, or from another history of the query."""
    session.run = max(session.run, label.run)
    came_later = (g.label for g in session.groups.values() if g.label is not None and g.label.attempt == RESTORED)
    if not _follows(session, label.epoch) or any(came.epoch >= label.epoch for came in came_later):
        for group in session.groups.values():
            group.clear()
        session.unsaved.update(session.groups)
        session.last_ended, session.epoch, session.restoring = label.epoch - 1, label.epoch, {}
    session.epoch = max(session.epoch, label.epoch)
    if session.restoring is None:
        session.restoring = {}


def _follows(session: Session, epoch: int) -> bool:
    """Whether the session's last ENDed epoch is the one before, or this one."""
    return session.last_ended is not None and epoch - 1 <= session.last_ended <= epoch


def _state(session: Session, header: Header, label: Label, reply: Header, bound: int) -> pa.RecordBatch:
    """The rows of as many groups as fit into one frame. A larger group is split by rows, in an order that is the same in every instance."""
    groups = {n: session.groups.get(n) for n in header.groups}
    if any(g is None or g.label != label or not g.ended for g in groups.values()):
        raise Stale(f"session {session.name}: the groups of this attempt have been touched by a newer one, or it has not ENDed")
    reply.MergeFrom(Header(**event_times.fields(session.highest(label.epoch, header.partition))))
    taken, skip = Rows(), header.offset
    for n, group in groups.items():
        assert group is not None
        values: Values = group.packed(changes=not header.full)
        size = bytes_of(values)
        if taken and taken.size + size > bound:
            break
        if skip or size > bound:
            left = dict(sorted(values.items())[skip:])
            values = fitting(left, bound)
            if len(values) < len(left):
                reply.offset = skip + len(values)
                taken.add(n, values)
                break
            skip = 0
        taken.add(n, values)
        reply.groups.append(n)
    return taken.batch()
