"""O(x) in 0 … 100 by fuzzy logic: fuzzify, apply rules, defuzzify by centre of gravity (paper 3, section Bottleneck Detection).

A rule is as strong as the product of its terms' memberships, and output terms are scaled by their rules' strengths and added.
Since an input's terms add up to 1, O(x) then rises with every input wherever the rules' outcomes do; with minimum and maximum,
the other usual choice, it may fall while an input rises.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise, product
from typing import Any

from elasticity.bottleneck.signals import INPUTS
from udo_protocol.errors import UsageError

Trapezoid = tuple[float, float, float, float]
# Memberships of an input must add up to 1 within this.
_TOLERANCE = 1e-9
# The largest corner: more than any input has; with larger ones the arithmetic may overflow.
_MOST = 1e12


@dataclass(frozen=True)
class Thresholds:
    """Paper 3's δ1 < δ2′ < δ2 on O(x)."""

    scale_in: float
    alarming: float
    scale_out: float

    def verdict(self, load: float) -> str:
        """The step this load calls for: scale in, nothing, prepare or scale out. Steps are taken only after hysteresis (detector.py)."""
        if load < self.scale_in:
            return "scale in"
        return "nothing" if load < self.alarming else "prepare" if load < self.scale_out else "scale out"


@dataclass(frozen=True)
class Model:
    """Terms of each input and of the output, the output term of each combination of input terms, and the thresholds."""

    inputs: Mapping[str, Mapping[str, Trapezoid]]
    output: Mapping[str, Trapezoid]
    rules: Mapping[tuple[str, ...], str]
    thresholds: Thresholds


@dataclass(frozen=True)
class Fired:
    """A rule that fired: `if_terms`, a term per input, and `outcome`; strength in (0, 1], the sum over all rules is 1."""

    if_terms: Mapping[str, str]
    outcome: str
    strength: float


@dataclass(frozen=True)
class Explanation:
    """O(x) and its derivation: the inputs, clipped to their terms' range, and the rules that fired, strongest first."""

    load: float
    inputs: Mapping[str, float]
    fired: tuple[Fired, ...]

    def text(self) -> str:
        """Text for a terminal: a summary line, then one line per rule."""
        values = ", ".join(f"{name} {value:.3g}" for name, value in self.inputs.items())
        rules = (f"  {f.strength:5.0%}  {' and '.join(f'{k} {t}' for k, t in f.if_terms.items())} → {f.outcome}" for f in self.fired)
        return "\n".join([f"load {self.load:.0f} of 100 from {values}", *rules])


def evaluate(model: Model, inputs: Mapping[str, float]) -> Explanation:
    """O(x) of these inputs, in their units; values outside the terms' range are clipped to it. UsageError if one is missing or NaN."""
    clipped, strengths = {}, []
    for name, terms in model.inputs.items():
        value = inputs.get(name)
        if value is None or math.isnan(value):
            raise UsageError(f"input {name!r}: expected a number, got {value}; there are {', '.join(model.inputs)}")
        low, high = _range(terms)
        x = clipped[name] = min(max(value, low), high)
        strengths.append({term: m for term, corners in terms.items() if (m := membership(corners, x)) > 0})
    fired = [
        Fired(
            dict(zip(model.inputs, terms, strict=True)), model.rules[terms], math.prod(s[t] for s, t in zip(strengths, terms, strict=True))
        )
        for terms in product(*strengths)
    ]
    weights = [(f.strength * _area(model.output[f.outcome]), _centre(model.output[f.outcome])) for f in fired]
    load = sum(w * c for w, c in weights) / sum(w for w, _ in weights)
    return Explanation(load, clipped, tuple(sorted(fired, key=lambda f: -f.strength)))


def membership(corners: Trapezoid, x: float) -> float:
    """Degree in 0 … 1 to which x has this term."""
    a, b, c, d = corners
    if b <= x <= c:
        return 1.0
    if a < x < b:
        return (x - a) / (b - a)
    return (d - x) / (d - c) if c < x < d else 0.0


@cache
def shipped() -> Model:
    """The model in rules.toml of this package."""
    return read(shipped_text())


def shipped_text() -> str:
    """rules.toml of this package, to be copied and changed."""
    return (files("elasticity.bottleneck") / "rules.toml").read_text("utf-8")


@cache
def given(text: str) -> Model:
    """`read`, once for each text; the shipped model for ''."""
    return read(text) if text else shipped()


def read(text: str) -> Model:
    """Read a model from TOML in the form of rules.toml. UsageError says what is malformed, missing or contradictory, and where."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"the rules of the bottleneck detection must be TOML: {e}") from e
    for name in ("inputs", "output", "rules", "thresholds"):
        if not isinstance(tables.get(name), dict):
            raise UsageError(f"expected a table [{name}] as in the rules that come with the package")
    inputs = {name: _terms(f"inputs.{name}", terms) for name, terms in tables["inputs"].items()}
    for name, terms in inputs.items():
        if name not in INPUTS:
            raise UsageError(f"[inputs.{name}]: expected an input that is measured: {', '.join(INPUTS)}")
        _check_sum(name, terms)
    output = _terms("output", tables["output"])
    low, high = _range(output)
    if low < 0 or high > 100:
        raise UsageError(f"[output]: expected terms within 0 and 100, got {low:g} to {high:g}")
    rules: dict[tuple[str, ...], str] = {tuple(key.split()): outcome for key, outcome in tables["rules"].items()}
    combinations = set(product(*inputs.values()))
    for combination in sorted(combinations):
        if not isinstance(outcome := rules.get(combination), str) or outcome not in output:
            raise UsageError(f"[rules] {' '.join(combination)!r}: expected one of {', '.join(output)}, got {outcome}")
    unknown = rules.keys() - combinations
    if unknown:
        raise UsageError(f"[rules] {' '.join(min(unknown))!r}: expected a term each of {', '.join(inputs)}, in this order")
    found = tables["thresholds"]
    names = ("scale_in", "alarming", "scale_out")
    numbers = found.keys() == set(names) and all(map(_is_number, found.values()))
    if not numbers or not 0 <= found["scale_in"] < found["alarming"] < found["scale_out"] <= 100:
        raise UsageError(f"[thresholds]: expected 0 <= scale_in < alarming < scale_out <= 100, got {found}")
    return Model(inputs, output, rules, Thresholds(**{n: float(found[n]) for n in names}))


def _terms(where: str, terms: Any) -> dict[str, Trapezoid]:
    if not isinstance(terms, dict) or not terms:
        raise UsageError(f"[{where}]: expected terms such as low = [0, 0, 1, 2], got {terms!r}")
    for term, corners in terms.items():
        fits = isinstance(corners, list) and len(corners) == 4 and all(map(_is_number, corners))
        if not fits or any(a > b for a, b in pairwise(corners)) or corners[0] == corners[3]:
            raise UsageError(f"[{where}] {term}: expected four rising corners of a trapezoid, got {corners!r}")
    return {term: (float(a), float(b), float(c), float(d)) for term, (a, b, c, d) in terms.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= _MOST  # not NaN


def _check_sum(name: str, terms: Mapping[str, Trapezoid]) -> None:
    """Require memberships that add up to 1. They are straight lines between corners: checking corners and midpoints is enough."""
    corners = sorted({c for t in terms.values() for c in t})
    for x in [*corners, *((a + b) / 2 for a, b in pairwise(corners))]:
        total = sum(membership(t, x) for t in terms.values())
        if abs(total - 1) > _TOLERANCE:
            raise UsageError(f"[inputs.{name}]: expected memberships that add up to 1 everywhere, got {total:.3g} at {x:g}")


def _range(terms: Mapping[str, Trapezoid]) -> tuple[float, float]:
    return min(t[0] for t in terms.values()), max(t[3] for t in terms.values())


def _area(t: Trapezoid) -> float:
    a, b, c, d = t
    return (c - b + d - a) / 2


def _centre(t: Trapezoid) -> float:
    """Centre of gravity along x, of the triangle, rectangle and triangle that make up the trapezoid."""
    a, b, c, d = t
    parts = [((b - a) / 2, a + 2 * (b - a) / 3), (c - b, (b + c) / 2), ((d - c) / 2, c + (d - c) / 3)]
    return sum(w * x for w, x in parts) / _area(t)
