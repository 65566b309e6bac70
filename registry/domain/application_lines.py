"""The journals of applications' managers in the database: append-only segments, of which the last ones are kept.

A segment begins with the manager's header and replays to the same decisions: a registry that starts restores the manager's memory from it.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from elasticity.scaling import journal
from elasticity.scaling.application_journal import (
    ApplicationEntry,
    ApplicationManager,
    GrantOutcome,
    application_line,
    outcome_line,
    read_application,
)
from elasticity.scaling.journal import Header
from registry.store.models import ApplicationLine
from udo_protocol.errors import UsageError

# At 30 s between decisions, three days in each of eight segments; a line takes about 1 KB.
SEGMENT_LINES, KEPT_SEGMENTS = 8000, 8
_log = logging.getLogger(__name__)


def last_segment(session: Session, name: str) -> int:
    """The number of the last segment; 0 if there is none."""
    return session.scalar(select(func.max(ApplicationLine.segment)).where(ApplicationLine.application == name)) or 0


def lines(session: Session, name: str, segment: int) -> list[str]:
    """The lines of one segment."""
    chosen = (ApplicationLine.application == name, ApplicationLine.segment == segment)
    return list(session.scalars(select(ApplicationLine.line).where(*chosen).order_by(ApplicationLine.id)))


def segments(session: Session, name: str) -> list[tuple[int, list[str]]]:
    """All kept segments, oldest first."""
    numbers = select(ApplicationLine.segment).where(ApplicationLine.application == name).distinct().order_by(ApplicationLine.segment)
    return [(number, lines(session, name, number)) for number in session.scalars(numbers).all()]


def latest(session: Session, name: str) -> list[dict[str, Any]]:
    """The last segment and the one before it, as the API shows segments: a segment that has just begun has no decisions."""
    last = last_segment(session, name)
    return [{"segment": n, "lines": found} for n in (last - 1, last) if (found := lines(session, name, n))]


def go_on(session: Session, name: str, header: Header) -> tuple[ApplicationManager, int] | None:
    """The manager as it was after its last decision, and its segment; None if that has another header, is full, or is damaged."""
    number = last_segment(session, name)
    there = lines(session, name, number)
    if not there or len(there) > SEGMENT_LINES:
        return None
    try:
        found, entries, _ = read_application(there)
    except UsageError as e:
        _log.warning("the journal of application %s is damaged; a new segment begins: %s", name, e)
        return None
    if found != header:
        return None
    manager = ApplicationManager(header)
    for entry in entries:
        manager.decide(entry.sample)
    return manager, number


def begin(session: Session, name: str, header: Header) -> tuple[ApplicationManager, int]:
    """Begin a new segment; drop the oldest ones beyond those kept."""
    number = last_segment(session, name) + 1
    _append(session, name, number, journal.first_line(header))
    old = (ApplicationLine.application == name, ApplicationLine.segment <= number - KEPT_SEGMENTS)
    session.execute(delete(ApplicationLine).where(*old))
    return ApplicationManager(header), number


def decided(session: Session, name: str, segment: int, entry: ApplicationEntry) -> None:
    """Record a decision."""
    _append(session, name, segment, application_line(entry))


def executed(session: Session, name: str, segment: int, outcome: GrantOutcome) -> None:
    """Record the outcome of a grant, if its segment still exists."""
    if lines_there := session.scalar(
        select(func.count()).where(ApplicationLine.application == name, ApplicationLine.segment == segment).select_from(ApplicationLine)
    ):
        assert lines_there
        _append(session, name, segment, outcome_line(outcome))


def _append(session: Session, name: str, segment: int, line: str) -> None:
    session.add(ApplicationLine(application=name, segment=segment, line=line))
    session.flush()
