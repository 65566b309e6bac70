"""The steps of Spark: it sends an epoch's event, then END, repeats a failed attempt, and goes on once END is answered."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.failover.state import Ending, Group, Label, Member, Node, Phase, Spark, World
from tests.model.failover.steps import ATTEMPTS, EPOCHS, Step, become, members, spend


def steps(w: World) -> Iterator[Step]:
    """The steps of the present attempt."""
    sp = w.spark
    if sp.label.epoch == EPOCHS or sp.label.attempt > ATTEMPTS or w.registry.reported:
        return
    if sp.target is None:
        for member in members(w):
            yield Step(f"attempt {_name(sp)} goes to node {member.node}", w._replace(spark=sp._replace(target=member)))
        return
    node = _serving(w, sp.target)
    going = node is not None and not _lost_its_place(w, sp, node)
    if not going or w.budget.failures:
        retried = Label(sp.label.epoch, sp.label.attempt + (sp.phase != Phase.TO_SEND))
        budget = spend(w, "failures") if going else w.budget
        yield Step(f"attempt {_name(sp)} fails", w._replace(spark=Spark(retried), budget=budget), chosen=going)
    if node is not None:
        yield from _served(w, sp, sp.target, node)


def _serving(w: World, target: Member) -> Node | None:
    """The node, if it is still the one on which the lane was opened, and believes that it is the owner."""
    node = w.nodes[target.node]
    owner = node.alive and node.incarnation == target.incarnation and node.configuration and node.configuration.owner == target
    return node if owner and node.group is not None else None


def _lost_its_place(w: World, sp: Spark, node: Node) -> bool:
    """Whether another attempt has taken the group or its END there, or END waits for lost nodes: a time-out."""
    if sp.phase == Phase.ANSWERED:
        return node.group is not None and node.group.label != sp.label
    if sp.phase == Phase.ENDING:
        return node.ending is None or node.ending.label != sp.label or not node.ending.missing <= set(members(w))
    return False


def _served(w: World, sp: Spark, target: Member, node: Node) -> Iterator[Step]:
    group = node.group
    assert group is not None and node.configuration is not None
    if sp.phase == Phase.TO_SEND:
        touched = touch(group, sp.label)
        if touched is None:
            older = w._replace(spark=Spark(Label(sp.label.epoch, sp.label.attempt + 1)))
            yield Step(f"node {target.node} refuses {_name(sp)} as stale", older)
            return
        counted = touched._replace(value=touched.value + 1)
        after = become(w, target.node, node._replace(group=counted))
        answered = sp._replace(phase=Phase.ANSWERED, answer=counted.value)
        yield Step(f"node {target.node} answers {_name(sp)} with {counted.value}", after._replace(spark=answered))
    elif sp.phase == Phase.ANSWERED and group.label == sp.label:
        ending = Ending(sp.label, node.configuration.replicas)
        after = become(w, target.node, node._replace(ending=ending))
        yield Step(f"END {_name(sp)} is asked of node {target.node}", after._replace(spark=sp._replace(phase=Phase.ENDING)))
    elif sp.phase == Phase.ENDING and node.ending and node.ending.label == sp.label and not node.ending.missing:
        yield _committed(w, sp, target, node, group)


def _committed(w: World, sp: Spark, target: Member, node: Node, group: Group) -> Step:
    epoch = sp.label.epoch
    wrong = None if sp.answer == epoch + 1 else f"epoch {epoch} is committed with the answer {sp.answer}, expected {epoch + 1}"
    ended = group._replace(ended=True) if group.label == sp.label else group
    after = become(w, target.node, node._replace(group=ended, ending=None))
    text = f"node {target.node} answers END {_name(sp)}; Spark commits it"
    return Step(text, after._replace(spark=Spark(Label(epoch + 1, 0))), problem=wrong)


def touch(group: Group, label: Label) -> Group | None:
    """The group with an older attempt undone, or the epoch before concluded. None: the attempt is stale."""
    if label < group.label:
        return None
    if label == group.label:
        return group
    start = group.base if label.epoch == group.label.epoch or not group.ended else group.value
    return Group(label, start, start, False)


def _name(sp: Spark) -> str:
    return f"{sp.label.epoch}.{sp.label.attempt}"
