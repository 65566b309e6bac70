"""Breadth first through every order of steps; only hashes of the worlds seen are kept, a trace is found again from them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from tests.model import oracle
from tests.model.scope import Scope
from tests.model.state import World
from tests.model.steps import done, first, settle, steps


@dataclass(frozen=True)
class Result:
    """`problem` and its shortest `trace`, or neither. `complete`: every reachable world was looked at."""

    states: int
    seconds: float
    complete: bool
    finished: int = 0  # worlds in which the last epoch is committed
    problem: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        verdict = "VIOLATION" if self.problem else "COMPLETE" if self.complete else "BOUNDED"
        return f"{verdict:9} {self.states:>9,} states {self.seconds:7.1f} s"


def explore(s: Scope, max_states: int = 20_000_000) -> Result:
    """Look at every world reachable in this scope, nearest first; stop at the first problem or at the bound."""
    began = time.monotonic()
    start = settle(first(s), s)
    # The hash of a world -> the hash of the one before it. 64 bits: at 10 M worlds a collision has odds of 1 : 400,000.
    before: dict[int, int | None] = {hash(start): None}
    frontier = deque([start])
    finished = 0

    def result(complete: bool, world: World | None = None, last: str = "", problem: str | None = None) -> Result:
        trace = (*_trace(s, start, before, hash(world)), last) if problem else ()
        return Result(len(before), time.monotonic() - began, complete, finished, problem, tuple(t for t in trace if t))

    while frontier:
        world = frontier.popleft()
        here, progress = hash(world), False
        finished += done(world, s)
        problem = oracle.covered(world, s.rules) or (oracle.finished(world, s.rules) if done(world, s) else None)
        if problem:
            return result(False, world, "", problem)
        for step in steps(world, s):
            if step.problem:
                return result(False, world, step.text, step.problem)
            after = settle(step.world, s)
            key = hash(after)
            progress = progress or (not step.chosen and key != here)
            if key not in before:
                before[key] = here
                frontier.append(after)
        if problem := oracle.stuck(progress, done(world, s)):
            return result(False, world, "", problem)
        if len(before) > max_states:
            return result(False)
    return result(True)


def _trace(s: Scope, start: World, before: dict[int, int | None], goal: int) -> list[str]:
    """The steps from the start to the world of that hash."""
    path = [goal]
    while (previous := before[path[-1]]) is not None:
        path.append(previous)
    world, texts = start, []
    for key in reversed(path[:-1]):
        step, world = next((x, after) for x in steps(world, s) if hash(after := settle(x.world, s)) == key)
        texts.append(step.text)
    return texts
