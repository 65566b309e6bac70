"""The journal of an application's manager: one JSON line per decision with everything it saw, so that a replay decides the same.

The format is that of elasticity/scaling/journal.py; the first line has the settings of `application.sla`. A line `{"execution": ...}`
has the outcome of a granted proposal on its node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from elasticity import policies
from elasticity.scaling.application import ApplicationDecision, ApplicationSample, ChainPart, Proposal, sla
from elasticity.scaling.edf import Bucket
from elasticity.scaling.journal import FORMAT, Header, plan_of
from udo_protocol.errors import UsageError

POLICY = "sla"


@dataclass(frozen=True)
class ApplicationEntry:
    """One decision, numbered from 0."""

    number: int
    sample: ApplicationSample
    decision: ApplicationDecision


@dataclass(frozen=True)
class GrantOutcome:
    """The outcome of a grant of decision `number` for a deployment on a node: the replicas afterwards, or the error."""

    number: int
    node: str
    deployment: str
    at_s: float
    replicas: int
    error: str = ""


class ApplicationManager:
    """`sla` with its memory, for live decisions and for replays."""

    def __init__(self, header: Header) -> None:
        self.header, self._settings = header, policies.settings(sla, header.settings)
        self._memory: Bucket | None = None
        self._number = 0

    def decide(self, sample: ApplicationSample) -> ApplicationEntry:
        """Make the next decision."""
        decision, self._memory = sla(sample, self._memory, self._settings)
        self._number += 1
        return ApplicationEntry(self._number - 1, sample, decision)


def application_line(entry: ApplicationEntry) -> str:
    """The line of a decision; ValueError if a figure is infinite or not a number."""
    return json.dumps(asdict(entry), allow_nan=False)


def outcome_line(outcome: GrantOutcome) -> str:
    """The line with the outcome of a grant."""
    return json.dumps({"execution": asdict(outcome)})


def read_application(lines: Iterable[str]) -> tuple[Header, list[ApplicationEntry], dict[tuple[int, str, str], GrantOutcome]]:
    """Read decisions, and the outcomes of grants by (number, node, deployment). UsageError names the damaged line."""
    header: Header | None = None
    entries, outcomes = list[ApplicationEntry](), dict[tuple[int, str, str], GrantOutcome]()
    for i, text in enumerate(lines, 1):
        try:
            made = json.loads(text)
            if header is None:
                if made.get("format") != FORMAT or made.get("policy") != POLICY:
                    raise KeyError("format")
                header = Header(made["policy"], made["settings"], made["seed"], made.get("about", {}))
            elif "execution" in made:
                done = GrantOutcome(**made["execution"])
                outcomes[done.number, done.node, done.deployment] = done
            else:
                entries.append(_entry(made))
        except (ValueError, KeyError, TypeError) as e:
            raise UsageError(f"an application's journal, line {i}: expected a decision or what became of one, got {text[:60]!r}") from e
        if entries and entries[-1].number != len(entries) - 1:
            raise UsageError(f"an application's journal, line {i}: expected decision {len(entries) - 1}, got {entries[-1].number}")
    if header is None:
        raise UsageError("an application's journal: expected a first line with its settings, got nothing")
    return header, entries, outcomes


def replay_application(header: Header, entries: Iterable[ApplicationEntry]) -> Iterator[tuple[ApplicationEntry, ApplicationDecision]]:
    """Yield each entry whose decision comes out differently, with the new decision."""
    manager = ApplicationManager(header)
    for entry in entries:
        again = manager.decide(entry.sample).decision
        if again != entry.decision:
            yield entry, again


def _proposal(made: Mapping[str, Any]) -> Proposal:
    return Proposal(made["node"], made["number"], made["before"], plan_of(made["plan"]))


def _entry(made: Mapping[str, Any]) -> ApplicationEntry:
    s, d = made["sample"], made["decision"]
    sample = ApplicationSample(s["at_s"], tuple(ChainPart(**part) for part in s["chain"]), tuple(map(_proposal, s["proposals"])))
    declined = tuple((_proposal(p), why) for p, why in d["declined"])
    return ApplicationEntry(
        made["number"], sample, ApplicationDecision(d["response_ms"], d["down_ms"], tuple(map(_proposal, d["granted"])), declined)
    )
