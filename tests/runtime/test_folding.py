"""A key group on the state server: a base and the changes since, folded into a new base when they outgrow it."""

from __future__ import annotations

import pytest

from tests.conftest import Servers
from tests.runtime.conftest import P
from tests.support.attempt import GROUPS
from tests.support.counters import Start, an_attempt, counter
from udo_protocol.queue.connection import Connection
from udo_protocol.state import pieces
from udo_protocol.state.pieces import PiecePlace

MB = 1 << 20
# Two keys for each group: a large one that stays, and a smaller one that changes.
LARGE, SMALL = [[f"{name}{n}" for n in GROUPS] for name in ("large", "small")]
HOARD = f"""
from udo_runtime import Operator
class Hoard(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.state["held"] = bytes({3 * MB} if event["k"].startswith("large") else {MB // 2})
        yield {{"k": event["k"], "n": n}}
"""


def places(state: Connection) -> list[PiecePlace]:
    return [group.place for n, group in pieces.read(state, P, "q") if n in GROUPS]


@pytest.mark.long
def test_groups_whose_changes_outgrow_their_bases_at_once_are_folded_by_and_by(start: Start, servers: Servers) -> None:
    state = servers.state()
    owner = counter(start, HOARD, "op:Hoard")
    an_attempt(servers, 0, 0).run(LARGE)
    assert [place.bytes > 3 * MB for place in places(state)] == [True] * len(GROUPS)
    folds: list[int] = []
    for epoch in range(1, 20):
        before = [place.changes for place in places(state)]
        assert an_attempt(servers, epoch, epoch).run(SMALL) == [(k, epoch) for k in SMALL]
        after = [place.changes for place in places(state)]
        folds.append(sum(now < then for now, then in zip(after, before, strict=True)))
    assert sum(folds) >= len(GROUPS)
    assert max(folds) < len(GROUPS)
    owner.process.kill()
    owner.process.wait()
    counter(start, HOARD, "op:Hoard")
    assert an_attempt(servers, 20, 20).run([*SMALL, *LARGE]) == [*((k, 20) for k in SMALL), *((k, 2) for k in LARGE)]
