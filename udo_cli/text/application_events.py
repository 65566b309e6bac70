"""The decisions of an application's manager, from its journal: the table of `udo events APP`, and the replay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

COLUMNS = ("AT", "NODE", "DEPLOYMENT", "STEP", "RESULT", "RESPONSE MS", "WHY")
Json = dict[str, Any]


def replayed_application(name: str, told: Iterable[Json]) -> Json:
    """{decisions, segments, same, differing: [{application, segment, number, recorded, now}]} of all segments."""
    from elasticity.scaling.application_journal import read_application, replay_application

    decisions, segments, differing = 0, 0, list[Json]()
    for segment in told:
        header, entries, _ = read_application(segment["lines"])
        decisions, segments = decisions + len(entries), segments + 1
        for entry, again in replay_application(header, entries):
            where = {"application": name, "segment": segment["segment"], "number": entry.number}
            differing.append({**where, "recorded": asdict(entry.decision), "now": asdict(again)})
    return {"decisions": decisions, "segments": segments, "same": not differing, "differing": differing}


def shown(row: Json) -> tuple[str, ...]:
    """A row of the table."""
    from elasticity.scaling.journal_rows import result_of, step_of

    response = "not known" if row["response_ms"] is None else f"{row['response_ms']:.1f}"
    return row["at"], row["node"], row["deployment"], step_of(row), result_of(row), response, row["why"]


def granted(decision: Json) -> str:
    """The proposals that a decision grants."""
    steps = (f"{p['plan']['operator']} on {p['node']}: {p['plan']['kind']} to {p['plan']['replicas']}" for p in decision["granted"])
    return ", ".join(steps) or "nothing"
