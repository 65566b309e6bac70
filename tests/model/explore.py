"""Breadth-first search through every order of steps; it keeps only hashes of the worlds seen, and reconstructs a trace from them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tests.model import oracle
from tests.model.lanes import Step as SlotStep
from tests.model.scope import Scope
from tests.model.state import World
from tests.model.steps import done, first, settle, steps

W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)


@dataclass(frozen=True)
class Result:
    """`problem` and its shortest `trace`, or neither. `complete`: every reachable world was explored."""

    states: int
    seconds: float
    complete: bool
    finished: int = 0  # worlds in which the last epoch is committed
    problem: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        verdict = "VIOLATION" if self.problem else "COMPLETE" if self.complete else "BOUNDED"
        return f"{verdict:9} {self.states:>9,} states {self.seconds:7.1f} s"


class Step(Protocol[W_co]):
    """A possible next step. `chosen`: a fault or a free choice, which does not count as progress. `problem`: the step is a violation."""

    @property
    def text(self) -> str: ...
    @property
    def world(self) -> W_co: ...
    @property
    def chosen(self) -> bool: ...
    @property
    def problem(self) -> str | None: ...


class Model(Protocol[W]):
    """A model to explore. Worlds are compared by their hashes."""

    def first(self) -> W: ...
    def steps(self, world: W) -> Iterable[Step[W]]: ...
    def settle(self, world: W) -> W: ...
    def problem(self, world: W) -> str | None: ...
    def done(self, world: W) -> bool: ...


@dataclass(frozen=True)
class SlotModel:
    """The keyed slot protocol in one scope."""

    scope: Scope

    def first(self) -> World:
        return first(self.scope)

    def steps(self, world: World) -> Iterable[SlotStep]:
        return steps(world, self.scope)

    def settle(self, world: World) -> World:
        return settle(world, self.scope)

    def problem(self, world: World) -> str | None:
        rules = self.scope.rules
        return oracle.covered(world, rules) or (oracle.finished(world, rules) if self.done(world) else None)

    def done(self, world: World) -> bool:
        return done(world, self.scope)


def explore(scope: Scope, max_states: int = 20_000_000) -> Result:
    """Explore the keyed slot protocol in one scope."""
    return search(SlotModel(scope), max_states)


def search(model: Model[W], max_states: int = 20_000_000) -> Result:
    """Explore every reachable world, nearest first; stop at the first problem or at the bound."""
    began = time.monotonic()
    start = model.settle(model.first())
    # The hash of each world -> the hash of the one before it. 64 bits: at 10 M worlds a collision has odds of 1 : 400,000.
    before: dict[int, int | None] = {hash(start): None}
    frontier = deque([start])
    finished = 0

    def result(complete: bool, world: W | None = None, last: str = "", problem: str | None = None) -> Result:
        trace = (*_trace(model, start, before, hash(world)), last) if problem else ()
        return Result(len(before), time.monotonic() - began, complete, finished, problem, tuple(t for t in trace if t))

    while frontier:
        world = frontier.popleft()
        here, progress, done = hash(world), False, model.done(world)
        finished += done
        if problem := model.problem(world):
            return result(False, world, "", problem)
        for step in model.steps(world):
            if step.problem:
                return result(False, world, step.text, step.problem)
            after = model.settle(step.world)
            key = hash(after)
            progress = progress or (not step.chosen and key != here)
            if key not in before:
                before[key] = here
                frontier.append(after)
        if problem := oracle.stuck(progress, done):
            return result(False, world, "", problem)
        if len(before) > max_states:
            return result(False)
    return result(True)


def _trace(model: Model[W], start: W, before: dict[int, int | None], goal: int) -> list[str]:
    """The texts of the steps from the start to the world with that hash."""
    path = [goal]
    while (previous := before[path[-1]]) is not None:
        path.append(previous)
    world, texts = start, []
    for key in reversed(path[:-1]):
        step, world = next((x, after) for x in model.steps(world) if hash(after := model.settle(x.world)) == key)
        texts.append(step.text)
    return texts
