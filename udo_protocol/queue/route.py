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
from udo_protocol.state import untrusted


@dataclass(frozen=True, slots=True)
class Route:
    """`version`: the only one by which the slot takes frames; 0: never changed. `slots`: all slots, by their prefixes, over nodes by the
    names that the registry's placement gives them.

    Of a keyed deployment also its group map: `map_version`, for each key group the place of its slot, and of each slot the version by
    which it takes frames once it knows of this map.
    """

    version: int
    slots: tuple[str, ...]
    map_version: int = 0
    groups: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()

    def encode(self) -> str:
        """The JSON text that the slot keeps, and sends with MOVED."""
        table: dict[str, Any] = {"version": self.version, "slots": self.slots}
        if self.groups:
            table |= {"map_version": self.map_version, "groups": self.groups, "versions": self.versions}
        return json.dumps(table)

    @classmethod
    def decode(cls, table: Any) -> Route:
        """From the text in a MOVED answer; ProtocolError if it is no route."""
        try:
            found = json.loads(bytes(table))
            lists = (tuple(map(int, found.get(name, ()))) for name in ("groups", "versions"))
            route = cls(int(found["version"]), tuple(map(str, found["slots"])), int(found.get("map_version", 0)), *lists)
            if route.groups and (max(route.groups) >= len(route.slots) or len(route.versions) != len(route.slots)):
                raise ValueError("a group map names slots that the route does not have")
            return route
        except (ValueError, TypeError, LookupError) as e:
            raise ProtocolError(f"expected a route as JSON, with version and slots, got {table!r:.200}: {e}") from e


def change(queue: Connection, prefix: str, route: Route) -> None:
    """From here on frames are accepted by this route only, unless the slot has a newer one."""
    queue.call("FCALL", "udo_route", 1, prefix, route.version, route.encode())


def told(queue: Connection, prefix: str) -> tuple[bytes, int]:
    """The last frame that the node manager wrote into the slot's log, and the number of the one by which a move raised the route."""
    frame, cut = queue.call("HMGET", f"{prefix}route", "frame", "cut")
    return bytes(frame or b""), int(cut or 0)


def frames_told(queue: Connection, prefix: str) -> int:
    """How many frames the node manager has written into the slot's log."""
    (found,) = untrusted.read(queue, ("HGET", f"{prefix}route", "told"))
    return untrusted.number(found, f"{prefix}route")


def version(queue: Connection, prefix: str) -> int:
    """The version that the slot accepts."""
    return int(queue.call("HGET", f"{prefix}route", "v") or 0)
