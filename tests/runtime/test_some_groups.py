"""A reader of some key groups (the instance of a keyed canary) receives the state of these groups only."""

from __future__ import annotations

import re
from collections.abc import Callable

from udo_runtime.durable.standby import StandbyState

from tests.conftest import Servers
from tests.runtime.conftest import P
from tests.support.attempt import GROUPS, group_of
from tests.support.counters import Start, an_attempt, counter
from udo_protocol.queue.connection import Connection
from udo_protocol.state import changelog
from udo_protocol.state.changelog import LoggedCheckpoint

BULKY = """
from udo_runtime import Operator
class Bulky(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        ctx.state["much"] = f"{event['k']}{n}" * 20_000
        yield {"k": event["k"], "n": n}
"""


def counted(conn: Connection, what: str) -> int:
    """The bytes that the server has sent (`output`) or received (`input`) so far."""
    return int(re.search(rb"total_net_%s_bytes:(\d+)" % what.encode(), conn.call("INFO", "stats"))[1])  # type: ignore[index]


def test_a_reader_of_one_group_is_sent_its_share_of_the_bytes_and_has_the_same_state(start: Start, servers: Servers) -> None:
    """Both when it loads and when it reads the changelog; also for a session that begins meanwhile."""
    counter(start, BULKY, "op:Bulky")
    keys = ["a", "b", "c", "d"]  # one in each group
    mine = group_of("a")
    for session in ("q", "r"):
        an_attempt(servers, 0, 0, session=session).run(keys)
    run_id, conn = servers.queue().run_id, servers.state()

    def sent(work: Callable[[], object]) -> int:
        before = counted(conn, "output")
        work()
        return counted(conn, "output") - before

    whole, part = StandbyState(servers.state(), P, "whole", run_id), StandbyState(servers.state(), P, "part", run_id, groups=[mine])
    loading = [sent(state.load) for state in (whole, part)]
    for session in ("q", "r", "new"):
        for epoch in (1, 2) if session != "new" else (0, 1):
            an_attempt(servers, epoch, epoch, session=session).run(keys)
    following = [sent(state.sync) for state in (whole, part)]
    for all_bytes, bytes_ in (loading, following):
        assert bytes_ < all_bytes / 3, (loading, following)
    for session in ("q", "r", "new"):
        expected, found = whole.sessions[session], part.sessions[session]
        assert found.groups.keys() == {mine} and expected.groups.keys() == set(GROUPS)
        one, same = found.groups[mine], expected.groups[mine]
        assert one.values and (one.values, one.label, one.ended) == (same.values, same.label, same.ended)
        assert found.last_ended == expected.last_ended == (1 if session == "new" else 2)


def test_a_checkpoint_of_very_many_groups_is_read_from_the_changelog_as_one(servers: Servers) -> None:
    state = servers.state()
    changelog.join(state, P, "whole")
    parts = [(f"{n} some session", b"%d" % n) for n in range(1 << 15)]
    state.call(*changelog.appending(P, LoggedCheckpoint(b"first", parts)))
    state.call(*changelog.appending(P, LoggedCheckpoint(b"second", [("-1 s", b"t"), ("7 s", b"x"), ("8 s", b"y")])))
    (first, second), position, _ = changelog.read(state, P, "whole", 0)
    assert (first.head, first.parts, second.head) == (b"first", parts, b"second")
    assert position == int(state.call("GET", f"{P}logged"))
    some, at, _ = changelog.read(state, P, "whole", 0, [7, 30_000])
    assert at == position and [e.head for e in some] == [b"first", b"second"]
    assert [e.parts for e in some] == [[parts[7], parts[30_000]], [("-1 s", b"t"), ("7 s", b"x")]]
    assert changelog.read(state, P, "whole", position)[0] == changelog.read(state, P, "whole", position, [7])[0] == []
    before = counted(state, "input")
    changelog.read(state, P, "whole", position, range(1 << 15))
    assert counted(state, "input") - before < 1000, "a mirror of many groups names them before every frame"
    changelog.hold(state, P, "whole", position)
    assert state.call("XLEN", f"{P}changelog") == 0
