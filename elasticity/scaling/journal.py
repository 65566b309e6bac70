"""An append-only journal of decisions: one JSON line each with everything it saw, so that a replay decides the same.

The first line names the policy, its settings and the seed. A line `{"execution": ...}` has the outcome of a decision that was carried
out, and `{"woken": ...}` records that a frame ended a sleep; replaying needs neither. Readers ignore a last line that was cut off by a
crash.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from elasticity import policies
from elasticity.scaling.model import Host, KeyGroups, OperatorSample, Plan, Replica, Sample, ScalingDecision
from udo_protocol.errors import UsageError

FORMAT = 1


@dataclass(frozen=True)
class Header:
    """The policy, a name in policies.toml or "module:function", its settings by name, and the seed of all randomness.

    about: for people, such as the journal's deployment; no decision depends on it.
    """

    policy: str
    settings: Mapping[str, Any]
    seed: int
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JournalEntry:
    """One decision, numbered from 0."""

    number: int
    sample: Sample
    decision: ScalingDecision


@dataclass(frozen=True)
class Execution:
    """The outcome of the decision of that number: the replicas afterwards, or the error; at_s: when it was known."""

    number: int
    at_s: float
    replicas: int
    error: str = ""


@dataclass(frozen=True)
class Woken:
    """A frame that came to a slot without an instance: when, and how many ms later it was answered."""

    slot: int
    at_s: float
    answer_ms: float


class Controller:
    """A policy with its memory, for live decisions and replays. Randomness of the n-th decision depends on seed and n alone."""

    def __init__(self, header: Header, extra: policies.Names | None = None) -> None:
        self._header, self._policy = header, policies.find("scaling", header.policy, extra)
        self._settings = policies.settings(self._policy, header.settings)
        self._memory: Any = None
        self._number = 0

    def decide(self, sample: Sample) -> JournalEntry:
        """Make the next decision."""
        rng = random.Random(f"{self._header.seed}:{self._number}")
        decision, self._memory = self._policy(sample, self._memory, rng, self._settings)
        self._number += 1
        return JournalEntry(self._number - 1, sample, decision)


def first_line(header: Header) -> str:
    """The first line of a journal."""
    return json.dumps({"format": FORMAT, **asdict(header)}, allow_nan=False)


def line(entry: JournalEntry) -> str:
    """The line of a decision; ValueError if a figure is infinite or not a number."""
    return json.dumps(asdict(entry), allow_nan=False)


def execution_line(execution: Execution) -> str:
    """The line with the outcome of a decision."""
    return json.dumps({"execution": asdict(execution)})


def woken_line(woken: Woken) -> str:
    """The line that records that a frame ended a sleep."""
    return json.dumps({"woken": asdict(woken)})


def wakes(lines: Iterable[str]) -> Iterator[Woken]:
    """The ends of sleeps in a journal that `read` has accepted."""
    for text in lines:
        if text.startswith('{"woken"') and text.endswith("}"):
            yield Woken(**json.loads(text)["woken"])


def read(lines: Iterable[str]) -> tuple[Header, list[JournalEntry]]:
    """Read header and decisions. UsageError names a damaged or missing line, or one of another format; a cut-off last one is ignored."""
    header, entries, _ = read_all(lines)
    return header, entries


def read_all(lines: Iterable[str]) -> tuple[Header, list[JournalEntry], dict[int, Execution]]:
    """Like `read`, with the outcomes of decisions by number."""
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
    entries, executions = list[JournalEntry](), dict[int, Execution]()
    for i, m in enumerate(made[1:], 2):
        try:
            if "woken" in m:
                Woken(**m["woken"])
                continue
            if "execution" in m:
                executions[m["execution"]["number"]] = Execution(**m["execution"])
                continue
            entry = _entry(m)
        except (KeyError, TypeError) as e:
            raise UsageError(f"journal, line {i}: expected a decision or what became of one, got {texts[i - 1][:60]!r}") from e
        if entry.number != len(entries):
            raise UsageError(f"journal, line {i}: expected decision {len(entries)}, got {entry.number}")
        entries.append(entry)
    first = made[0]
    return Header(first["policy"], first["settings"], first["seed"], first.get("about", {})), entries, executions


def replay(
    header: Header, entries: Iterable[JournalEntry], extra: policies.Names | None = None
) -> Iterator[tuple[JournalEntry, ScalingDecision]]:
    """Yield each entry whose decision comes out differently, with the new decision; none if policy and settings are unchanged."""
    controller = Controller(header, extra)
    for entry in entries:
        again = controller.decide(entry.sample).decision
        if again != entry.decision:
            yield entry, again


def _entry(made: Mapping[str, Any]) -> JournalEntry:
    s, d = made["sample"], made["decision"]
    operators = tuple(
        OperatorSample(
            o["name"], tuple(Replica(**r) for r in o["replicas"]), tuple(o["upstream"]), o["max_replicas"], _groups(o), o.get("prepared", 0)
        )
        for o in s["operators"]
    )
    sample = Sample(s["at_s"], operators, tuple(Host(**n) for n in s["nodes"]), s["response_ms"], s["downtime_ms"])
    granted, declined = tuple(map(plan_of, d["granted"])), tuple((plan_of(p), why) for p, why in d["declined"])
    return JournalEntry(made["number"], sample, ScalingDecision(granted, declined, tuple(d["prepared"])))


def _groups(operator: Mapping[str, Any]) -> KeyGroups | None:
    found = operator.get("groups")  # journals of earlier releases have none
    return KeyGroups(tuple(found["places"]), tuple(found["events"]), tuple(found.get("elsewhere", ()))) if found else None


def plan_of(made: Mapping[str, Any]) -> Plan:
    """A plan from JSON. TypeError or ValueError if it has another form."""
    return Plan(**{**made, "groups": tuple((group, to) for group, to in made.get("groups", ()))})
