"""Policies are found by name, and users can add their own."""

from __future__ import annotations

import pytest

from elasticity import policies
from elasticity.balance.dlb import dlb_h
from udo_protocol.errors import NotFound, UsageError


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in policies.shipped().items() for name in names])
def test_every_shipped_name_stands_for_a_function(kind: str, name: str) -> None:
    assert callable(policies.find(kind, name))


def test_a_user_names_a_function_of_their_own_in_the_call_or_in_a_file() -> None:
    assert policies.find("balance", "elasticity.balance.dlb:dlb_h") is dlb_h
    mine = policies.read('[balance]\nmine = "elasticity.balance.dlb:dlb_h"\n')
    assert policies.find("balance", "mine", mine) is dlb_h


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match=r"no balance policy 'DLB-X'; did you mean 'DLB-.'\? There are .*KG, LPTF"):
        policies.find("balance", "DLB-X")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        ("elasticity.balance.dlb:nothing", "cannot be imported: module 'elasticity.balance.dlb' has no attribute 'nothing'"),
        ("elasticity.balance.view:SLACK", "expected a function, got float"),
    ],
)
def test_an_entry_that_is_no_function_is_refused(entry: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        policies.find("balance", entry)


@pytest.mark.parametrize("text", ["balance = 'a:b'", "[balance]\nmine = 'a.b'", "[balance]\nmine = 3", "not toml"])
def test_a_malformed_file_of_names_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="module:"):
        policies.read(text)
