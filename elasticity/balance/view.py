"""A balancing policy's input and output: keys_map, keys_load, eng_load, imbScore (paper 2, sections 2.2 and 3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from udo_protocol.errors import UsageError

Ints = npt.NDArray[np.integer]
Loads = npt.NDArray[np.integer] | npt.NDArray[np.floating]

THETA_PERCENT = 15.0  # the paper's threshold
# Moving keys stops this close to the best possible (closer costs many moves for little) and starts START_SLACKS times as far from it
# (the range between is noise of the window).
SLACK, START_SLACKS = 0.02, 2
# Loads are counts of events: differences within this many standard deviations of a count may be chance.
CHANCE_SIGMAS = 3.0
# A move costs about 10 µs to decide: with this many, a decision over a million keys takes less than 100 ms.
MAX_MOVES = 5_000


@dataclass(frozen=True)
class LoadView:
    """Keys 0 … n-1 on engines 0 … engines-1 in one window.

    keys_map[k]: engine of key k, shape (n,). keys_load[k]: events of key k in the window, shape (n,), integers or rates.
    state_bytes[k]: bytes that a move of key k would carry, shape (n,), if they count. UsageError if shapes or values do not fit.
    """

    keys_map: Ints
    keys_load: Loads
    engines: int
    state_bytes: Loads | None = None

    def __post_init__(self) -> None:
        n = self.keys_map.shape
        for name, array in (("keys_load", self.keys_load), ("state_bytes", self.state_bytes)):
            if array is None:
                continue
            if array.shape != n or len(n) != 1:
                raise UsageError(f"{name}: expected one value for each of the keys in keys_map, shape {n}, got shape {array.shape}")
            if len(array) and not array.min() >= 0:  # also true of a NaN
                raise UsageError(f"{name}: expected numbers of at least 0, got {array.min()}")
        if self.engines < 1:
            raise UsageError(f"engines: expected at least 1, got {self.engines}")
        if len(self.keys_map) and not 0 <= self.keys_map.min() <= self.keys_map.max() < self.engines:
            raise UsageError(f"keys_map: expected engines 0 to {self.engines - 1}, got {self.keys_map.min()} to {self.keys_map.max()}")


@dataclass(frozen=True)
class BalanceLimits:
    """Conditions for balancing, and its goals.

    theta_percent: an imbScore above it is brought down to it. slack (ours; None: as in the paper, θ alone): once balancing,
    relieve the busiest engine, whose load bounds throughput, until it is within this share of the least possible, and begin when
    it is START_SLACKS times as far away; where no assignment reaches θ, the same holds for imbScore. max_moves: per decision; the
    next one continues. events_per_byte: a key moves only if its load exceeds this times its bytes of state.
    chance_sigmas (ours, with slack only): differences within this many standard deviations do not start balancing; 0: exact loads.
    """

    theta_percent: float = THETA_PERCENT
    slack: float | None = SLACK
    max_moves: int = MAX_MOVES
    events_per_byte: float = 0.0
    chance_sigmas: float = CHANCE_SIGMAS


@dataclass(frozen=True)
class BalanceDecision:
    """The new assignment and how it came about. keys: those that change engine, ascending; too_hot: keys that alone rule out θ."""

    keys_map: Ints
    keys: Ints
    before_percent: float
    after_percent: float
    goal_percent: float
    too_hot: tuple[int, ...] = ()


def eng_load(keys_map: Ints, keys_load: Loads, engines: int) -> npt.NDArray[np.float64]:
    """Load of each engine, shape (engines,) (paper 2, equation 1)."""
    return np.bincount(keys_map, weights=keys_load, minlength=engines).astype(np.float64, copy=False)


def imb_score(load: npt.NDArray[np.floating]) -> float:
    """100 · std(n-1) / mean of the engines' loads, in percent (paper 2, equation 2); 0 for a single engine or no load."""
    mean = load.mean()
    return float(100 * load.std(ddof=1) / mean) if len(load) > 1 and mean > 0 else 0.0


def descending(loads: Loads) -> Ints:
    """Positions by load, most loaded first, equally loaded ones in order; works for unsigned loads, too."""
    return len(loads) - 1 - np.argsort(loads[::-1], kind="stable")[::-1]


@dataclass(frozen=True)
class Goal:
    """Conditions for moving keys, and the goals of a decision.

    percent, peak: imbScore and load of the busiest engine to reach; moves begin above start_percent or start_peak. hot: keys above
    an equal share of the load that hotter ones leave, hottest first; too_hot: the hot keys, if no assignment reaches θ because of
    them. even_load: load of an engine without a hot key, at best.
    """

    start_percent: float
    percent: float
    start_peak: float = float("inf")
    peak: float = float("inf")
    hot: tuple[int, ...] = ()
    too_hot: tuple[int, ...] = ()
    even_load: float = 0.0

    def due(self, load: npt.NDArray[np.floating]) -> bool:
        """Whether engines with these loads need balancing."""
        return imb_score(load) > self.start_percent or bool(load.max() > self.start_peak)


def floor(keys_load: Loads, engines: int) -> Goal:
    """The lower bound of imbScore and peak over all assignments, as if keys could be divided at will.

    A key above an equal share has an engine to itself at best, and the rest is at best spread evenly over the others.
    """
    top = descending(keys_load) if len(keys_load) <= engines else _largest(keys_load, engines)
    rest, left, hot = float(keys_load.sum()), engines, []
    for key in top.tolist():
        if left == 1 or float(keys_load[key]) * left <= rest:
            break
        hot.append(key)
        rest, left = rest - float(keys_load[key]), left - 1
    best = np.full(engines, rest / left)
    best[: len(hot)] = keys_load[hot]
    lowest, peak = imb_score(best), float(best[0])
    return Goal(lowest, lowest, peak, peak, tuple(hot), tuple(hot), rest / left)


def goal(view: LoadView, limits: BalanceLimits) -> Goal:
    """The goal that `limits` sets for these loads, wherever the keys are."""
    least, theta = floor(view.keys_load, view.engines), limits.theta_percent
    too_hot = least.hot if least.percent > theta else ()
    if limits.slack is None:
        return Goal(theta, theta, too_hot=too_hot)
    begin, once, sigmas = 1 + START_SLACKS * limits.slack, 1 + limits.slack, limits.chance_sigmas
    return replace(
        least,
        start_percent=max(theta, least.percent * begin, _by_chance(view, sigmas)),
        percent=max(theta, least.percent * once),
        start_peak=max(least.peak * begin, least.peak + sigmas * math.sqrt(least.peak)),
        peak=least.peak * once,
        too_hot=too_hot,
    )


def _by_chance(view: LoadView, sigmas: float) -> float:
    """The imbScore, in percent, that equal engines may show in a window of so few events: counts vary by their square root."""
    mean = float(view.keys_load.sum()) / view.engines
    if not sigmas or mean <= 0 or view.engines < 2:
        return 0.0
    return 100 / math.sqrt(mean) * (1 + sigmas / math.sqrt(2 * (view.engines - 1)))


def decided(view: LoadView, keys_map: Ints, aim: Goal) -> BalanceDecision:
    """The decision that leads to `keys_map`."""
    before, after = (imb_score(eng_load(m, view.keys_load, view.engines)) for m in (view.keys_map, keys_map))
    return BalanceDecision(keys_map, np.flatnonzero(view.keys_map != keys_map), before, after, aim.percent, aim.too_hot)


def _largest(keys_load: Loads, n: int) -> Ints:
    """The n most loaded keys, most loaded first."""
    top = np.argpartition(keys_load, len(keys_load) - n)[-n:]
    return top[descending(keys_load[top])]
