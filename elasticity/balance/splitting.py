"""Choose an engine per event: PKG, D-Choices, W-Choices. They split the state of a key, so keyed answers become wrong.

Baselines for load only: PKG as in paper 2's comparison (section 4; Nasir et al., ICDE 2015), D-Choices and W-Choices after
Nasir et al., "When two choices are not enough" (ICDE 2016). Each engine's load is the number of events this source has sent to it.
"""

from __future__ import annotations

import random

from elasticity.balance.heavy import SpaceSaving

# ICDE 2016: the head is the keys with more than 1/(5n) of the events; ε is the tolerated imbalance.
HEAD_SHARE = 0.2
EPSILON = 1e-4
# The head holds at most 5n keys; twice as many counters keep the estimates' error at half of its threshold.
COUNTERS_PER_ENGINE = 10
# Heavy hitters are counted over at most this many events, since streams change.
FORGET_EVENTS = 10_000
# Events after which D-Choices computes its number of choices again.
REVIEW_EVENTS = 1_000


class PartialKeyGrouping:
    """Two engines per key by two hash functions; each event goes to the one that has been sent fewer events."""

    def __init__(self, engines: int, seed: int = 0) -> None:
        self.engines, self._seed = engines, seed
        self._sent = [0] * engines
        self._choices: dict[tuple[int, int], tuple[int, ...]] = {}

    def route(self, key: int) -> int:
        """The engine for the next event of this key, 0 … engines-1."""
        return self._send(self._candidates(key, 2))

    def _send(self, candidates: tuple[int, ...] | range) -> int:
        engine = min(candidates, key=self._sent.__getitem__)
        self._sent[engine] += 1
        return engine

    def _candidates(self, key: int, choices: int) -> tuple[int, ...]:
        found = self._choices.get((key, choices))
        if found is None:
            rng = random.Random(key * 1_000_003 + self._seed)  # each draw acts as a hash function
            found = self._choices[key, choices] = tuple(rng.randrange(self.engines) for _ in range(choices))
        return found


class WChoices(PartialKeyGrouping):
    """Heavy hitters, found online, may go to every engine; all other keys have two choices."""

    def __init__(self, engines: int, seed: int = 0) -> None:
        super().__init__(engines, seed)
        self._seen = SpaceSaving(COUNTERS_PER_ENGINE * engines)

    def route(self, key: int) -> int:
        """The engine for the next event of this key, 0 … engines-1."""
        if self._seen.total == FORGET_EVENTS:
            self._seen = SpaceSaving(self._seen.capacity)
        if self._seen.add(key) > HEAD_SHARE / self.engines * self._seen.total:
            return self._send(self._wide(key))
        return self._send(self._candidates(key, 2))

    def _wide(self, key: int) -> tuple[int, ...] | range:
        return range(self.engines)


class DChoices(WChoices):
    """Heavy hitters have the fewest choices that keep the expected imbalance below ε."""

    def __init__(self, engines: int, seed: int = 0) -> None:
        super().__init__(engines, seed)
        self._d, self._review = 2, REVIEW_EVENTS

    def _wide(self, key: int) -> tuple[int, ...] | range:
        if self._seen.total >= self._review or self._seen.total < self._review - REVIEW_EVENTS:
            head = self._seen.above(HEAD_SHARE / self.engines)
            self._d = choices([n / self._seen.total for n in head.values()], self.engines)
            self._review = self._seen.total + REVIEW_EVENTS
        return range(self.engines) if self._d >= self.engines else self._candidates(key, self._d)


def choices(head: list[float], engines: int, epsilon: float = EPSILON) -> int:
    """The least d (2 … engines) with which the heavy keys are balanced to within ε; `head`: their shares, most frequent first.

    For each prefix of h keys, the b engines that h·d hashes are expected to hit must carry the prefix and those other keys whose
    choices all fall on these engines (ICDE 2016, section 4).
    """
    tail = max(1 - sum(head), 0.0)
    for d in range(2, engines):
        prefix, fits = 0.0, True
        for h, share in enumerate(head, 1):
            prefix += share
            hit = 1 - ((engines - 1) / engines) ** (h * d)
            others = max(sum(head) - prefix, 0.0)
            fits = prefix + hit**d * others + hit**2 * tail <= engines * hit * (1 / engines + epsilon)
            if not fits:
                break
        if fits:
            return d
    return engines
