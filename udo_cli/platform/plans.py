"""Plans of a rebalance: a slot for each key group, carried out in rounds of bounded size (fluid migration).

While a group moves, its events wait; the fewer move at once, the shorter each pause. Between two rounds the group map is as complete as
before the first, so a plan can be stopped between rounds and begun again: groups that are in their wanted slot do not move.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from udo_cli.platform import over_nodes, slot_names
from udo_protocol import ranges
from udo_protocol.errors import Conflict, NotFound, UdoError, UsageError
from udo_protocol.limits import MOST_KEY_GROUPS
from udo_protocol.node.api import NodeClient

SlotName = int | str  # its number, over nodes NODE:NUMBER
Plan = Mapping[int, SlotName]  # key group -> its slot
# A stopped command leaves its move to the node, which finishes it; the next command waits for this move.
_FORMER_S, _LOOK_S = 10.0, 0.1
_EXAMPLE = '{"0-15": 1000, "40": 0}'


@dataclass(frozen=True)
class PlanStep:
    """Key groups that move at the same time, to one slot."""

    groups: tuple[int, ...]
    to: SlotName


@dataclass(frozen=True)
class StepDone:
    """`step` is done, in `ms`; `moved` of `total` key groups are where the plan wants them."""

    step: PlanStep
    round: int
    rounds: int
    moved: int
    total: int
    ms: float


def read(path: Path) -> Plan:
    """Read a plan from a JSON file: `{"0-15": 1000, "40": 0}`, key groups → slot, over nodes `{"0-15": "b:0"}`.

    UsageError for anything else, or a group that is named twice.
    """
    try:
        found: Any = json.loads(path.read_text("utf-8"), object_pairs_hook=tuple)
    except (OSError, ValueError) as e:
        raise UsageError(f"--plan: expected JSON such as {_EXAMPLE} in {path}, got: {e}") from e
    if not isinstance(found, tuple) or not found:
        raise UsageError(f"--plan: expected an object such as {_EXAMPLE} in {path}, got {found!r:.100}")
    plan: dict[int, SlotName] = {}
    for groups, slot in found:
        numbers = ranges.parsed(groups, MOST_KEY_GROUPS)
        if not numbers or not _is_slot(slot):
            raise UsageError(f"--plan: expected key groups and the number of a slot, such as {_EXAMPLE}, got {groups!r}: {slot!r:.100}")
        if twice := plan.keys() & set(numbers):
            raise UsageError(f"--plan: expected each key group once, got {ranges.shown(twice)} twice")
        plan |= dict.fromkeys(numbers, slot)
    return plan


def _is_slot(found: object) -> bool:
    if isinstance(found, str):
        node, colon, number = found.rpartition(":")
        return bool(node and colon and number.isdecimal())
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


def where(node: NodeClient, name: str, plan: Plan) -> dict[SlotName, list[int]]:
    """Slot -> its key groups, on that node, or on all nodes if the plan names slots NODE:NUMBER. UsageError if it keeps no state."""
    if any(isinstance(slot, str) for slot in plan.values()):
        return {slot.name: list(slot.groups) for slot in over_nodes.slots(node, name)}
    status = node.status()
    there = [s for s in status.slots if s.deployment == name]
    if not there:
        raise NotFound(f"no deployment {name!r} on node {status.node}; look at: udo status")
    mapped: dict[SlotName, list[int]] = {s.slot: ranges.parsed(s.groups, MOST_KEY_GROUPS) for s in there if s.map_version}
    if not mapped:
        raise UsageError(f"deployment {name!r} keeps no state, so it has no key groups to move")
    return mapped


def rounds(plan: Plan, now: Mapping[SlotName, Sequence[int]], under_way: int) -> list[list[PlanStep]]:
    """The moves from `now` (slot -> its groups) to the plan, at most `under_way` groups at once. Errors for unknown groups or slots.

    Moves are in the order of slots, so that few rounds concern more than two slots.
    """
    from elasticity.allocation import fluid
    from elasticity.allocation.planning import Move

    names = list(now)
    source = {g: names.index(slot) for slot, groups in now.items() for g in groups}
    if unknown := plan.keys() - source.keys():
        raise UsageError(f"--plan: there are the key groups {ranges.shown(source)}, got {ranges.shown(unknown)}")
    if strange := set(plan.values()) - now.keys():
        raise NotFound(f"--plan: there are the slots {', '.join(map(str, now))}, got {', '.join(map(str, strange))}; look at: udo status")
    wanted = {g: names.index(slot) for g, slot in plan.items()}
    moves = [Move(g, source[g], to, assisted=False) for g, to in wanted.items() if source[g] != to]
    moves.sort(key=lambda m: (m.source, m.target, m.group))
    nothing = [0.0] * len(moves)
    found = fluid.rounds(moves, nothing, nothing, fluid.Bounds(moves_under_way=under_way))
    return [_steps(r.moves, names) for r in found]


def _steps(moves: Sequence[Any], names: Sequence[SlotName]) -> list[PlanStep]:
    ordered = groupby(sorted(moves, key=lambda m: m.target), lambda m: int(m.target))
    return [PlanStep(tuple(m.group for m in of), names[target]) for target, of in ordered]


def carry_out(
    node: NodeClient, name: str, planned: Sequence[Sequence[PlanStep]], strategy: str, wait_s: float, before: int = 0
) -> Iterator[StepDone]:
    """Carry out a plan step by step; `before`: groups of the plan that need not move. An error leaves finished steps done, and counts them.

    WaitTimeout if a step takes longer than `wait_s`; the node finishes that step.
    """
    moved, total = before, before + sum(len(step.groups) for steps in planned for step in steps)
    for number, steps in enumerate(planned, 1):
        for step in steps:
            try:
                ms = _carried_out(node, name, step, strategy, wait_s, _FORMER_S if moved == before else 0.0)
            except UdoError as e:
                raise type(e)(f"{e}. {moved} of {total} key groups are where the plan wants them: give the same command again") from e
            moved += len(step.groups)
            yield StepDone(step, number, len(planned), moved, total, ms)


def _carried_out(node: NodeClient, name: str, step: PlanStep, strategy: str, wait_s: float, former_s: float) -> float:
    """Carry out a step and return its duration in ms. Conflict if another move is still under way after `former_s`."""
    deadline, ms = time.monotonic() + former_s, 0.0
    target, slot = slot_names.parsed(str(step.to), "--plan")
    while True:
        try:
            for event in node.move_groups(name, step.groups, slot, strategy, wait_s, target):
                ms = event.at_ms
            return ms
        except Conflict:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_S)
