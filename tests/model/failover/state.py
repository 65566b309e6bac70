"""What there is: tuples only, so that a world can be hashed and compared. Nothing here decides anything."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Member(NamedTuple):
    """A node with the disk it had when it was named."""

    node: int
    incarnation: int


class Configuration(NamedTuple):
    """Who owns the group and who holds copies; decided by the registry."""

    version: int
    owner: Member
    replicas: frozenset[Member]


class Label(NamedTuple):
    """Of an attempt; compared in this order."""

    epoch: int
    attempt: int


class Group(NamedTuple):
    """How many events it has seen, and what is needed to take an attempt back."""

    label: Label = Label(-1, -1)
    base: int = 0
    value: int = 0
    ended: bool = True


class Ending(NamedTuple):
    """An END that was asked for; `missing` have not acknowledged it."""

    label: Label
    missing: frozenset[Member]


class Node(NamedTuple):
    """`told`: the newest version it has heard of; `configuration`: what it acts under as owner, if it takes itself for one."""

    incarnation: int = 0
    alive: bool = True
    told: int = 0
    configuration: Configuration | None = None
    group: Group | None = None
    ending: Ending | None = None


class Registry(NamedTuple):
    """`joining`: is to be a replica and does not count yet. `reported`: nobody holds the group any more. `drained`: is to have nothing."""

    configuration: Configuration
    joining: Member | None = None
    reported: bool = False
    drained: Member | None = None


class Phase(IntEnum):
    """Of an attempt."""

    TO_SEND = 0
    ANSWERED = 1
    ENDING = 2


class Spark(NamedTuple):
    """One event an epoch. `target`: where the attempt's lane was opened; a route may be old, so it may be any node."""

    label: Label = Label(0, 0)
    target: Member | None = None
    phase: Phase = Phase.TO_SEND
    answer: int = 0


class Budget(NamedTuple):
    """How often each fault, or thing nobody has to do, may still happen."""

    losses: int = 0  # a node and its disk
    suspicions: int = 0  # of a node that is alive
    failures: int = 0  # of an attempt that could go on
    joins: int = 0  # of a new replica
    drains: int = 0  # of the owner's node


class World(NamedTuple):
    """Everything."""

    registry: Registry
    nodes: tuple[Node, ...]
    spark: Spark
    budget: Budget
