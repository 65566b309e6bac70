"""The Application Manager (paper 5, section 3.2): grants under an SLA by gain ÷ cost, one token each, and a journal that replays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticity.scaling import journal
from elasticity.scaling.application import ApplicationSample, ChainPart, Proposal, kept
from elasticity.scaling.application_journal import (
    ApplicationEntry,
    ApplicationManager,
    GrantOutcome,
    application_line,
    outcome_line,
    read_application,
    replay_application,
)
from elasticity.scaling.application_wish import ApplicationWish, Membership
from elasticity.scaling.journal import Header
from elasticity.scaling.model import GAIN, Kind, Plan
from elasticity.scaling.modes import AUTO, Elasticity
from udo_protocol.errors import UsageError


def proposal(operator: str, kind: Kind = "scale_out", *, node: str = "a", cost_ms: float = 1.0, beyond: float = 0.0) -> Proposal:
    after = {"scale_out": 2, "migrate": 1, "scale_in": 0, "balance": 1}[kind]
    return Proposal(node, 7, 1, Plan(operator, kind, after, GAIN[kind] + beyond, cost_ms, "because"))


def seen(at_s: float, *proposals: Proposal, ms: float | None = 190.0, missing: str = "", down_ms: float = 0.0) -> ApplicationSample:
    chain = (ChainPart("parse", None if ms is None else ms / 2, "", down_ms), ChainPart("count", None if ms is None else ms / 2, missing))
    return ApplicationSample(at_s, chain, proposals)


def manager(**settings: float) -> ApplicationManager:
    return ApplicationManager(Header("sla", {"token_s": 60.0, "idle_token_s": 0.0, **settings}, 0, {"mode": AUTO}))


def operators(proposals: tuple[Proposal, ...]) -> list[str]:
    return [p.plan.operator for p in proposals]


def test_the_response_time_is_the_sum_along_the_chain_and_a_token_comes_while_it_is_above_beta_times_the_sla() -> None:
    m, ask = manager(beta=0.75), proposal("count")
    assert m.decide(seen(0, ask)).decision.declined == ((ask, "no token"),)
    assert m.decide(seen(30, ask)).decision.granted == (), "half of a token"
    late = m.decide(seen(60, ask)).decision
    assert (late.response_ms, operators(late.granted)) == (190.0, ["count"])
    calm = manager(beta=0.75)
    assert all(not calm.decide(seen(60.0 * n, ask, ms=140)).decision.granted for n in range(10)), "150 ms are not reached"
    returning = manager(beta=0.75, idle_token_s=120.0)
    granted = [bool(returning.decide(seen(60.0 * n, ask, ms=140)).decision.granted) for n in range(5)]
    assert granted == [False, False, True, False, True]


def test_the_best_gain_for_its_cost_is_granted_first_and_the_bucket_bounds_how_many() -> None:
    m = manager(capacity=2)
    m.decide(seen(0))
    asks = (proposal("shrink", "scale_in"), proposal("busy", beyond=0.2), proposal("busier", beyond=0.6), proposal("dear", cost_ms=1000.0))
    decision = m.decide(seen(600, *asks)).decision
    assert operators(decision.granted) == ["busier", "busy"]
    assert [(p.plan.operator, why) for p, why in decision.declined] == [("shrink", "no token"), ("dear", "no token")]


def test_balancing_is_granted_without_a_token_and_counts_as_downtime() -> None:
    m, balance = manager(downtime_percent=0.01), proposal("keyed", "balance", cost_ms=200.0)
    decision = m.decide(seen(0, balance, proposal("busy"))).decision
    assert (operators(decision.granted), [why for _, why in decision.declined]) == (["keyed"], ["no token"])
    decision = m.decide(seen(60, balance, proposal("busy"))).decision
    assert operators(decision.granted) == ["busy"], "the token is there, but 0.01 % of an hour is 360 ms"
    assert decision.declined == ((balance, "the downtime of the last hour allows no more"),)


def test_missing_figures_grant_nothing_and_earn_no_token() -> None:
    m, ask = manager(idle_token_s=1.0), proposal("count")
    m.decide(seen(0))
    blind = m.decide(seen(600, ask, missing="node b tells nothing")).decision
    assert blind.response_ms is None and blind.declined == ((ask, "no figures of count: node b tells nothing"),)
    assert kept(blind, 200.0, None) is None, "not known is not kept"
    assert m.decide(seen(601, ask)).decision.granted == ()
    assert operators(m.decide(seen(661, ask)).decision.granted) == ["count"]


def test_downtime_that_was_measured_and_that_steps_cost_stays_within_the_sla() -> None:
    """The limit is 3.6 s: 0.1 % of an hour."""
    m = manager(downtime_percent=0.1)
    m.decide(seen(0))
    assert operators(m.decide(seen(60, proposal("count", cost_ms=1000.0), down_ms=2000)).decision.granted) == ["count"]
    over = m.decide(seen(120, proposal("count", cost_ms=1000.0))).decision
    assert over.down_ms == 2000.0 and [why for _, why in over.declined] == ["the downtime of the last hour allows no more"]
    assert kept(over, 200.0, 0.1) and not kept(over, 200.0, 0.05)
    later = m.decide(seen(3800, proposal("count", cost_ms=1000.0))).decision
    assert later.down_ms == 0.0 and operators(later.granted) == ["count"], "an hour later it is forgotten"


def test_the_downtime_of_a_granted_step_counts_once_when_it_has_been_measured() -> None:
    """The limit is 3.6 s; a step is expected to cost 1 s, and so it does, in two samples."""
    m, ask = manager(downtime_percent=0.1), proposal("count", cost_ms=1000.0)
    m.decide(seen(0))
    for n in range(3):
        assert operators(m.decide(seen(60 + 120 * n, ask)).decision.granted) == ["count"], f"{n} s of 3.6 s have been used"
        m.decide(seen(100 + 120 * n, down_ms=400))
        assert m.decide(seen(119 + 120 * n, down_ms=600)).decision.down_ms == 1000 * (n + 1)
    over = m.decide(seen(480, ask)).decision
    assert [why for _, why in over.declined] == ["the downtime of the last hour allows no more"]


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 90),
            st.one_of(st.none(), st.floats(0, 400)),
            st.booleans(),
            st.lists(st.sampled_from(["x", "y", "z"]), max_size=3),
            st.floats(0, 5000),
        ),
        max_size=30,
    ),
    st.integers(1, 3),
)
def test_whatever_is_measured_grants_are_bounded_by_time_and_the_journal_replays(
    steps: list[tuple[float, float | None, bool, list[str], float]], capacity: int
) -> None:
    m, at_s, entries = manager(capacity=capacity, idle_token_s=600.0, downtime_percent=0.5), 0.0, list[ApplicationEntry]()
    for passed, ms, blind, names, down in steps:
        at_s += passed
        entries.append(m.decide(seen(at_s, *map(proposal, names), ms=ms, missing="gone" * blind, down_ms=down)))
    granted = sum(len(e.decision.granted) for e in entries)
    assert granted <= at_s / 60 + 1e-6
    assert all(e.decision.response_ms is not None for e in entries if e.decision.granted and e.sample.chain[0].response_ms is not None)
    text = [journal.first_line(m.header), *map(application_line, entries)]
    header, read, _ = read_application(text)
    assert (header, read) == (m.header, entries) and not list(replay_application(header, read))


def test_a_journal_says_what_became_of_grants_and_an_edited_decision_comes_out_differently() -> None:
    m = manager()
    m.decide(seen(0))
    first, second = m.decide(seen(60, proposal("count"))), m.decide(seen(90))
    assert first.number == 1
    fresh = manager()
    lines = [journal.first_line(fresh.header), *(application_line(fresh.decide(seen(t))) for t in (0, 30))]
    done = GrantOutcome(1, "a", "count", 61.0, 2)
    told = [*lines, outcome_line(done)]
    assert read_application(told)[2] == {(1, "a", "count"): done} and second.number == 2
    edited = json.loads(lines[2])
    edited["decision"]["response_ms"] = 1.0
    header, entries, _ = read_application([*lines[:2], json.dumps(edited)])
    assert [e.number for e, _ in replay_application(header, entries)] == [1]
    for broken, line in ((["{}"], 1), ([*lines, '{"number": 9}'], 4), ([lines[0], lines[2]], 2), ([lines[0], "nothing"], 2)):
        with pytest.raises(UsageError, match=f"line {line}:"):
            read_application(broken)


def test_a_wish_names_what_is_wrong_with_it() -> None:
    wish = ApplicationWish.parse({"deployments": ["a", "b"], "response_ms": 100, "settings": {"beta": 0.5, "u_max": 0.9}})
    assert ApplicationWish.parse(wish.record()) == wish
    assert wish.manager_settings() == {"response_ms": 100, "downtime_percent": None, "beta": 0.5}
    assert wish.handed_out("taxi") == {"name": "taxi", "mode": "advise", "settings": {"u_max": 0.9}}
    for wrong, message in (
        ({"deployments": []}, "expected deployments by name"),
        ({"deployments": ["a", "a"]}, "each once"),
        ({"deployments": ["a"], "mode": "on"}, "expected mode off, advise, auto"),
        ({"deployments": ["a"], "response_ms": 0}, "expected response_ms from"),
        ({"deployments": ["a"], "downtime_percent": 101}, "expected downtime_percent from 0 to 100"),
        ({"deployments": ["a"], "settings": {"gamma": 1}}, "no setting 'gamma'"),
        ({"deployments": ["a"], "settings": {"capacity": 1.5}}, "a whole number"),
        ({"deployments": ["a"], "colour": 1}, "no entry 'colour'"),
    ):
        with pytest.raises(UsageError, match=message):
            ApplicationWish.parse(wrong)


def test_what_a_deployment_says_itself_goes_before_what_its_application_says() -> None:
    membership = Membership.parse({"name": "taxi", "mode": "auto", "settings": {"s_out": 0.6, "calm_s": 5}})
    assert membership is not None
    wish = Elasticity(AUTO, "edf", 1, 4, settings={"s_out": 0.8, "token_s": 1.0, "balance": "KG"})
    assert membership.header(wish, 2) == {"s_out": 0.8, "calm_s": 5, "least": 1, "most": 4, "balance": "KG"}
    assert Membership.parse({"name": "taxi", "mode": "off"}) is None and Membership.parse(None) is None
