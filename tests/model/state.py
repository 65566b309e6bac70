"""The state: tuples only, so that a world can be hashed and compared. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

END = "END"
STALE = "STALE"
ERROR = "ERROR"
SKIPPED = "SKIPPED"
REFUSALS = (STALE, ERROR, SKIPPED)


class Label(NamedTuple):
    """The label of an attempt, compared in this order."""

    run: int
    epoch: int
    attempt: int


NEVER = Label(0, -1, 0)


class Lane(NamedTuple):
    """One attempt's conversation with the slot, as the slot knows it."""

    part: int
    label: Label


class Frame(NamedTuple):
    """One event of one group, or END with all the groups of its lane. `n` counts from 1."""

    lane: Lane
    n: int
    groups: tuple[int, ...]
    end: bool


class Answer(NamedTuple):
    """The answer to frame `n` of `lane`, which is number `seq` of the log."""

    seq: int
    lane: Lane
    n: int
    value: int | str


class Group(NamedTuple):
    """A key group: the number of events so far, and what is needed to undo an attempt."""

    label: Label = NEVER
    base: int = 0
    running: int = 0
    ended: bool = True
    candidate: int | None = None


class Memory(NamedTuple):
    """Keyed state: all groups, the newest run seen, and the lanes on which the operator failed."""

    groups: tuple[Group, ...]
    run: int = 0
    failed: tuple[Lane, ...] = ()


class QueueServer(NamedTuple):
    """Lost as a whole; `life` counts its restarts (its run id)."""

    life: int
    owner: int = 0
    base: int = 1
    emitted: int = 0
    log: tuple[Frame, ...] = ()
    accepted: tuple[tuple[Any, int], ...] = ()  # lane -> number of the last frame accepted
    newest: tuple[tuple[int, Label], ...] = ()  # partition -> newest label seen
    out: tuple[tuple[Lane, tuple[Answer, ...]], ...] = ()  # lane -> answers


class Checkpoint(NamedTuple):
    """Memory after frame `seq` of the queue server's life `life`, and the answer that may not be emitted yet."""

    life: int
    seq: int
    memory: Memory
    riding: Answer | None = None


class StateServer(NamedTuple):
    """The state as its clients see it; World.disk is what remains after a crash."""

    life: int
    owner: int
    tokens: int
    checkpoint: Checkpoint


class Instance(NamedTuple):
    """A process on the slot. `owns`: it has seen its own token as owner; `pending`: answers not emitted yet."""

    token: int
    queue_life: int
    state_life: int
    cursor: int
    memory: Memory
    changed: tuple[int, ...] = ()  # groups to write with the next checkpoint
    pending: tuple[Answer, ...] = ()
    owns: bool = False
    loaded: int = 0  # the last frame covered by the checkpoint that it loaded
    stored: int = 0  # the last frame covered by the last checkpoint that it wrote


class Task(NamedTuple):
    """An attempt, as Spark knows it."""

    part: int
    run: int
    epoch: int
    attempt: int


class Producer(NamedTuple):
    """A live attempt, wanted by Spark or a zombie; `n` is the number of its next frame."""

    task: Task
    n: int


class Part(NamedTuple):
    """A partition in the present epoch: the attempts that Spark waits for, and the one whose answers it took."""

    attempts: int
    running: tuple[int, ...]
    winner: int | None


class Spark(NamedTuple):
    """`truth`: events per group in the committed epochs, as if each had run once."""

    run: int
    epoch: int
    parts: tuple[Part, ...]
    truth: tuple[int, ...]


class Budget(NamedTuple):
    """The number of times that each fault, or optional step, may still happen."""

    crash: int = 0  # an instance dies
    standby: int = 0  # a standby is started beside a healthy owner
    promote: int = 0  # the standby is promoted
    partial: int = 0  # a checkpoint at a moment other than END
    error: int = 0  # the operator throws; it may accept the same frame another time
    fail: int = 0  # Spark gives up an attempt, which may live on as a zombie
    twin: int = 0  # a second attempt starts while the first one runs
    rerun: int = 0  # the stage runs again after the partition's success
    restart: int = 0  # the driver starts again and replays the epoch
    busy: int = 0  # a push is refused while the next one is in flight
    queue_loss: int = 0
    state_crash: int = 0


class World(NamedTuple):
    """The whole state."""

    queue: QueueServer
    state: StateServer
    disk: StateServer
    instances: tuple[Instance, ...]
    producers: tuple[Producer, ...]
    spark: Spark
    runs: tuple[int, ...]  # in the order in which the slot saw them
    budget: Budget


Key = TypeVar("Key")
Value = TypeVar("Value")


def put(pairs: Iterable[tuple[Key, Value]], key: Key, value: Value) -> tuple[tuple[Key, Value], ...]:
    """The sorted pairs, with `key` set."""
    return tuple(sorted({**dict(pairs), key: value}.items()))


def at(items: tuple[Value, ...], i: int, *new: Value) -> tuple[Value, ...]:
    """The items, with the i-th one replaced or removed."""
    return (*items[:i], *new, *items[i + 1 :])


def spend(budget: Budget, what: str) -> Budget:
    """The budget less one of that fault."""
    return budget._replace(**{what: getattr(budget, what) - 1})
