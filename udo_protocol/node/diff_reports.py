"""Reads the reports of diffs, which are JSON on their way."""

from __future__ import annotations

from pydantic import TypeAdapter

from udo_protocol.diff_report import DiffReport

_REPORT = TypeAdapter(DiffReport)


def parse(text: str | bytes) -> DiffReport:
    """Inverse of `DiffReport.document`, as JSON; what a newer release adds is not looked at. ValueError for values of other types."""
    return _REPORT.validate_json(text, strict=True)
