"""Key groups that are read ahead of their move: at the move only later changes are read, and the state is the same."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from udo_runtime.durable.ahead import AheadOfMove
from udo_runtime.durable.sessions import Durable
from udo_runtime.engine.effects import Prepare
from udo_runtime.state.groups import Group
from udo_runtime.state.versions import Versions

from tests.conftest import Servers, wait_until
from tests.runtime.conftest import P
from tests.support.attempt import GROUPS, group_of
from tests.support.counters import Start, an_attempt, counter
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import carrying, moving
from udo_protocol.state.carrying import SentAhead
from udo_protocol.state.checkpoints import OwnedState
from udo_protocol.state.group_map import SlotGroups

OTHER = SlotKeys("t", 1000)
# 40 kB of state for each key.
BULKY = """
from udo_runtime import Operator
class Bulky(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.state["much"] = f"{event['k']}{n}" * 20_000
        yield {"k": event["k"], "n": n}
"""


def known(group: Group) -> object:
    return group.values, group.undo, group.label, group.ended, group.candidate, group.size, group.keys, group.place


def adopted(servers: Servers, ahead: AheadOfMove | None) -> tuple[dict[int, Group], int]:
    """Return the groups of session q that slot OTHER adopts, and the number of bytes that were read for it."""
    conn, owned = servers.state(), OwnedState(servers.state(), OTHER, 1)
    sent: Callable[[], int] = lambda: int(re.search(rb"total_net_output_bytes:(\d+)", conn.call("INFO", "stats"))[1])  # type: ignore[index]  # noqa: E731
    before = sent()
    record, groups = Durable(owned, "run").adopted(2, ["q"], ahead)["q"]
    assert record.last_ended == 3
    return dict(groups), sent() - before


def test_at_the_move_only_the_changes_since_are_read_and_the_state_is_the_same(start: Start, servers: Servers) -> None:
    counter(start, BULKY, "op:Bulky")
    keys = ["a", "b", "c", "d"]  # one in each group
    an_attempt(servers, 0, 0).run(keys)
    moved = [group_of(k) for k in "abc"]
    ahead = AheadOfMove(servers.state, OTHER, Prepare(2, P.number, moved), None)
    conn = servers.state()
    wait_until(lambda: moving.is_prepared(conn, OTHER, 2), 20, "the groups to be read")
    an_attempt(servers, 1, 1).run(["a"])
    for epoch in (2, 3):
        an_attempt(servers, epoch, epoch).run(["b"])  # a new base replaces its former one

    conn.transaction([moving.handing_over(P, 2, moved)])
    moving.deliver(conn, P, OTHER, P, SlotGroups.even([0, 1000], len(GROUPS)).moved(moved, 0, 1000))

    (all_of_it, whole), (same, rest) = adopted(servers, None), adopted(servers, ahead)
    assert set(all_of_it) == set(same) == set(moved)
    for n in moved:
        assert known(same[n]) == known(all_of_it[n])
    assert list(same[group_of("a")].values) == ["a"]
    assert rest < whole * 0.75, "the group of c was not read again, of that of a only the change"


def test_state_of_another_version_is_not_read_ahead_since_migrate_belongs_to_the_slots_thread(start: Start, servers: Servers) -> None:
    counter(start)
    an_attempt(servers, 0, 0).run(["a", "b"])
    moved, threads = [group_of(k) for k in "ab"], list[str]()

    def migrate(state: dict[str, Any], version: int) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return {**state, "from": version}

    versions = Versions(1, [0], migrate)
    ahead, conn = AheadOfMove(servers.state, OTHER, Prepare(2, P.number, moved), versions), servers.state()
    wait_until(lambda: moving.is_prepared(conn, OTHER, 2), 20, "the groups to be read")
    conn.transaction([moving.handing_over(P, 2, moved)])
    moving.deliver(conn, P, OTHER, P, SlotGroups.even([0, 1000], len(GROUPS)).moved(moved, 0, 1000))
    assert threads == []
    _, groups = Durable(OwnedState(servers.state(), OTHER, 1), "run", versions).adopted(2, ["q"], ahead)["q"]
    assert [groups[n].open(k) for n, k in zip(moved, "ab", strict=True)] == [{"n": 1, "from": 0}] * 2
    assert set(threads) == {threading.current_thread().name}


@pytest.mark.parametrize("brought", ["ahead", "another"])
def test_of_another_nodes_groups_the_copy_is_read_and_counts_only_if_it_is_the_one_that_brought_them(
    start: Start, servers: Servers, brought: str
) -> None:
    counter(start, BULKY, "op:Bulky")
    an_attempt(servers, 0, 0).run(["a", "b", "c", "d"])
    moved, sent, conn = [group_of(k) for k in "abc"], SentAhead("ahead"), servers.state()
    carrying.bring_ahead(conn, OTHER, "ahead", carrying.ahead(conn, P, moved, sent))
    ahead = AheadOfMove(servers.state, OTHER, Prepare(2, P.number, moved, "ahead"), None)
    wait_until(lambda: moving.is_prepared(conn, OTHER, 2), 20, "the copy to be read")
    an_attempt(servers, 1, 1).run(["a"])
    for epoch in (2, 3):
        an_attempt(servers, epoch, epoch).run(["b"])  # a new base replaces its former one
    conn.transaction([moving.handing_over(P, 2, moved)])
    carried = list(carrying.handed_over(conn, P, 2, sent if brought == "ahead" else None))
    carrying.take(conn, OTHER, 2, carrying.copied(conn, OTHER, 2, brought, carried))
    (same, rest), (all_of_it, whole) = adopted(servers, ahead), adopted(servers, None)
    assert {n: known(group) for n, group in same.items()} == {n: known(group) for n, group in all_of_it.items()}
    assert (rest < whole * 0.75) == (brought == "ahead"), "the group of c is not read again, of that of a only the change"
    assert list(same[group_of("a")].values) == ["a"] and same.keys() == set(moved)
