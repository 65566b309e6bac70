"""A canary on this node: a slot of its own with the new version, and the choice of the new lanes that go there.

A lane stays in the slot it was opened in, so that its order holds. When the canary is over the slot serves the deployment's version, until
its last lane has been closed for a while.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

from node_manager.slots.slot import Slot
from udo_protocol.errors import SlotBroken
from udo_protocol.queue import slot as log
from udo_protocol.registry.canary import Measured

# A registry that has not heard of this canary for this long cannot decide: no new lanes go there until it has.
CONFIRMED_S = 60.0


@dataclass
class Canary:
    """One deployment's canary. `percent` of the lanes, by counting: 10 means every tenth."""

    update_id: str
    version: str
    digest: str
    percent: float
    slot: Slot
    lanes: int = 0
    confirmed_at: float = field(default_factory=time.monotonic)

    running = True

    def takes(self) -> bool:
        """Count one more lane; return whether it goes to the canary, if that answers at present."""
        before, self.lanes = self.lanes, self.lanes + 1
        its = int(self.lanes * self.percent / 100 + 1e-9) > int(before * self.percent / 100 + 1e-9)
        fresh = time.monotonic() - self.confirmed_at < CONFIRMED_S
        return its and fresh and self.slot.view().owner is not None

    def describe(self, number: int) -> str:
        """The canary in a few words, for the status of its slot; '' for any other."""
        return f"{self.percent:g} % of new lanes" if number == self.slot.number else ""

    def measured(self) -> Measured:
        """Its counts since it began."""
        view = self.slot.view()
        now: dict[str, float] = {}
        answered = 0
        with contextlib.closing(self.slot.node.servers.connect("queue")) as queue, contextlib.suppress(SlotBroken):
            now = log.read_stats(queue, self.slot.keys, view.owner.name) if view.owner else {}
            answered = log.slot_stats(queue, self.slot.keys).emitted
        total = {n: view.totals.get(n, 0.0) + now.get(n, 0.0) for n in ("events_in", "frames", "errors")}
        times = {n: now.get(n, 0.0) for n in ("p50_ms", "p99_ms")}
        errors = total["errors"] + view.restarts
        return Measured(events=total["events_in"], frames=total["frames"], errors=errors, answered=answered, **times)
