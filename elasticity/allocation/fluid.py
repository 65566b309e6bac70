"""Fluid migration: run a plan in rounds, to bound the moves under way at once and their bytes per second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from elasticity.allocation.planning import Move
from udo_protocol.errors import UsageError


class Order(StrEnum):
    """The order in which groups move."""

    HOTTEST = "hottest"
    SMALLEST = "smallest"
    PLAN = "plan"


@dataclass(frozen=True)
class Bounds:
    """`round_bytes`: sum over one round, whose moves run at the same time; a single larger move is a round of its own."""

    moves_under_way: int = 8
    round_bytes: float = math.inf
    bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if self.moves_under_way < 1 or not self.round_bytes > 0 or not self.bytes_per_s > 0:
            raise UsageError(f"a plan needs at least 1 move under way, and more than 0 bytes a round and a second; got {self}")


@dataclass(frozen=True)
class Round:
    """Moves that begin once the round before has ended, but not earlier than `earliest_s` after the start of the plan."""

    moves: tuple[Move, ...]
    earliest_s: float


def rounds(
    moves: Sequence[Move], loads: Sequence[float], move_bytes: Sequence[float], bounds: Bounds, order: Order = Order.PLAN
) -> tuple[Round, ...]:
    """Cut the plan into rounds; `loads` and `move_bytes` are parallel to `moves`. Ties keep the plan's order."""
    ranks = {Order.HOTTEST: lambda i: -loads[i], Order.SMALLEST: lambda i: move_bytes[i], Order.PLAN: lambda i: i}
    made: list[Round] = []
    current: list[Move] = []
    current_bytes = sent_bytes = 0.0
    for i in sorted(range(len(moves)), key=ranks[order]):
        if current and (len(current) == bounds.moves_under_way or current_bytes + move_bytes[i] > bounds.round_bytes):
            made.append(Round(tuple(current), sent_bytes / bounds.bytes_per_s))
            sent_bytes += current_bytes
            current, current_bytes = [], 0.0
        current.append(moves[i])
        current_bytes += move_bytes[i]
    return (*made, Round(tuple(current), sent_bytes / bounds.bytes_per_s)) if current else ()
