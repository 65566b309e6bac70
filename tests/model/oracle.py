"""The conditions: each check returns a text that names the violation, or None."""

from __future__ import annotations

from collections.abc import Sequence

from tests.model.groups import apply, next_value
from tests.model.rules import Rules
from tests.model.state import END, Answer, Memory, Spark, World


def answers(events: Sequence[int], truth: Sequence[int], got: Sequence[Answer]) -> str | None:
    """The answers of a successful attempt are running counts, as if every earlier epoch had run once; one per frame, in order."""
    counts, expected = list(truth), []
    for g in events:
        counts[g] += 1
        expected.append(counts[g])
    values, numbers = [a.value for a in got], [a.n for a in got]
    if numbers != list(range(1, len(events) + 2)):
        return f"Spark takes answers to the frames {numbers}, expected one to each of {len(events) + 1}, in order"
    return None if values == [*expected, END] else f"Spark takes the answers {values}, expected {[*expected, END]}"


def refused(newest: bool, task: str) -> str | None:
    """The newest attempt is never STALE: the query could not go on."""
    return f"{task} is refused as STALE, yet none is newer" if newest else None


def durable(w: World, after: Spark, rules: Rules) -> str | None:
    """Once Spark has committed, the state server's disk alone must have the epoch: the queue server may be lost."""
    return _values("on disk", w.disk.checkpoint.memory, after, rules)


def finished(w: World, rules: Rules) -> str | None:
    """After the last epoch, the state on disk equals that of one clean run, also after a replay of zombies' frames."""
    stored = w.state.checkpoint
    memory = stored.memory
    for frame in w.queue.log[max(stored.seq + 1 - w.queue.base, 0) if stored.life == w.queue.life else 0 :]:
        memory, _, _ = apply(memory, frame, rules)
    return durable(w, w.spark, rules) or _values("after replay", memory, w.spark, rules)


def _values(where: str, memory: Memory, spark: Spark, rules: Rules) -> str | None:
    values = tuple(g.base if g.label.epoch >= spark.epoch else next_value(g, rules) for g in memory.groups)
    return None if values == spark.truth else f"values {where}: {values}, expected {spark.truth} after epoch {spark.epoch - 1}"


def covered(w: World, rules: Rules) -> str | None:
    """A frame leaves the log only when the state server's disk covers it (I3)."""
    on_disk = w.disk.checkpoint.seq if w.disk.checkpoint.life == w.queue.life or not rules.incarnation else 0
    return None if on_disk >= w.queue.base - 1 else f"the log starts at {w.queue.base}, the state on disk covers only {on_disk}"


def stuck(progress: bool, done: bool) -> str | None:
    """Without further faults the query goes on."""
    return None if progress or done else "nothing can happen any more: deadlock"
