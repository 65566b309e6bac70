"""A simulated deployment for a node's controllers: slots with queues under a load, sampled once a second on a simulated clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elasticity.scaling.journal import Woken
from elasticity.scaling.model import Sample
from elasticity.scaling.modes import AUTO, Elasticity
from node_manager.control.controllers import Controlled
from node_manager.control.looks import SlotLook, rates
from node_manager.control.samples import host, sample
from udo_protocol.errors import OperatorError

# The answers per second of a slot that is always busy, with one event in each frame.
CAPACITY = 100
WINDOW_S = 10.0


@dataclass
class _SimulatedSlot:
    arrived: float = 0.0
    answered: float = 0.0
    looks: deque[SlotLook] = field(default_factory=lambda: deque(maxlen=60))

    def second(self, at_s: float, arrivals: float, lanes: int) -> None:
        self.arrived += arrivals
        self.answered += min(self.arrived - self.answered, float(CAPACITY))
        n, work = int(self.answered), self.answered / CAPACITY
        self.looks.append(SlotLook(at_s, "i", int(self.arrived), n, lanes, 0, n, n, n, work, work, 1 << 20, 1.0, 1 << 30))


class SimulatedPlant:
    """Deployment `d`: `load(second)` events/s, spread evenly over its slots; `lanes` in each slot."""

    node, cores = "n", 6

    def __init__(self, load: Callable[[float], float], wish: Elasticity, lanes: int = 4) -> None:
        self._load, self._lanes, self.now_s = load, lanes, 0.0
        self.controlled = Controlled("d", wish)
        self.slots = [_SimulatedSlot()]
        self.steps: list[tuple[float, int]] = []  # (when, number of slots afterwards)
        self.failing = ""
        self.held: list[Callable[[], None]] | None = None  # work that is not done yet; None: work is done at once

    def second(self) -> None:
        """Advance the clock by a second."""
        self.now_s += 1
        for one in self.slots:
            one.second(self.now_s, self._load(self.now_s) / len(self.slots), self._lanes)

    def deployments(self) -> list[Controlled]:
        return [self.controlled]

    def sample(self, name: str, at_s: float, most: int) -> Sample:
        seen = [(number, rates(list(one.looks), WINDOW_S)) for number, one in enumerate(self.slots)]
        return sample(at_s, name, seen, host(self.node, 0.5, 10), most)

    def move(self, name: str, groups: Sequence[tuple[int, str]]) -> None:
        raise OperatorError("it keeps no state")

    def wakes(self, name: str) -> list[Woken]:
        return []

    def prepare(self, name: str, slots: int) -> None:
        raise OperatorError("it keeps no state")

    def stand_down(self, name: str) -> None:
        raise OperatorError("it keeps no state")

    def scale(self, name: str, slots: int) -> None:
        if self.failing:
            raise OperatorError(self.failing)
        self.steps.append((self.now_s, slots))
        self.slots = [*self.slots, *(_SimulatedSlot() for _ in range(slots - len(self.slots)))][:slots]

    def beside(self, work: Callable[[], None], about: str) -> None:
        if self.held is None:
            work()
        else:
            self.held.append(work)


def automatic(policy: str, **settings: float) -> Elasticity:
    """The elasticity of a deployment in mode auto: one to six slots."""
    return Elasticity(AUTO, policy, 1, 6, settings=settings)
