"""The effect of a frame on the groups that it touches, which is the same for every instance that processes or replays it."""

from __future__ import annotations

from tests.model.rules import Rules
from tests.model.state import END, ERROR, NEVER, REFUSALS, SKIPPED, STALE, Frame, Group, Label, Memory, at


def next_value(group: Group, rules: Rules) -> int:
    """The value from which a later epoch starts."""
    if group.ended or not rules.ended_only:
        return group.running
    return group.base if group.candidate is None else group.candidate


def is_stale(group: Group, label: Label, rules: Rules) -> bool:
    """Whether a frame with that label comes too late for this group."""
    return rules.stale_label and (label < group.label or label.epoch < group.label.epoch)


def touch(group: Group, label: Label, rules: Rules) -> Group:
    """The group for that label: an older attempt is undone, or the epoch before concluded."""
    if label <= group.label or label.epoch < group.label.epoch:
        return group
    if label.epoch == group.label.epoch and group.label != NEVER:
        candidate = group.running if group.ended else group.candidate
        return Group(label, group.base, group.base, False, candidate if rules.candidate else None)
    start = next_value(group, rules)
    return Group(label, start, start, False, None)


def apply(memory: Memory, frame: Frame, rules: Rules) -> tuple[Memory, tuple[int, ...], int | str]:
    """Memory after the frame, the groups changed, and the answer."""
    label, groups = frame.lane.label, memory.groups
    if frame.lane in memory.failed:
        return memory, (), SKIPPED
    if rules.old_runs_stale and label.run < memory.run:
        return memory, (), STALE
    run = max(memory.run, label.run)
    wanted = frame.groups
    if frame.end and not rules.end_labels_groups:
        wanted = tuple(g for g in wanted if groups[g].label == label)
    if any(is_stale(groups[g], label, rules) for g in wanted):
        return memory._replace(run=run), (), STALE
    value: int | str = END
    for g in wanted:
        group = touch(groups[g], label, rules)
        if frame.end:
            base = group.base if rules.undo_after_end else group.running
            group = group._replace(base=base, ended=True, candidate=None)
        else:
            group = group._replace(running=group.running + 1)
            value = group.running
        groups = at(groups, g, group)
    return memory._replace(groups=groups, run=run), wanted, value


def fail(memory: Memory, frame: Frame, rules: Rules) -> tuple[Memory, tuple[int, ...], int | str]:
    """The effect of a frame on which the operator fails: only its label stays, and later frames of its lane are skipped."""
    after, touched, value = apply(memory, frame, rules)
    if value in REFUSALS or frame.end:
        return after, touched, value
    groups = memory.groups
    for g in touched:
        groups = at(groups, g, touch(groups[g], frame.lane.label, rules))
    return Memory(groups, after.run, tuple(sorted({*memory.failed, frame.lane}))), touched, ERROR


def stored_form(group: Group, rules: Rules) -> Group:
    """The form of a group in a checkpoint."""
    return group if rules.undo_in_checkpoint else group._replace(base=group.running, candidate=None)
