"""Reads the reports of diffs, which travel as JSON."""

from __future__ import annotations

from pydantic import TypeAdapter

from udo_protocol.diff_report import DiffReport

_REPORT = TypeAdapter(DiffReport)


def parse(text: str | bytes) -> DiffReport:
    """Inverse of `DiffReport.document`, as JSON; fields that a newer release adds are ignored. ValueError for values of other types."""
    return _REPORT.validate_json(text, strict=True)
