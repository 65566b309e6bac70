"""An operator that answers one event with a thousand: the memory for answers under construction is bounded, also for the largest number
that is allowed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.node_manager.conftest import Daemon, Lane, put_image
from tests.support.attempt import Attempt
from tests.support.selection import long
from udo_protocol.limits import DEFAULT

Open = Callable[..., Lane]

MANY = """
from udo_runtime import Operator
class Many(Operator):
    def process(self, event, ctx):
        for n in range(event["a"]):
            yield {"b": n}
"""
LARGE = MANY.replace("n}", "'x' * 100_000}")


def deployed(daemon: Daemon, source: str, policy: str, **manifest: Any) -> None:
    digest = put_image(daemon.home, source, entry="op:Many", **manifest)
    daemon.api.deploy("d", "t", "1", digest, json.dumps({"policy": policy}), 30_000)


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["shared", "process"])
@pytest.mark.parametrize("policy", ["fail", "dead-letter"])
def test_a_frame_of_ten_million_answers_takes_what_they_take_in_arrow(daemon: Daemon, lane: Open, isolation: str, policy: str) -> None:
    """As Python dicts they took 2.3 GB."""
    deployed(daemon, MANY, policy, isolation=isolation)
    caller = lane()
    caller.send([1000] * 10_000)
    answer = caller.values(caller.receive(120))
    assert len(answer) == 10_000_000 and answer[:1002] == [*range(1000), 0, 1]
    assert daemon.slot().restarts == 0


@pytest.mark.parametrize("isolation", [long("shared"), "process"])
@pytest.mark.parametrize("policy", [long("fail"), "dead-letter"])
def test_more_than_a_caller_takes_is_an_error_that_says_so(daemon: Daemon, lane: Open, isolation: str, policy: str) -> None:
    deployed(daemon, LARGE, policy, isolation=isolation, output={"b": "string"})
    caller = lane()
    caller.send([30] * 100)
    failure = caller.receive(120).header.failure
    assert failure is not None and f"the bound is {DEFAULT.answer_bytes}: return less per event, or send fewer" in failure.message, failure
    assert daemon.slot().restarts == 0
    assert lane().ask(1) == "x" * 100_000


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["shared", long("process")])
def test_one_event_that_is_answered_with_too_much_is_a_bad_event(daemon: Daemon, lane: Open, isolation: str) -> None:
    deployed(daemon, LARGE, "dead-letter", isolation=isolation, output={"b": "string"})
    caller = lane()
    caller.send([2, 1_000_000_000, 1])
    assert caller.values(caller.receive(120)) == ["x" * 100_000] * 3
    [letter] = daemon.api.dead_letters("d", whole=True)
    assert f"the bound is {DEFAULT.answer_bytes}" in letter.reason
    assert daemon.slot().restarts == 0


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fail", "dead-letter"])
def test_a_keyed_operators_answers_are_bounded_alike(daemon: Daemon, policy: str) -> None:
    digest = put_image(daemon.home, MANY, entry="op:Many", key=["a"])
    daemon.api.deploy("d", "t", "1", digest, json.dumps({"policy": policy}), 30_000)
    answers = Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1000] * 10_000)
    assert len(answers) == 10_000_000 and answers[:1001] == [*range(1000), 0]
    assert daemon.slot().restarts == 0
