"""A canary that is watched."""

from __future__ import annotations

import threading
from typing import Any

from tests.conftest import bound, wait_until
from tests.support.cluster import Cluster

# Version 2 of the tests below: b = a + 100, fails on event -1, sleeps on event -2, dies of event -3.
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
    """An update with a canary, followed in a thread."""

    def __init__(self, c: Cluster, for_s: float, *rollback_if: str, percent: float = 50, min_events: int = 1) -> None:
        wish = {"percent": percent, "for_s": for_s, "rollback_if": list(rollback_if), "min_events": min_events}
        self._events = c.client.update("d", "2", canary=wish)
        self.events: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for event in self._events:
            self.events.append(event)

    def sharing(self) -> Watched:
        """Once the new version serves its share."""
        wait_until(lambda: any(e["phase"] in ("sharing", "failed") for e in self.events), 60, "the canary to begin")
        assert self.events[-1]["phase"] != "failed", self.events[-1]
        return self

    def end(self) -> dict[str, Any]:
        """The last event."""
        self._thread.join(bound(60))
        assert not self._thread.is_alive(), self.events
        return self.events[-1]
