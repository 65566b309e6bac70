"""A diff that runs in a thread."""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue.connection import Connection

# The kinds of keys that a diff or a canary uses on the two servers.
_KINDS = {"mirrors", "served", "servedbytes", "compared", "differ", "pins", "changelog", "logged", "readers", "reading"}


def traces(conn: Connection) -> set[str]:
    """The kinds of keys of deployment `d` that are left on a server by a diff or a canary."""
    found = {bytes(key).split(b":")[3].decode("latin-1") for key in conn.call("KEYS", "udo:d:0:*")} & _KINDS
    if {bytes(pin) for pin in conn.call("HKEYS", "udo:d:0:pins")} == {b"rollback"}:  # the pin of an update to another form of state
        found.discard("pins")
    return found


class Running:
    """A diff in a thread of its own, as the command line runs it."""

    def __init__(self, daemon: Daemon, digest: str, for_s: float = 60.0, examples: int = 1000, name: str = "d") -> None:
        self._events = daemon.api.diff(name, "", digest, for_s=for_s, examples=examples)
        self.reports: list[dict[str, Any]] = []
        self.examples: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self._events:
                self.take(event)
        except Exception as e:
            self.error = e

    def take(self, event: pb.DiffEvent) -> None:
        """Collect one message."""
        self.reports.append(json.loads(event.report_json))
        self.examples += map(json.loads, event.examples_json)

    def begun(self) -> Running:
        """Wait until the comparison has begun."""
        wait_until(lambda: bool(self.reports) or self.error is not None, 30, "the diff to begin")
        assert self.error is None, self.error
        return self

    def seen(self, frames: int) -> Running:
        """Wait until this many frames have been seen."""
        wait_until(lambda: self.reports[-1].get("seen", 0) >= frames, 20, f"{frames} frames to be compared")
        return self

    def end(self) -> dict[str, Any]:
        """Wait for the last report, and return it."""
        self._thread.join(bound(100))
        assert not self._thread.is_alive()
        assert self.error is None, self.error
        assert self.reports[-1].get("final"), self.reports[-1]
        return self.reports[-1]
