"""Epochs of events for a counting slot, with attempts that break off, and the answers that one process would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import strategies as st

from tests.support.attempt import GROUPS, Attempt
from tests.support.counting_slot import COUNTS, EVENTS
from tests.support.memory_slot import MemorySlot
from udo_protocol.proto.frame_pb2 import Label

PARTITIONS = 2


def an_attempt(s: MemorySlot, epoch: int, number: int, partition: int) -> Attempt:
    """Open a lane for an attempt; even keys come from partition 0, odd ones from 1."""
    label, groups = Label(run=1, epoch=epoch, attempt=number), [g for g in GROUPS if g % PARTITIONS == partition]
    lane = s.lane(f"q.1.{epoch}.{partition}.{number}")
    return Attempt(lane, (EVENTS, COUNTS), groups=groups, session="q", partition=partition, label=label)


# For each epoch, the keys of each partition.
Epochs = Sequence[Sequence[Sequence[int]]]


def oracle(epochs: Epochs, bad: tuple[int, ...] = ()) -> list[list[tuple[int, int]]]:
    """The answers of one process that gets every epoch once, by epoch and partition; those of timers due by the watermark come last."""
    counts, timers, answers = Counter[int](), dict[int, set[int]](), []
    highest, watermark = -1, -1  # second of the newest event so far; watermark after the epochs before
    for second, epoch in enumerate(epochs):
        watermark = highest
        for keys in epoch:
            answers.append([])
            for k in keys:
                if k not in bad:
                    counts[k] += 1
                    timers.setdefault(k, set()).add(second + 2)
                    answers[-1].append((k, counts[k]))
                    highest = second
        for partition in range(PARTITIONS):
            due = sorted((at, k % 4, k) for k, ats in timers.items() if k % PARTITIONS == partition for at in ats if at <= watermark)
            answers[-PARTITIONS + partition] += [(k, 1000 + counts[k]) for _, _, k in due]
        for ats in timers.values():
            ats -= {at for at in ats if at <= watermark}
    return answers


def play(s: MemorySlot, epochs: Epochs, broken_off: Sequence[int] = (), read: int = 16) -> list[Attempt]:
    """Run each partition at each epoch: attempts that break off after that many frames, then one that ENDs."""
    done: list[Attempt] = []
    for epoch, partitions in enumerate(epochs):
        for partition, keys in enumerate(partitions):
            for number, frames in enumerate(broken_off):
                failed = an_attempt(s, epoch, number, partition)
                for k in [*keys, 2 + partition][:frames]:
                    failed.send([k], epoch + 50)  # an event time that must not count
            attempt = an_attempt(s, epoch, 100, partition)
            attempt.send(keys[:1], epoch)
            attempt.send(keys[1:], epoch)
            attempt.end()
            done.append(attempt)
        s.serve(read)
    return done


SCRIPT: Epochs = [[[0, 2, 0], [1]], [[0], [3, 1]], [[4, 0], []], [[0], [1]]]


Keys = st.integers(0, 7)
Plans = st.lists(st.tuples(*[st.lists(Keys.map(lambda k, p=p: k // 2 * 2 + p), max_size=4) for p in range(PARTITIONS)]), max_size=4)  # type: ignore[misc]
