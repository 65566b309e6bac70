"""The route that a slot keeps: the slots to which a deployment's frames go. Its version tells producers that use an older one.

Only the node manager changes it. The slot's queue server decides for each frame (lua/log.lua, accept): frames before the change are in the
log, later ones are refused as MOVED; there is no third case.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from udo_protocol.errors import ProtocolError
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys


@dataclass(frozen=True, slots=True)
class Route:
    """`version`: the only one by which the slot takes frames; 0: never changed. `slots`: all slots, by their prefixes; for a deployment
    over nodes by the names that the registry's placement gives them.

    For a keyed deployment also its group map: `map_version`; `groups`: the place of each key group's slot; `versions`: the version by
    which each slot takes frames once it knows this map.
    """

    version: int
    slots: tuple[str, ...]
    map_version: int = 0
    groups: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()

    def encode(self) -> str:
        """The JSON text that the slot keeps and sends with MOVED."""
        table: dict[str, Any] = {"version": self.version, "slots": self.slots}
        if self.groups:
            table |= {"map_version": self.map_version, "groups": self.groups, "versions": self.versions}
        return json.dumps(table)

    @classmethod
    def decode(cls, table: Any) -> Route:
        """The route in the text of a MOVED reply; ProtocolError if it is not a route."""
        try:
            found = json.loads(bytes(table))
            lists = (tuple(map(int, found.get(name, ()))) for name in ("groups", "versions"))
            route = cls(int(found["version"]), tuple(map(str, found["slots"])), int(found.get("map_version", 0)), *lists)
            if route.groups and (max(route.groups) >= len(route.slots) or len(route.versions) != len(route.slots)):
                raise ValueError("a group map names slots that the route does not have")
            return route
        except (ValueError, TypeError, LookupError) as e:
            raise ProtocolError(f"expected a route as JSON, with version and slots, got {table!r:.200}: {e}") from e


def change(queue: Connection, keys: SlotKeys, route: Route) -> None:
    """Accept frames only by this route from now on, unless the slot has a newer one."""
    queue.call("FCALL", "udo_route", 1, keys.prefix, route.version, route.encode())


def told(queue: Connection, keys: SlotKeys) -> tuple[bytes, int]:
    """The last frame that the node manager wrote into the slot's log, and the number of the frame by which a move raised the route."""
    frame, cut = queue.call("HMGET", keys.route, "frame", "cut")
    return bytes(frame or b""), int(cut or 0)


def frames_told(queue: Connection, keys: SlotKeys) -> int:
    """The number of frames that the node manager has written into the slot's log."""
    (found,) = untrusted.read(queue, ("HGET", keys.route, "told"))
    return untrusted.number(found, keys.route)


def version(queue: Connection, keys: SlotKeys) -> int:
    """The version of the route that the slot accepts."""
    return int(queue.call("HGET", keys.route, "v") or 0)
