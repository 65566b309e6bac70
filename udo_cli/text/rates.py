"""Counters of a node's slots, and rates between two looks. A counter that went down belongs to a new instance."""

from __future__ import annotations

from typing import Any

from udo_protocol.proto import node_manager_pb2 as pb


class Rates:
    """Remembers the last look at every slot."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[float, pb.SlotStats]] = {}

    def look(self, reply: pb.StatsReply, now_s: float) -> list[dict[str, Any]]:
        """One dict per slot: the fields of SlotStats and in_per_s, out_per_s, busy_share since the last look."""
        found = []
        for s in reply.slots:
            key = (s.deployment, s.slot)
            before_s, before = self._last.get(key, (now_s, s))
            took = now_s - before_s
            fields: dict[str, Any] = {f.name: getattr(s, f.name) for f in s.DESCRIPTOR.fields}
            fields["in_per_s"] = _rate(s.events_in, before.events_in, took)
            fields["out_per_s"] = _rate(s.events_out, before.events_out, took)
            fields["busy_share"] = min(1.0, _rate(s.busy_s, before.busy_s, took))
            self._last[key] = (now_s, s)
            found.append(fields)
        return sorted(found, key=lambda f: (f["deployment"], f["slot"]))


def _rate(now: float, before: float, took_s: float) -> float:
    return max(0.0, now - before if now >= before else now) / took_s if took_s > 0 else 0.0
