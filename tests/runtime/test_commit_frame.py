"""commit = "frame": with an operator that is not deterministic, the state never contradicts the answers."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.conftest import Servers
from tests.runtime.conftest import P, Process
from tests.support.counters import COUNTS, EVENTS, an_attempt
from tests.support.seeds import seeds
from udo_protocol.queue import slot
from udo_protocol.state import checkpoints

Start = Callable[..., Process]
# Answers the key's last drawn value and draws the next one: the chain of answers breaks if a frame is processed again.
DICE = """
import random
from udo_runtime import Operator
class Dice(Operator):
    def process(self, event, ctx):
        last = ctx.state.get("n", 0)
        ctx.state["n"] = random.randrange(1, 1 << 40)
        yield {"k": event["k"], "n": last}
        yield {"k": event["k"], "n": ctx.state["n"]}
"""


def dice(start: Start, commit: str = "frame", follow: str = "") -> Process:
    keyed = {"columns": ["k"], "commit": commit}
    return start(DICE, "op:Dice", schemas=(EVENTS, COUNTS), keyed=keyed, follow=follow, promote=not follow)


def chained(answers: list[tuple[str, int]], last: dict[str, int]) -> None:
    """Check that each event answers the value drawn by the event before it."""
    for (key, before), (_, drawn) in zip(answers[::2], answers[1::2], strict=True):
        assert before == last.get(key, 0), f"{key} went on from {before}, the value answered before was {last.get(key, 0)}"
        last[key] = drawn


def test_a_frame_is_durable_when_it_is_answered(start: Start, servers: Servers) -> None:
    first, last = dice(start), {}
    attempt = an_attempt(servers, 0, 1)
    attempt.send(["a", "b"])
    chained(attempt.answers(), last)
    assert checkpoints.load_checkpoint(servers.state(), P).seq == 1
    first.process.kill()
    first.process.wait()
    dice(start)
    attempt.send(["a"])
    attempt.end()
    chained(attempt.answers(), last)


def test_without_it_a_crash_makes_the_state_contradict_the_answers(start: Start, servers: Servers) -> None:
    first, last = dice(start, "epoch"), {}
    attempt = an_attempt(servers, 0, 1)
    attempt.send(["a"])
    chained(attempt.answers(), last)
    first.process.kill()
    first.process.wait()
    dice(start, "epoch")
    attempt.send(["a"])
    with pytest.raises(AssertionError, match="went on from"):
        chained(attempt.answers(), last)


@pytest.mark.parametrize("seed", seeds(1, deep=3))
def test_kills_pauses_and_updates_at_any_time_break_no_chain(start: Start, servers: Servers, seed: int) -> None:
    rng, last = random.Random(seed), {}
    owner, follower = dice(start), None
    for epoch in range(6):
        attempt, answered = an_attempt(servers, epoch, epoch), []
        for _ in range(rng.randint(2, 6)):
            attempt.send([rng.choice("abcdef") for _ in range(rng.randint(1, 20))])
            if rng.random() < 0.5:
                answered += attempt.answers()
            what = rng.choice(["nothing", "kill", "follow", "promote", "pause"])
            time.sleep(rng.random() * 0.01)
            if what == "kill":
                owner.process.kill()
                owner.process.wait()
                owner, follower = dice(start), None
            elif what == "follow" and follower is None:
                follower = dice(start, follow="owner")
            elif what == "promote" and follower is not None:
                slot.promote(servers.state(), servers.queue(), P, follower.token)
                owner, follower = follower, None
            elif what == "pause":  # a former owner wakes up late
                former = owner
                os.kill(former.process.pid, signal.SIGSTOP)
                owner, follower = dice(start), None
                os.kill(former.process.pid, signal.SIGCONT)
        attempt.end()
        answered += attempt.answers()
        chained(answered, last)
