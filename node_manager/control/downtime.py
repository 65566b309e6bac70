"""The downtime of deployments: how long a slot had no owner, according to the monitor's looks, or key groups waited for their move to
another node; and the downtime that each step cost. It is the second objective of an SLA.

A slot counts once it has had an owner: a new one gets no lanes before, and one that sleeps is woken by its next frame. The resolution is
that of the looks, one a second. A move is measured exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticity.scaling.model import Kind
from node_manager.control.samples import DOWNTIME_MS
from node_manager.deployments.deployments import Deployments

# The most that one look counts; a machine that stood still measured nothing.
_MOST_S = 5.0


class Downtime:
    """The downtime of one node. `look` is called by one thread, the others by any."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments
        self._seconds: dict[str, float] = {}
        self._moving_s: dict[str, float] = {}
        self._served: set[tuple[str, int]] = set()
        self._costs: dict[tuple[str, Kind], float] = {}
        self._last_s: float | None = None

    def look(self, now_s: float) -> None:
        """Count the time since the last round of the monitor. now_s: monotonic."""
        passed, self._last_s = min(now_s - self._last_s, _MOST_S) if self._last_s is not None else 0.0, now_s
        there: set[tuple[str, int]] = set()
        for deployment in self._deployments.all():
            down = False
            for slot in deployment.own:
                known = (deployment.name, slot.number)
                if slot.view().owner is not None:
                    there.add(known)
                elif known in self._served and not slot.asleep:
                    there.add(known)
                    down = True
            if down:
                self._seconds[deployment.name] = self._seconds.get(deployment.name, 0.0) + passed
        self._served = there
        names = {name for name, _ in there}
        self._costs = {key: ms for key, ms in list(self._costs.items()) if key[0] in names}

    def moved(self, deployment: str, seconds: float) -> None:
        """Count the seconds for which key groups waited. Called by one thread per deployment."""
        self._moving_s[deployment] = self._moving_s.get(deployment, 0.0) + seconds

    def seconds(self, deployment: str) -> float:
        """Downtime since this node manager started."""
        return round(self._seconds.get(deployment, 0.0) + self._moving_s.get(deployment, 0.0), 3)

    def cost(self, deployment: str, kind: Kind, ms: float) -> None:
        """Note the cost of a step, which is then expected of the next one of its kind."""
        self._costs[deployment, kind] = max(ms, DOWNTIME_MS[kind])

    def costs_ms(self, deployment: str) -> Mapping[Kind, float]:
        """The expected cost of a step of each kind: that of the last one, else the least that is counted."""
        return {kind: self._costs.get((deployment, kind), ms) for kind, ms in DOWNTIME_MS.items()}
