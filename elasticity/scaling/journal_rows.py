"""Journals as rows for people and scripts: decisions about slots, their reasons and their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Protocol

from elasticity.scaling import journal
from elasticity.scaling.application import Proposal
from elasticity.scaling.application_journal import GrantOutcome, read_application
from elasticity.scaling.journal import Execution, Header, JournalEntry, Woken
from elasticity.scaling.managed import ASKED
from elasticity.scaling.model import Plan

Json = dict[str, Any]


class JournalSegment(Protocol):
    """A segment of a deployment's journal on a node, as the node returns it."""

    @property
    def deployment(self) -> str:
        """The deployment whose journal it is."""

    @property
    def segment(self) -> str:
        """The name of the segment."""

    @property
    def lines(self) -> Iterable[str]:
        """Its entries, one line of JSON each."""


def rows_of(told: Iterable[JournalSegment], everything: bool) -> Iterator[Json]:
    """Yield a row per granted or declined step and per end of a sleep; with `everything` also per decision without a step."""
    for segment in told:
        header, entries, executions = journal.read_all(segment.lines)
        for wake in journal.wakes(segment.lines):
            yield _woken(segment, header, wake)
        for entry in entries:
            common = _common(segment, header, entry)
            for plan in entry.decision.granted:
                yield {**common, **_step(plan), **_result(header, executions.get(entry.number))}
            for plan, why in entry.decision.declined:
                yield {**common, **_step(plan), **_declined(header, why, executions.get(entry.number))}
            if everything and not entry.decision.granted and not entry.decision.declined:
                yield {**common, "kind": "", "slots": common["slots_before"], "groups": {}, "why": "", "result": "nothing", "detail": ""}


def rows_of_application(name: str, told: Iterable[Mapping[str, Any]], everything: bool) -> Iterator[Json]:
    """Yield a row per proposal that the manager granted or declined; with `everything` also per decision without one. told: segments."""
    for segment in told:
        header, entries, outcomes = read_application(segment["lines"])
        for entry in entries:
            common = {
                "at_s": entry.sample.at_s,
                "at": moment(entry.sample.at_s),
                "application": name,
                "segment": segment["segment"],
                "number": entry.number,
                "mode": header.about.get("mode", ""),
                "response_ms": entry.decision.response_ms,
                "down_ms": entry.decision.down_ms,
                "chain": [asdict(part) for part in entry.sample.chain],
            }
            for p in entry.decision.granted:
                yield {**common, **_proposed(p), **_outcome(header, outcomes.get((entry.number, p.node, p.plan.operator)))}
            for p, why in entry.decision.declined:
                yield {**common, **_proposed(p), "result": "declined", "detail": why}
            if everything and not entry.decision.granted and not entry.decision.declined:
                nothing = {"node": "", "deployment": "", "kind": "", "slots_before": 0, "slots": 0, "why": ""}
                yield {**common, **nothing, "result": "nothing", "detail": ""}


def step_of(row: Mapping[str, Any]) -> str:
    """The step of a deployment's or an application's row, in words."""
    kind = row["kind"].replace("_", " ")
    if row["kind"] in ("balance", "stand_down"):  # the number stays
        return f"{kind} {row['slots']}"
    if kind:
        return f"{kind} from {row['slots_before']} to {row['slots']}"
    return "nothing was proposed" if "application" in row else f"{row['slots']} stay"


def result_of(row: Mapping[str, Any]) -> str:
    """The outcome of a row's step, in words."""
    return f"{row['result']}: {row['detail']}" if row["detail"] else str(row["result"])


def moment(at_s: float) -> str:
    """Seconds since the epoch as UTC text."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


def _common(segment: JournalSegment, header: Header, entry: JournalEntry) -> Json:
    sample = entry.sample
    return {
        "at_s": sample.at_s,
        "at": moment(sample.at_s),
        "deployment": segment.deployment,
        "node": header.about.get("node", ""),
        "segment": segment.segment,
        "number": entry.number,
        "mode": header.about.get("mode", ""),
        "policy": header.settings.get("policy", header.policy),
        "slots_before": len(sample.operators[0].replicas) if sample.operators else 0,
        "figures": [asdict(r) for o in sample.operators for r in o.replicas],
        "response_ms": sample.response_ms,
    }


def _woken(segment: JournalSegment, header: Header, wake: Woken) -> Json:
    return {
        "at_s": wake.at_s,
        "at": moment(wake.at_s),
        "deployment": segment.deployment,
        "node": header.about.get("node", ""),
        "segment": segment.segment,
        "kind": "wake",
        "slots_before": 0,
        "slots": 1,
        "groups": {},
        "why": "a frame came",
        "result": "done",
        "detail": f"answered after {wake.answer_ms:.0f} ms",
        "mode": header.about.get("mode", ""),
        "first_answer_ms": wake.answer_ms,
    }


def _step(plan: Plan) -> Json:
    return {"kind": plan.kind, "slots": plan.replicas, "groups": dict(plan.groups), "why": plan.why}


def _result(header: Header, done: Execution | None) -> Json:
    if header.about.get("mode") != "auto":
        return {"result": "advised", "detail": header.about.get("not_auto", "")}
    if done is None:  # still under way, or the node manager ended meanwhile
        return {"result": "begun", "detail": ""}
    return {"result": "failed" if done.error else "done", "detail": done.error}


def _declined(header: Header, why: str, done: Execution | None) -> Json:
    """The result of a declined step; if its application's manager was asked: the request, or its execution on this node."""
    if why == ASKED:
        if done is not None:
            return {"result": "failed" if done.error else "done", "detail": done.error or f"granted by {header.about.get('application')}"}
        return {"result": "asked", "detail": str(header.about.get("application", ""))}
    return {"result": "declined", "detail": why}


def _proposed(p: Proposal) -> Json:
    named = {"node": p.node, "deployment": p.plan.operator, "kind": p.plan.kind, "slots_before": p.before, "slots": p.plan.replicas}
    return {**named, "gain": p.gain, "cost_ms": p.cost_ms, "why": p.plan.why}


def _outcome(header: Header, done: GrantOutcome | None) -> Json:
    if header.about.get("mode") != "auto":
        return {"result": "advised", "detail": ""}
    if done is None:  # still under way, or the registry ended meanwhile
        return {"result": "granted", "detail": ""}
    return {"result": "failed" if done.error else "done", "detail": done.error}
