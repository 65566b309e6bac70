"""Two versions with dead letters, between which a slot is updated and rolled back."""

from __future__ import annotations

from typing import Any

from tests.conftest import Servers
from tests.runtime.conftest import Process
from tests.support.counters import COUNTS, EVENTS, Start
from tests.support.letters import events
from udo_protocol.state.dead_letters import DEAD

# Version 1 fails on "one", version 2 on "two".
FORMER = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["k"] == {bad!r}: raise ValueError("not this one")
        yield {{"k": event["k"], "n": n}}
"""
NEWER = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        ctx.state["cents"] = ctx.state.get("cents", 0) + 100
        if event["k"] == {bad!r}: raise ValueError("not that one")
        yield {{"k": event["k"], "n": ctx.state["cents"] // 100}}
    def migrate(self, old, from_version):
        return {{"cents": old["n"] * 100}}
"""


def former(start: Start, *, bad: str = "one", policy: str = "dead-letter", follow: str = "", **limits: int) -> Process:
    keyed = {"columns": ["k"]}
    more: dict[str, Any] = {"policy": policy, "follow": follow, "promote": not follow, **limits}
    return start(FORMER.format(bad=bad), "op:Count", schemas=(EVENTS, COUNTS), keyed=keyed, **more)


def newer(start: Start, *, bad: str = "two", policy: str = "dead-letter", follow: str = "owner", **limits: int) -> Process:
    keyed = {"columns": ["k"], "state_version": 1, "migrates_from": [0]}
    more: dict[str, Any] = {"policy": policy, "follow": follow, "promote": not follow, **limits}
    return start(NEWER.format(bad=bad), "op:Count", schemas=(EVENTS, COUNTS), keyed=keyed, **more)


def keys(servers: Servers, kind: str = DEAD) -> list[str]:
    """The keys of the events that are dead letters, in order."""
    return [e["k"] for e in events(servers, kind)]


def crash(instance: Process) -> None:
    instance.process.kill()
    instance.process.wait()
