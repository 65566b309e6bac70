"""An update while frames wait unanswered: the new owner takes over in the middle of a backlog, and answers all of it in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, Lane, put_image
from tests.support.attempt import Attempt

Open = Callable[..., Lane]
HELD = 50
FRAMES = 40
# Holds one event until the update is done: all events behind it wait when the new version takes over.
HOLDING = """
import os, time
from udo_runtime import Operator, operator
def held(a):
    while a == {held} and {version} == 1 and not os.path.exists({go!r}):
        print("holding", flush=True)
        time.sleep(0.05)
@operator
def run(batch):
    values = batch.column("a").to_pylist()
    for a in values:
        held(a)
    return {{"b": [a + 1000 * {version} for a in values]}}
class Keyed(Operator):
    def process(self, event, ctx):
        held(event["a"])
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {{"b": n + 1000 * {version}}}
"""


def _source(daemon: Daemon, version: int) -> str:
    return HOLDING.format(held=HELD, version=version, go=str(_go(daemon)))


def _go(daemon: Daemon) -> Path:
    """Return a path in the one directory of the node that operators see."""
    return daemon.home / "run" / "go"


def _update_behind_the_held_frame(daemon: Daemon, **image: object) -> None:
    wait_until(lambda: any("holding" in line.text for line in daemon.api.logs("d")), 30, "the operator to hold a frame")
    digest = put_image(daemon.home, _source(daemon, 2), version="2", **image)  # type: ignore[arg-type]
    assert list(daemon.api.update("d", "2", digest))[-1].phase == "done"
    _go(daemon).touch()


def test_an_update_with_unanswered_frames_answers_each_once_in_order(daemon: Daemon, lane: Open) -> None:
    daemon.deploy(_source(daemon, 1))
    caller = lane()
    for a in range(HELD - FRAMES // 2, HELD + FRAMES // 2):
        caller.send([a])
    _update_behind_the_held_frame(daemon)
    answers = [caller.values(caller.receive(30))[0] for _ in range(FRAMES)]
    assert [a % 1000 for a in answers] == list(range(HELD - FRAMES // 2, HELD + FRAMES // 2))
    versions = [a // 1000 for a in answers]
    assert versions == sorted(versions) and versions[0] == 1
    assert versions.count(2) >= FRAMES // 2, "the new version was to take over in the middle of the backlog"


def test_a_keyed_update_with_unanswered_frames_counts_each_event_once_in_order(daemon: Daemon) -> None:
    keyed = {"entry": "op:Keyed", "input": {"a": "int64"}, "output": {"b": "int64"}, "key": ["a"]}
    daemon.deploy(_source(daemon, 1), **keyed)
    attempt = Attempt.at_node(daemon.api, "d", "q", 0, 1)
    for _ in range(5):
        attempt.send([1, 2])
    attempt.send([HELD])
    for _ in range(5):
        attempt.send([1, 2])
    attempt.end()
    _update_behind_the_held_frame(daemon, **keyed)
    answers = attempt.answers()
    attempt.close()
    assert [a % 1000 for a in answers] == [n for n in range(1, 6) for _ in "12"] + [1] + [n for n in range(6, 11) for _ in "12"]
    assert [a // 1000 for a in answers[10:]] == [2] * 11, "the new version was to take over in the middle of the backlog"
    assert Attempt.at_node(daemon.api, "d", "q", 1, 2).run([1, 2, HELD]) == [2011, 2011, 2002]
