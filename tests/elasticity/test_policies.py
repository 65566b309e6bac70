"""Policies are found by name, and users can add their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from elasticity import policies
from elasticity.balance.dlb import dlb_h
from elasticity.scaling import application, local
from elasticity.scaling.ds2 import Ds2Settings, ds2
from elasticity.scaling.model import Sample
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


MANAGER = "u_max s_out c"
TOKENS = "beta token_s capacity idle_token_s"
BALANCE = "balance theta balance_use balance_confirm balance_s balance_groups balance_sigmas reverse_s"


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("accept_all", MANAGER),
        ("edf", f"r_max_ms downtime_share calm_s {TOKENS} {MANAGER}"),
        ("ds2", "target_use most_use least_use catch_up_s calm_s"),
        ("fuzzy", "grow confirm calm settle rules"),
        ("local", f"policy inner least most token_s capacity idle_after_s strategy hold_s refresh_s {BALANCE}"),
        ("managed", f"least most calm_s spread {MANAGER} {BALANCE}"),
    ],
)
def test_the_settings_of_a_policy_have_the_names_that_deployments_and_journals_give(policy: str, names: str) -> None:
    assert vars(policies.settings(policies.find("scaling", policy))).keys() == set(names.split())


def test_settings_are_given_by_name_and_the_others_have_their_defaults() -> None:
    assert policies.settings(ds2, {"target_use": 0.5}) == Ds2Settings(target_use=0.5)
    assert policies.settings(application.sla, {"response_ms": 100}).downtime_percent is None
    around = policies.settings(local.local, {"policy": "ds2", "most": 4, "target_use": 0.5, "inner": 1})
    assert (around.policy, around.most, around.inner) == ("ds2", 4, {"target_use": 0.5, "inner": 1}), "what is not its own"
    with pytest.raises(UsageError, match="^scaling policy 'ds2' has no setting 'speed'; there are calm_s, catch_up_s, least_use"):
        policies.settings(ds2, {"target_use": 0.5, "speed": 1})


def without(sample: Sample, memory: None, rng: random.Random) -> None:
    """No settings."""


def by_keyword(sample: Sample, memory: None, rng: random.Random, *, most_use: float = 0.8) -> None:
    """The form of former releases."""


def unknown(sample: Sample, memory: None, rng: random.Random, settings: Mine) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Settings of a type that its module does not have."""


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (without, r"'without': expected without\(sample, memory, rng, settings\), settings: a dataclass"),
        (by_keyword, "'by_keyword': expected by_keyword"),
        (unknown, "types of its parameters are not known when it runs: name 'Mine' is not defined"),
    ],
)
def test_a_scaling_policy_of_another_form_is_refused(policy: Callable[..., Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        policies.settings(policy, {})
