"""Faults put into a copy of the product are noticed: the quick ones here, all of them by python -m tests.mutations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutations.mutation import ROOT, Mutation
from tests.mutations.run import copy, noticed
from tests.mutations.table import MUTATIONS

QUICK = [name for name, mutation in MUTATIONS.items() if mutation.quick]


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_still_applies_to_the_source(name: str) -> None:
    mutation = MUTATIONS[name]
    whole = (ROOT / mutation.file).read_text("utf-8")
    assert mutation.applied(whole) != whole


def test_the_table_of_the_guarantees_lists_every_mutation_and_its_test() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    rows = re.findall(r"^\|[^|]*\| `([a-z-]+)`: [^|]+ \| `([^`|]+)` \|$", text, re.MULTILINE)
    assert sorted(rows) == sorted((name, mutation.test) for name, mutation in MUTATIONS.items())


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    """A copy of the source."""
    with copy() as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_noticed(top: Path, name: str) -> None:
    assert noticed(top, MUTATIONS[name]) == ""


@pytest.mark.long
def test_a_fault_that_changes_nothing_is_not_noticed(top: Path) -> None:
    """The runner itself must be able to report a failure to notice."""
    harmless = Mutation("udo_protocol/lua/log.lua", "local function accept(", "local function accept  (", MUTATIONS["fence-off"].test)
    assert "did not fail: pytest ended with 0" in noticed(top, harmless)
    missing = Mutation(harmless.file, harmless.old, harmless.new, "protocol/test_slot.py::test_that_is_not_there")
    assert "pytest ended with 4" in noticed(top, missing)
