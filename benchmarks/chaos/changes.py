"""Changes of the running version: their kinds, the steps of each, and waiting until they have taken place.

The versions (benchmarks/chaos/kinds.py) keep their state in two forms: 1, 2, 4 and 6 in the first, 3 and 5 in the other. 3 and 5
migrate from the first form, 4 and 6 from the other one; 1 and 2 read the first form only, so that a rollback to them from the other
form needs the kept state.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Protocol

from udo_protocol.errors import UdoError
from udo_protocol.queue.connection import Connection, ReplyError
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import rewinding

UPDATE, MIGRATE = "live update", "live update to another form of state"
BACK_KEPT, BACK_DOWN = "rollback by kept state and input", "rollback by down-migration"
CHANGES = (UPDATE, MIGRATE, BACK_KEPT, BACK_DOWN)
_OTHER_FORM = ("3", "5")
READS_BOTH = "4"
_EQUAL = {"1": "2", "2": "1", "3": "5", "5": "3", "4": "6", "6": "4"}
Step = tuple[str, str]  # the name under which it is counted, and the version it leads to
# While a server or the manager is away no change takes place; it is tried again for _TRY_S.
_TRY_S, _AGAIN_S = 12.0, 0.3


def equal(version: str) -> str:
    """Return the other version with the same form of state and the same code."""
    return _EQUAL[version]


def other_form(version: str) -> str:
    """Return a version with the other form of state that migrates from this one's."""
    return "4" if version in _OTHER_FORM else "3"


def plan(change: str, now: str, kept: str | None) -> list[Step]:
    """Return the steps that end with `change`. `now`: the serving version; `kept`: the version with kept state, '' for none.

    `kept` is None if state of this operator is never kept, so that its rollbacks are down-migrations.
    """
    other = now in _OTHER_FORM
    if change == BACK_KEPT and kept is None:
        change = BACK_DOWN
    if change == UPDATE:
        return [(UPDATE, equal(now))]
    if change == MIGRATE:
        return [(MIGRATE, other_form(now))]
    if change == BACK_DOWN:
        if other:
            return [(BACK_DOWN, "4")]
        return [(MIGRATE, "3"), (BACK_DOWN, now)] if now in ("4", "6") else [(UPDATE, "4"), (MIGRATE, "3"), (BACK_DOWN, "4")]
    if other and kept in ("1", "2"):
        return [(BACK_KEPT, kept)]
    if now in ("1", "2"):
        return [(MIGRATE, "3"), (BACK_KEPT, now)]
    return [*([(MIGRATE, "4")] if other else []), (UPDATE, "2"), (MIGRATE, "3"), (BACK_KEPT, "2")]


def kept_everywhere(state: Connection, queue: Connection, deployment: str, slots: Sequence[int]) -> str:
    """Return the digest of the version whose state is kept in every slot (no `slots`: the only one, 0); '' if there is none."""
    found = [rewinding.kept(state, SlotKeys(deployment, number)) for number in slots or [0]]
    digests = {f.digest if f is not None and f.run_id == queue.run_id else "" for f in found}
    return digests.pop() if len(digests) == 1 else ""


class Changeable(Protocol):
    """A platform whose deployments can be changed. All methods may raise UdoError while parts of it are away."""

    def version(self, deployment: str) -> str:
        """Return the serving version."""

    def kept(self, deployment: str) -> str | None:
        """Return the version whose state is kept for a rollback; '' for none, None if state is never kept."""

    def change(self, deployment: str, version: str, *, back: bool) -> str:
        """Update or roll back to this version; return '' if it took place, else why not."""


class Changes:
    """Changes of one platform's deployments, one at a time for each deployment: a second one would supersede the first."""

    def __init__(self, platform: Changeable) -> None:
        self._platform = platform
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    @contextmanager
    def alone(self, deployment: str) -> Iterator[bool]:
        """Lock the deployment against other changes; yield False if another one held the lock for too long."""
        lock = self._locks[deployment]
        got = lock.acquire(timeout=_TRY_S)
        try:
            yield got
        finally:
            if got:
                lock.release()

    def run(self, deployment: str, change: str, *, pause_s: float = 0.0, most: int = 9) -> tuple[list[str], str]:
        """Take `steps` while no other change of the deployment runs."""
        with self.alone(deployment) as alone:
            return self.steps(deployment, change, pause_s=pause_s, most=most) if alone else ([], "another one is under way")

    def steps(self, deployment: str, change: str, *, pause_s: float = 0.0, most: int = 9, try_s: float = _TRY_S) -> tuple[list[str], str]:
        """Carry out the steps of `change`, at most `most`, `pause_s` apart; return those that took place, and why the rest did not."""
        took: list[str] = []
        deadline, why, steps = time.monotonic() + try_s, "no time", list[Step]()
        while len(took) < most and time.monotonic() < deadline:
            try:
                now = self._platform.version(deployment)
                if steps and now == steps[0][1]:  # it took place, although the call failed
                    why = ""
                else:
                    if why or not steps:
                        steps = plan(change, now, self._platform.kept(deployment))
                    why = self._platform.change(deployment, steps[0][1], back=steps[0][0] in (BACK_KEPT, BACK_DOWN))
            except (UdoError, ReplyError, OSError, StopIteration) as e:
                why = f"{type(e).__name__}: {e}"
            if why:
                time.sleep(_AGAIN_S)
                continue
            (name, _), *steps = steps
            took.append(name)
            if not steps:
                break
            time.sleep(pause_s)
        return took, why
