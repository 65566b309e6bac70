"""A simulated cluster that adapts to its load by moving key groups: the moves that find a checkpoint at their target.

Every policy sees the same loads and the same rule of adaptation; only the placement of checkpoints differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field

import numpy as np

from elasticity.allocation.baselines import allocate_even, allocate_random
from elasticity.allocation.costs import Costs, Protocol
from elasticity.allocation.greedy import allocate
from elasticity.allocation.history import Floats, Ints, LoadHistory
from elasticity.allocation.planning import Move, Planner, apply, usable
from elasticity.allocation.reallocation import reallocate
from elasticity.allocation.values import checkpoint_values, node_loads


@dataclass(frozen=True)
class Setup:
    """A cluster and its loads: key groups × steps, as shares of a node. The first `statistics` steps only collect statistics."""

    loads: Floats
    owner: Ints
    nodes: int
    limit: float  # load above which a node is overloaded
    statistics: int
    window: int  # samples a load history holds
    planner: Planner
    state_bytes: Floats  # key groups × steps
    replay_events: Floats  # key groups × steps: events since the last checkpoint
    checkpoint_steps: int  # steps between two checkpoints of a group: lazy_move waits for the next one
    reallocate_steps: int = 0  # steps between two re-allocations; 0: none
    tolerance: float = 0.05  # φ′
    costs: Costs = field(default_factory=Costs)


@dataclass
class Outcome:
    """The counts of a run; `+` sums several runs."""

    moves: int = 0
    assisted: int = 0
    usable: int = 0
    considered: int = 0  # checkpoints of groups on overloaded nodes, summed over steps
    overloaded: int = 0  # nodes above the limit, summed over steps
    could_move: int = 0  # of those considered, the ones whose group some node could take: an upper bound of `usable` for any placement
    latency_ms: float = 0.0  # over all moves, assisted ones by CPA
    latency_cpal_ms: float = 0.0  # the same, assisted ones by CPAL
    waited_steps: int = 0  # lazy_move: steps from the decision to the move
    checkpoints_moved: int = 0  # by re-allocation

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


# Statistics so far, owners, nodes, random numbers → placement.
Allocation = Callable[[LoadHistory, Ints, int, np.random.Generator], Ints]


def optimised(history: LoadHistory, owner: Ints, nodes: int, rng: np.random.Generator) -> Ints:
    """Place by correlation alone, as in the paper, without a limit on fairness."""
    return allocate(checkpoint_values(history.samples(), owner, nodes), history.mean())


def even(history: LoadHistory, owner: Ints, nodes: int, rng: np.random.Generator) -> Ints:
    """Place by even distribution."""
    return allocate_even(owner, nodes, rng)


def random(history: LoadHistory, owner: Ints, nodes: int, rng: np.random.Generator) -> Ints:
    """Place at random, as the baseline."""
    return allocate_random(owner, nodes, rng)


def run(s: Setup, allocation: Allocation, seed: int, *, lazy: bool = False) -> Outcome:
    """Run the simulation. `lazy`: a move waits until the next full checkpoint has been written to its target."""
    history, owner = LoadHistory(len(s.loads), s.window), s.owner
    for step in range(s.statistics):
        history.add(s.loads[:, step])
    placement = allocation(history, owner, s.nodes, np.random.default_rng(seed))
    found = Outcome()
    waiting: dict[int, tuple[int, Move]] = {}
    for step in range(s.statistics, s.loads.shape[1]):
        loads = s.loads[:, step]
        history.add(loads)
        if s.reallocate_steps and (step - s.statistics) % s.reallocate_steps == s.reallocate_steps - 1:
            placement = _reallocated(s, history, owner, placement, found)
        fitting, considered = usable(loads, owner, placement, s.limit, s.nodes)
        found.usable += fitting
        found.considered += considered
        found.could_move += could_move(loads, owner, s.limit, s.nodes)
        found.overloaded += int((node_loads(loads, owner, s.nodes) > s.limit).sum())
        moves = s.planner(loads, owner, placement, s.limit, s.nodes)
        if lazy:
            moves, placement = _lazily(moves, placement, waiting, step, s.checkpoint_steps, found)
        _count(s, moves, step, found)
        owner, placement = apply(moves, owner, placement)
        waiting = {g: w for g, w in waiting.items() if owner[g] == w[1].source}
    return found


def _lazily(
    moves: tuple[Move, ...], placement: Ints, waiting: dict[int, tuple[int, Move]], step: int, every: int, found: Outcome
) -> tuple[tuple[Move, ...], Ints]:
    """Make assisted moves at once; the others when the next checkpoint is at their target, if they are still planned then."""
    placement = placement.copy()
    now = [m for m in moves if m.assisted]
    for m in moves:
        if m.assisted:
            continue
        decided, _ = waiting.setdefault(m.group, (step, m))
        if step // every > decided // every:
            placement[m.group, 0] = m.target
            found.waited_steps += step - decided
            now.append(Move(m.group, m.source, m.target, True))
    return tuple(now), placement


def _reallocated(s: Setup, history: LoadHistory, owner: Ints, placement: Ints, found: Outcome) -> Ints:
    values = checkpoint_values(history.samples(), owner, s.nodes)
    fresh = reallocate(values, history.mean(), placement, tolerance=s.tolerance)
    found.checkpoints_moved += int((fresh != placement).sum())
    return fresh


def _count(s: Setup, moves: tuple[Move, ...], step: int, found: Outcome) -> None:
    for m in moves:
        of = s.state_bytes[m.group, step], s.replay_events[m.group, step]
        found.moves += 1
        found.assisted += m.assisted
        found.latency_ms += s.costs.latency_ms(Protocol.CPA if m.assisted else Protocol.DIRECT, *of)
        found.latency_cpal_ms += s.costs.latency_ms(Protocol.CPAL if m.assisted else Protocol.DIRECT, *of)


def could_move(loads: Floats, owner: Ints, limit: float, nodes: int) -> int:
    """Count the groups on overloaded nodes that the least loaded node could take."""
    load = node_loads(loads, owner, nodes)
    return int(((load[owner] > limit) & (load.min() + loads <= limit)).sum())
