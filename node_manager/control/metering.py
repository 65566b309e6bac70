"""The usage of each deployment: events, bytes, processor time, and bytes of state over time; kept on disk across restarts.

An instance counts since its own start (udo_protocol/queue/slot.py), so the meter adds the difference from the counts that it last knew of
the instance. Both are written down together: a manager that starts goes on exactly where the instance it adopts was. A former owner is read
for a while longer, since it publishes its last counters when it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from node_manager.files import read_json, write_json

COUNTED = ("events_in", "events_out", "bytes_in", "bytes_out", "cpu_s")
# Written this often; a manager that is killed loses later counts of the instances that end before its next start.
SAVE_S = 10.0
# State is measured this often; after a standstill of the node manager at most twice this time is counted.
STATE_S = 30.0
# A former owner ends within the node manager's grace of 10 s.
FORMER_LOOKS = 20
# Deployments kept, including undeployed ones, and queries kept of each.
KEPT_DEPLOYMENTS, KEPT_QUERIES = 1000, 1000
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Usage:
    """The usage of a deployment. events, bytes: read and answered by its owners. cpu_s: processor seconds of its owners. state_byte_hours:
    of keyed state, in total and by query (session). since, until: seconds since 1970."""

    since: float
    until: float
    events_in: float = 0.0
    events_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    cpu_s: float = 0.0
    state_byte_hours: float = 0.0
    queries: Mapping[str, float] = field(default_factory=dict)


@dataclass
class _Known:
    """An instance's deployment and slot, its last known counts, and for how many more looks it is read as a former owner."""

    deployment: str
    slot: int
    counted: dict[str, float]
    looks: int = FORMER_LOOKS


class Meter:
    """See the module; `path`: the file. `count` and `hold` are called by one thread, the others by any."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()
        self._usage: dict[str, Usage] = {}
        self._known: dict[str, _Known] = {}
        self._changed = False
        self._saved_s = self._state_s = float("-inf")

    def load(self) -> None:
        """Continue with the usage that a former manager wrote. Call it once this manager has locked the home."""
        told = read_json(self._path) or {}
        with self._lock:
            self._usage = {name: Usage(**u) for name, u in told.get("usage", {}).items()}
            self._known = {name: _Known(**k) for name, k in told.get("instances", {}).items()}

    def usage(self) -> dict[str, Usage]:
        """Usage by deployment."""
        with self._lock:
            return dict(sorted(self._usage.items()))

    def former(self, deployment: str, slot: int, owner: str) -> list[str]:
        """Instances that owned the slot a moment ago, which are to be read once more."""
        return [name for name, k in self._known.items() if (k.deployment, k.slot) == (deployment, slot) and name != owner]

    def count(self, deployment: str, slot: int, instance: str, counted: Mapping[str, float], at: float) -> None:
        """Add the counts of an instance since its start; `at`: seconds since 1970."""
        known = self._known.get(instance)
        before = known.counted if known else {}
        more: dict[str, Any] = {n: max(0.0, counted[n] - before.get(n, 0.0)) for n in COUNTED if n in counted}
        if known is None:
            known = self._known[instance] = _Known(deployment, slot, {})
        known.counted = {n: max(before.get(n, 0.0), counted.get(n, 0.0)) for n in COUNTED}
        if any(more.values()):
            with self._lock:
                u = self._of(deployment, at)
                self._usage[deployment] = replace(u, until=at, **{n: getattr(u, n) + value for n, value in more.items()})
                self._changed = True

    def count_former(self, instance: str, counted: Mapping[str, float], at: float) -> None:
        """Count a former owner, and forget it after some looks."""
        known = self._known[instance]
        self.count(known.deployment, known.slot, instance, counted, at)
        known.looks -= 1
        if known.looks <= 0:
            del self._known[instance]

    def state_due_s(self, now_s: float) -> float | None:
        """The seconds for which a measurement of state at `now_s` (monotonic) counts; None if none is due."""
        passed = now_s - self._state_s
        if passed < STATE_S:
            return None
        self._state_s = now_s
        return min(passed, 2 * STATE_S) if passed < float("inf") else 0.0

    def hold(self, deployment: str, sessions: Mapping[str, int], seconds: float, at: float) -> None:
        """Add the bytes of state that a deployment's queries have kept for `seconds`."""
        hours = {session: size * seconds / _HOUR_S for session, size in sessions.items() if size and seconds}
        if not hours:
            return
        with self._lock:
            u = self._of(deployment, at)
            queries = {**u.queries, **{session: u.queries.get(session, 0.0) + more for session, more in hours.items()}}
            kept = dict(sorted(queries.items(), key=lambda q: q[0] in sessions)[-KEPT_QUERIES:])
            self._usage[deployment] = replace(u, until=at, state_byte_hours=u.state_byte_hours + sum(hours.values()), queries=kept)
            self._changed = True

    def _of(self, deployment: str, at: float) -> Usage:
        if deployment not in self._usage and len(self._usage) >= KEPT_DEPLOYMENTS:
            del self._usage[min(self._usage, key=lambda name: self._usage[name].until)]
        return self._usage.setdefault(deployment, Usage(at, at))

    def gone(self, there: Iterable[tuple[str, int]]) -> None:
        """Forget instances of slots that are not in `there`."""
        left = set(there)
        for name in [n for n, known in self._known.items() if (known.deployment, known.slot) not in left]:
            del self._known[name]

    def save(self, now_s: float, *, force: bool = False) -> None:
        """Write the usage to disk, if it has changed and is due."""
        if not self._changed or (now_s - self._saved_s < SAVE_S and not force):
            return
        with self._lock:
            usage = {name: asdict(u) for name, u in self._usage.items()}
            self._changed, self._saved_s = False, now_s
        write_json(self._path, {"usage": usage, "instances": {name: asdict(known) for name, known in self._known.items()}})
