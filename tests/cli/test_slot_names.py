"""Slots are named by number, preceded by the node's name if there are several nodes."""

from __future__ import annotations

import pytest

from udo_cli.platform import slot_names
from udo_protocol.errors import UsageError


@pytest.mark.parametrize(("text", "named"), [("0", ("", 0)), ("b:1000", ("b", 1000)), ("rack:7:3", ("rack:7", 3))])
def test_a_slot_is_a_number_with_or_without_a_node(text: str, named: tuple[str, int]) -> None:
    assert slot_names.parsed(text, "--to") == named
    assert slot_names.shown(*named) == text


@pytest.mark.parametrize("text", ["", "b", "b:", ":3", "-1", "b:-1", "3:b"])
def test_what_names_no_slot_is_shown_with_what_was_expected(text: str) -> None:
    with pytest.raises(UsageError, match="--to: expected the number of a slot, or NODE:NUMBER"):
        slot_names.parsed(text, "--to")
