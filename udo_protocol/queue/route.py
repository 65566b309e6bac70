"""Which slots a deployment's frames go to, as its slots know it: versioned, so that a producer that goes by an older one is told.

Only the node manager changes it. The slot's queue server decides for each frame (udo.lua, accept): before the change it is in the log,
after it refused as MOVED; there is no third case.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from udo_protocol.errors import ProtocolError
from udo_protocol.queue.connection import Connection


@dataclass(frozen=True, slots=True)
class Route:
    """`slots`: their prefixes; so far one, which has all key groups. Version 0: never changed."""

    version: int
    slots: tuple[str, ...]

    def encode(self) -> str:
        """As it lies on the slot."""
        return json.dumps({"version": self.version, "slots": self.slots})

    @classmethod
    def decode(cls, table: Any) -> Route:
        """Of a MOVED answer; ProtocolError if it is none."""
        try:
            found = json.loads(bytes(table))
            return cls(int(found["version"]), tuple(map(str, found["slots"])))
        except (ValueError, TypeError, LookupError) as e:
            raise ProtocolError(f"expected a route as JSON, with version and slots, got {table!r:.200}: {e}") from e


def change(queue: Connection, prefix: str, route: Route) -> None:
    """From here on frames are accepted by this route only."""
    queue.call("HSET", f"{prefix}route", "v", route.version, "table", route.encode())


def version(queue: Connection, prefix: str) -> int:
    """The version that the slot accepts."""
    return int(queue.call("HGET", f"{prefix}route", "v") or 0)
