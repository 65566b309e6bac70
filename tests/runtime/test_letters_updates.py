"""Dead letters while an operator is updated: a follower's attempts leave none; a failed event is either a letter or in the state."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Servers, bound, wait_until
from tests.runtime.conftest import P, Process
from tests.support.counters import an_attempt
from tests.support.letters import counter, kills, letters
from tests.support.letters_going_back import crash, former, keys, newer
from udo_protocol.queue import slot
from udo_protocol.state import checkpoints
from udo_protocol.state.dead_letters import PENDING

pytestmark = pytest.mark.long

Start = Callable[..., Process]
# Fails on "odd" in the first process that gets such an event.
ONCE = """
import os, pathlib
from udo_runtime import Operator
failed = pathlib.Path({failed!r})
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["k"] == "odd":
            if not failed.exists(): failed.write_text(str(os.getpid()))
            if failed.read_text() == str(os.getpid()): raise OSError("away")
        yield {{"k": event["k"], "n": n}}
"""


def promote(servers: Servers, follower: Process) -> None:
    slot.promote(servers.state(), servers.queue(), P, follower.token)


def test_what_a_follower_fails_on_in_epochs_that_the_owner_ends_is_no_letter(start: Start, servers: Servers) -> None:
    former(start, bad="one")
    an_attempt(servers, 0, 0).run(["a"])
    follower = newer(start, bad="two")
    attempt = an_attempt(servers, 1, 1)
    for _ in range(3):  # the follower tries these meanwhile
        attempt.send(["two", "one"])
        attempt.frames()
    attempt.end()
    attempt.frames()
    assert keys(servers) == ["one"] * 3
    promote(servers, follower)
    assert an_attempt(servers, 2, 2).run(["one", "two"]) == [("one", 1)]
    assert sorted(keys(servers)) == ["one"] * 3 + ["two"]
    assert letters(servers, PENDING) == {}


@pytest.mark.short
def test_of_an_epoch_under_way_the_new_version_makes_the_letters_as_it_makes_the_state(start: Start, servers: Servers) -> None:
    former(start, bad="one")
    an_attempt(servers, 0, 0).run(["a"])
    attempt = an_attempt(servers, 1, 1)
    attempt.send(["two", "one"])
    assert attempt.answers() == [("two", 1)]
    promote(servers, newer(start, bad="two"))
    attempt.send(["two", "one"])
    attempt.end()
    assert attempt.answers() == [("one", 2)]
    assert [(d.number, d.row, d.operator) for d in letters(servers).values()] == [(1, 0, "t@2"), (2, 0, "t@2")]
    assert an_attempt(servers, 2, 2).run(["one"]) == [("one", 3)]


def test_letters_that_a_checkpoint_covers_stay_those_of_the_former_version(start: Start, servers: Servers) -> None:
    former(start, bad="one", retained_bytes=4)  # a checkpoint after each frame
    attempt = an_attempt(servers, 0, 0)
    attempt.send(["two", "one"])
    attempt.frames()
    wait_until(lambda: keys(servers, PENDING) == ["one"], 10, "the checkpoint")
    serving = newer(start, bad="two")
    promote(servers, serving)
    crash(serving)  # it has migrated, and written nothing yet
    newer(start, bad="two", follow="")
    attempt.send(["two", "one"])
    attempt.end()
    assert attempt.answers() == [("one", 1)]
    assert [(d.number, d.row) for d in sorted(letters(servers).values(), key=lambda d: d.number)] == [(1, 1), (2, 0)]
    assert letters(servers, PENDING) == {}
    assert an_attempt(servers, 1, 1).run(["two"]) == []  # the state of "two" is still the former version's 1


def test_a_follower_that_is_given_up_leaves_no_letters(start: Start, servers: Servers) -> None:
    former(start, bad="")
    follower = newer(start, bad="two")
    attempt = an_attempt(servers, 0, 0)
    attempt.send(["two", "two"])
    attempt.frames()
    crash(follower)
    attempt.end()
    attempt.frames()
    assert (letters(servers), letters(servers, PENDING)) == ({}, {})


@pytest.mark.parametrize("before", [True, False])
def test_with_a_checkpoint_for_each_frame_an_event_that_failed_by_chance_is_answered_or_a_letter(
    start: Start, servers: Servers, tmp_path: Path, before: bool
) -> None:
    """If the process dies before the frame is durable, the frame is processed anew; if later, the letter stays."""
    source = ONCE.format(failed=str(tmp_path / "failed"))
    patch = kills(tmp_path / "died", "from udo_runtime.durable.sessions import Durable", "Durable.save", before=before)
    first = counter(start, patch + source, commit="frame")
    attempt = an_attempt(servers, 0, 0)
    attempt.send(["odd", "a"])
    assert first.process.wait(bound(20)) == -signal.SIGKILL
    assert checkpoints.load_checkpoint(servers.state(), P).seq == (0 if before else 1)
    counter(start, source, commit="frame")
    attempt.send(["odd"])
    attempt.end()
    answered = [("odd", 1), ("a", 1), ("odd", 2)] if before else [("a", 1), ("odd", 1)]
    assert attempt.answers() == answered
    assert keys(servers) == ([] if before else ["odd"])
    assert letters(servers, PENDING) == {}
