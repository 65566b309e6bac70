"""Counters, and standbys that follow them."""

from __future__ import annotations

from tests.conftest import Servers
from tests.runtime.conftest import P, Process
from tests.support.counters import COUNTS, EVENTS, Start
from udo_protocol.queue import slot

STEP = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + {step}
        yield {{"k": event["k"], "n": n}}
"""


def counter(start: Start, step: int = 1, *, follow: str = "", **more: int) -> Process:
    keyed = {"columns": ["k"]}
    return start(STEP.format(step=step), "op:Count", schemas=(EVENTS, COUNTS), keyed=keyed, follow=follow, promote=not follow, **more)


def promote(servers: Servers, follower: Process) -> None:
    slot.promote(servers.state(), servers.queue(), P, follower.token)


CENTS = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        ctx.state["cents"] = ctx.state.get("cents", 0) + 100
        yield {"k": event["k"], "n": ctx.state["cents"] // 100}
    def migrate(self, old, from_version):
        if "bad" in old: raise ValueError("cannot read this")
        return {"cents": old["n"] * 100}
"""


def cents(start: Start, follow: str = "owner", promote: bool = False, **more: int) -> Process:
    keyed = {"columns": ["k"], "state_version": 1, "migrates_from": [0]}
    return start(CENTS, "op:Count", schemas=(EVENTS, COUNTS), keyed=keyed, follow=follow, promote=promote, **more)
