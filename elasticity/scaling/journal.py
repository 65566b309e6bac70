"""An append-only journal of decisions: one JSON line each with all that was seen, so that it replays to the same decisions.

The first line names the policy, its settings and the seed. A last line that was cut off by a crash is left out by whoever reads.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from elasticity import policies
from elasticity.scaling.model import Host, OperatorSample, Plan, Replica, Sample, ScalingDecision
from udo_protocol.errors import UsageError

FORMAT = 1


@dataclass(frozen=True)
class Header:
    """What decides: a name in policies.toml or "module:function", its settings by name, and the seed of all chance."""

    policy: str
    settings: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class JournalEntry:
    """One decision; number counts from 0."""

    number: int
    sample: Sample
    decision: ScalingDecision


class Controller:
    """A policy with its memory: what runs live and what replays. Chance of the n-th decision depends on seed and n alone."""

    def __init__(self, header: Header, extra: policies.Names | None = None) -> None:
        self._header, self._policy = header, policies.find("scaling", header.policy, extra)
        self._memory: Any = None
        self._number = 0

    def decide(self, sample: Sample) -> JournalEntry:
        """The next decision."""
        rng = random.Random(f"{self._header.seed}:{self._number}")
        decision, self._memory = self._policy(sample, self._memory, rng, **self._header.settings)
        self._number += 1
        return JournalEntry(self._number - 1, sample, decision)


def first_line(header: Header) -> str:
    """The line a journal begins with."""
    return json.dumps({"format": FORMAT, **asdict(header)}, allow_nan=False)


def line(entry: JournalEntry) -> str:
    """The line of a decision; ValueError if a figure is infinite or not a number."""
    return json.dumps(asdict(entry), allow_nan=False)


def read(lines: Iterable[str]) -> tuple[Header, list[JournalEntry]]:
    """What was written. UsageError names the line that is damaged, missing, or of another format; a cut-off last one is left out."""
    texts = list(lines)
    made: list[dict[str, Any]] = []
    for i, text in enumerate(texts):
        try:
            made.append(json.loads(text))
        except ValueError as e:
            if i and i == len(texts) - 1:
                break
            raise UsageError(f"journal, line {i + 1}: expected a JSON object, got {text[:60]!r}") from e
    if not made or made[0].get("format") != FORMAT:
        raise UsageError(f"journal, line 1: expected a journal of format {FORMAT}, got {texts[:1]}")
    entries = [_entry(m) for m in made[1:]]
    for i, entry in enumerate(entries):
        if entry.number != i:
            raise UsageError(f"journal, line {i + 2}: expected decision {i}, got {entry.number}")
    return Header(made[0]["policy"], made[0]["settings"], made[0]["seed"]), entries


def replay(
    header: Header, entries: Iterable[JournalEntry], extra: policies.Names | None = None
) -> Iterator[tuple[JournalEntry, ScalingDecision]]:
    """Each entry whose decision comes out differently, with what comes out; nothing, if policy and settings are still the same."""
    controller = Controller(header, extra)
    for entry in entries:
        again = controller.decide(entry.sample).decision
        if again != entry.decision:
            yield entry, again


def _entry(made: Mapping[str, Any]) -> JournalEntry:
    s, d = made["sample"], made["decision"]
    operators = tuple(
        OperatorSample(o["name"], tuple(Replica(**r) for r in o["replicas"]), tuple(o["upstream"]), o["max_replicas"])
        for o in s["operators"]
    )
    sample = Sample(s["at_s"], operators, tuple(Host(**n) for n in s["nodes"]), s["response_ms"], s["downtime_ms"])
    granted, declined = tuple(Plan(**p) for p in d["granted"]), tuple((Plan(**p), why) for p, why in d["declined"])
    return JournalEntry(made["number"], sample, ScalingDecision(granted, declined, tuple(d["prepared"])))
