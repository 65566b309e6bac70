"""The figures of every suite, as JSON in a record and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import module_of
from benchmarks.__main__ import SUITES
from benchmarks.harness import record
from benchmarks.suites import state


@pytest.mark.parametrize("name", SUITES)
def test_figures_are_read_from_a_record_as_they_were_stored(name: str) -> None:
    kind: Any = module_of(name).Figures

    @settings(max_examples=5)
    @given(st.from_type(kind))
    def the_same_again(figures: object) -> None:
        stored = json.dumps(record.encode(figures))
        found: object = record.decode(kind, {"name": name, "commit": "0123456789", **json.loads(stored)})
        assert json.dumps(record.encode(found)) == stored

    the_same_again()


@settings(max_examples=1)
@given(st.from_type(state.Figures))
def test_time_that_passes_is_not_called_processor_time(figures: Any) -> None:
    [section] = [s for s in state.sections(figures) if "µs" in s.title]
    assert "processor" not in section.title
    assert ["processor" in name for name in section.header] == [False, True, False, False]
