"""The state: tuples only, so that a world can be hashed and compared. Nothing here decides anything."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Member(NamedTuple):
    """A node with its disk at the time when it was named."""

    node: int
    incarnation: int


class Configuration(NamedTuple):
    """The owner of the group and the holders of copies, as decided by the registry."""

    version: int
    owner: Member
    replicas: frozenset[Member]


class Label(NamedTuple):
    """The label of an attempt, compared in this order."""

    epoch: int
    attempt: int


class Group(NamedTuple):
    """The number of events of the group so far, and what is needed to undo an attempt."""

    label: Label = Label(-1, -1)
    base: int = 0
    value: int = 0
    ended: bool = True


class Ending(NamedTuple):
    """An END in progress; `missing` have not acknowledged it."""

    label: Label
    missing: frozenset[Member]


class Node(NamedTuple):
    """`told`: the newest version it was sent; `configuration`: the one under which it acts as owner, if it believes that it is one."""

    incarnation: int = 0
    alive: bool = True
    told: int = 0
    configuration: Configuration | None = None
    group: Group | None = None
    ending: Ending | None = None


class Registry(NamedTuple):
    """`joining`: will be a replica and does not count yet. `reported`: no node holds the group any more. `drained`: is to hold nothing."""

    configuration: Configuration
    joining: Member | None = None
    reported: bool = False
    drained: Member | None = None


class Phase(IntEnum):
    """The phase of an attempt."""

    TO_SEND = 0
    ANSWERED = 1
    ENDING = 2


class Spark(NamedTuple):
    """One event per epoch. `target`: where the attempt's lane was opened; a route may be old, so it may be any node."""

    label: Label = Label(0, 0)
    target: Member | None = None
    phase: Phase = Phase.TO_SEND
    answer: int = 0


class Budget(NamedTuple):
    """The number of times that each fault, or optional step, may still happen."""

    losses: int = 0  # of a node and its disk
    suspicions: int = 0  # of a live node
    failures: int = 0  # of an attempt that could go on
    joins: int = 0  # of a new replica
    drains: int = 0  # of the owner's node


class World(NamedTuple):
    """The whole state."""

    registry: Registry
    nodes: tuple[Node, ...]
    spark: Spark
    budget: Budget
