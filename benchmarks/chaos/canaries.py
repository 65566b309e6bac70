"""Canaries under chaos: the choice of the version, the ending, and the judgement of the comparison."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from benchmarks.chaos.changes import MIGRATE, UPDATE, Changeable, Changes, equal, other_form
from benchmarks.chaos.kinds import OTHERWISE
from udo_protocol.registry.canary import Measured

CANARY, COMPARED, SEEN = "canary", "canary frames compared", "canary frames seen to be answered otherwise"
# Endings: the update goes through; the conditions decide against it; a user ends it.
PASSES, DECIDED, ENDED = "passes", "decided against", "ended"
_TRIES_OTHERWISE = "canary of a version that answers otherwise"


@dataclass(frozen=True)
class Tried:
    """The result of a canary that began. `promoted`: None where promotion is left to the caller; `why`: the reason in words."""

    measured: Measured
    promoted: bool | None = None
    why: str = ""


class Triable(Changeable, Protocol):
    """A platform on which a version can be tried before it serves. May raise UdoError while parts of it are away."""

    def rolls_dice(self, deployment: str) -> bool:
        """Whether the deployment's answers differ from one attempt to another."""

    def try_out(self, deployment: str, version: str, percent: float, for_s: float, ending: str) -> Tried | str:
        """Run a canary of this version to its end; or return why none began."""


class Canaries:
    """Canaries of one platform's deployments, which last up to `most_s`.

    `broken`: a text for each canary that counted differences where there must be none, or none where there must be some.
    """

    def __init__(self, platform: Triable, changes: Changes, most_s: float) -> None:
        self._platform, self._changes, self._most_s, self._counting = platform, changes, most_s, Lock()
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []

    def run(self, deployment: str, rng: random.Random) -> tuple[list[str], str]:
        """Try an equal version, one with the other form of state, or one that answers otherwise; return what took place, and why the rest
        did not."""
        dice = self._platform.rolls_dice(deployment)
        change = rng.choice((UPDATE, MIGRATE, "") if not dice else (UPDATE, MIGRATE))
        ending = rng.choice((PASSES, DECIDED, ENDED) if change else (DECIDED, ENDED))
        percent, for_s = rng.choice((40, 100, 100)), rng.uniform(0.1, 1.0) * self._most_s
        now = self._platform.version(deployment)
        version = equal(now) if change == UPDATE else other_form(now) if change else OTHERWISE
        tried = self._platform.try_out(deployment, version, percent, for_s, ending)
        if isinstance(tried, str):
            return [], tried
        what = f"{version} on {percent} % beside {now}: {tried.measured}"
        if not dice:
            self._judge(f"{what} on {deployment}", not change, tried)
        if ending == PASSES and tried.promoted is None:
            took, why = self._changes.run(deployment, change, most=1)
        else:
            took, why = [change] if tried.promoted else [], tried.why
        return [CANARY if change else _TRIES_OTHERWISE, *took], f"({what}) {why}"

    def judge_diff(self, deployment: str, measured: Measured) -> str:
        """Judge a diff with a version that answers the same; return its counts in words."""
        if not self._platform.rolls_dice(deployment):
            self._judge(f"diff on {deployment}: {measured}", False, Tried(measured))
        return str(measured)

    def _judge(self, what: str, otherwise: bool, tried: Tried) -> None:
        why = wrong(tried, otherwise=otherwise)
        with self._counting:
            self.counts[SEEN if otherwise else COMPARED] += int(tried.measured.different if otherwise else tried.measured.compared)
            if why:
                self.broken.append(f"{what}: {why}. {tried.why}")


def wrong(tried: Tried, *, otherwise: bool) -> str:
    """Return why a version that answers the same cannot give these counts, '' if it can; with `otherwise`, a version that adds a row
    to the answer of each event."""
    m = tried.measured
    if not otherwise:
        return f"expected equal answers, got {m.different:g} different frames" if m.different else ""
    if tried.promoted:
        return "expected it not to pass, as it answers otherwise"
    # A frame without events, such as END, may be answered the same.
    return "expected different answers to frames with events, got none" if m.events and m.compared and not m.different else ""
