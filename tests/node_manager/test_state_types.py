"""A version that declares types other than those stored: it is refused before the switch, like a failing migration, and the owner
goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node_manager.conftest import Daemon, put_image
from tests.support.attempt import Attempt
from tests.support.keyed_node import COUNT, KEYED
from tests.support.selection import long
from udo_protocol.queue.frame import ERROR

STRICT = COUNT.replace("yield", "assert isinstance(n, int), f'there is {n}'\n        yield")
FLOATS = COUNT.replace("+ 1\n", "+ 1.0\n")
TYPED: dict[str, Any] = {**KEYED, "state": {"n": "int64"}}
REFUSED = "it cannot go on from the state of key 5: state entry 'n': expected int64, there is 1.0 (float)"


def updated(daemon: Daemon, version: str, source: str, **manifest: Any) -> Any:
    return list(daemon.api.update("d", version, put_image(daemon.home, source, version=version, **manifest)))[-1]


@pytest.mark.parametrize("isolation", ["shared", long("process")])
def test_an_update_that_cannot_go_on_from_the_state_is_refused_and_the_owner_goes_on(daemon: Daemon, isolation: str) -> None:
    assert FLOATS != COUNT
    daemon.deploy(FLOATS, **KEYED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([5, 6]) == [1, 1]
    last = updated(daemon, "2", COUNT, **TYPED, isolation=isolation)
    assert last.phase == "failed" and REFUSED in last.detail and "another state_version and a migrate()" in last.detail, last
    assert Attempt.at_node(daemon.api, "d", "s", 1, 1).run([5, 5]) == [2, 3]
    done = updated(daemon, "3", FLOATS, **{**KEYED, "state": {"n": "double"}})
    assert done.phase == "done", done
    assert Attempt.at_node(daemon.api, "d", "s", 2, 1).run([5, 6]) == [4, 2]


def test_entries_of_which_nothing_is_declared_are_not_compared_and_the_new_versions_first_event_fails(daemon: Daemon) -> None:
    daemon.deploy(FLOATS, **KEYED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([5, 6]) == [1, 1]
    attempt = Attempt.at_node(daemon.api, "d", "s", 1, 1)
    attempt.send([5])  # the new version is tried on this frame before the switch
    assert attempt.answers() == [2]
    assert updated(daemon, "2", STRICT, **KEYED).phase == "done"
    again = Attempt.at_node(daemon.api, "d", "s", 1, 2)
    again.send([5])
    [frame] = again.frames()
    assert frame.header.kind == ERROR and "there is 2.0" in frame.header.failure.message
    attempt.close()
    again.close()
