"""An update with a canary, and its events."""

from __future__ import annotations

import threading
from typing import Any

from tests.conftest import bound, wait_until
from tests.support.cluster import Cluster
from tests.support.nodes import Nodes

# Version 2 of the tests below: b = a + 100, fails on event -1, sleeps on event -2, dies on event -3.
TWO = """
import os, time
from udo_runtime import operator
@operator
def run(batch):
    a = batch.column("a").to_pylist()
    if -1 in a: raise ValueError("no negative event")
    if -2 in a: time.sleep(0.05)
    if -3 in a: os._exit(9)
    return {"b": [x + 100 for x in a]}
"""


class Watched:
    """An update with a canary, whose events a thread collects."""

    def __init__(
        self,
        c: Cluster | Nodes,
        for_s: float,
        *rollback_if: str,
        percent: float = 50,
        min_events: int = 1,
        name: str = "d",
        version: str = "2",
    ) -> None:
        wish = {"percent": percent, "for_s": for_s, "rollback_if": list(rollback_if), "min_events": min_events}
        self._client, self._name = c.client, name
        self._events = c.client.update(name, version, canary=wish)
        self.events: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for event in self._events:
            self.events.append(event)

    def sharing(self) -> Watched:
        """Wait until the new version serves its share."""
        wait_until(lambda: any(e["phase"] in ("sharing", "failed") for e in self.events), 60, "the canary to begin")
        assert self.events[-1]["phase"] != "failed", self.events[-1]
        return self

    def measured(self) -> dict[str, dict[str, Any]]:
        """The counts of each node, as reported to the registry."""
        update = self._client.deployment(self._name)["update"]
        nodes = self._client.update_status(update["id"])["nodes"] if update else []
        return {n["node"]: n["measured"] or {} for n in nodes}

    def counted(self, **least: float) -> dict[str, dict[str, Any]]:
        """Wait until the counts of all nodes together are at least that, and return them by node."""

        def enough() -> bool:
            every = self.measured().values()
            return all(sum(found.get(n, 0) for found in every) >= v for n, v in least.items())

        wait_until(enough, 30, f"the canary to count {least}")
        return self.measured()

    def end(self) -> dict[str, Any]:
        """Wait for the end, and return the last event."""
        self._thread.join(bound(60))
        assert not self._thread.is_alive(), self.events
        return self.events[-1]
