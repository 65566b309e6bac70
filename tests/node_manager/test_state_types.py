"""A version that declares types for a state that lies there with others: told before the switch, as a migration that fails is; the owner
goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node_manager.conftest import Daemon, put_image
from tests.support.attempt import Attempt
from tests.support.keyed_node import COUNT, KEYED
from tests.support.selection import long

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


@pytest.mark.parametrize("under_way", [True, False])
def test_of_an_entry_that_nothing_is_declared_of(daemon: Daemon, under_way: bool) -> None:
    daemon.deploy(FLOATS, **KEYED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([5, 6]) == [1, 1]
    attempt = Attempt.at_node(daemon.api, "d", "s", 1, 1)
    if under_way:
        attempt.send([5])
        assert attempt.answers() == [2]
    print("UPDATE", updated(daemon, "2", STRICT, **KEYED))
    attempt.send([5])
    print([(f.header.kind, f.header.failure.message) for f in attempt.frames()])
