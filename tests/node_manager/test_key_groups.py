"""The number of key groups is chosen when a deployment is made, stored with each session, and checked whenever state comes back."""

from __future__ import annotations

import json

import pytest

from tests.node_manager.conftest import Daemon
from tests.support.attempt import Attempt
from tests.support.keyed_node import COUNT, KEYED, imported
from udo_protocol.errors import Conflict, SchemaError, UsageError
from udo_protocol.limits import MOST_KEY_GROUPS

MANY = 1000


def limits(key_groups: int) -> str:
    return json.dumps({"limits": {"key_groups": key_groups}})


def test_a_deployment_keeps_the_number_of_key_groups_that_it_began_with(home_daemon: Daemon) -> None:
    home_daemon.start("--session-idle-s", "0")
    digest = home_daemon.deploy(COUNT, config_json=limits(MANY), **KEYED)
    for epoch, groups in enumerate((range(MANY), range(MANY - 4, MANY))):
        attempt = Attempt.at_node(home_daemon.api, "d", "s", epoch, epoch, groups=groups, key_groups=MANY)
        assert attempt.run([1, 2]) == [epoch + 1] * 2

    header = next(iter(home_daemon.api.export_state("d", "s"))).header
    assert header.key_groups == MANY
    with pytest.raises(Conflict, match="has 1000 key groups, and the query was planned with 128"):
        Attempt.at_node(home_daemon.api, "d", "s", 2, 2)
    with pytest.raises(Conflict, match="has 1000 key groups on node n1, chosen at its first start; expected the same, got 128"):
        home_daemon.api.deploy("d", "t", "1", digest, limits(128), 30_000)
    with pytest.raises(SchemaError, match=r"is in 128 key groups; the deployment has 1000: .* --key-groups 128"):
        imported(home_daemon, "other", {1: 1}, 3)
    assert imported(home_daemon, "other", {1: 1}, 3, key_groups=MANY).groups > 0
    assert Attempt.at_node(home_daemon.api, "d", "other", 4, 3, groups=range(MANY), key_groups=MANY).run([1]) == [2]


@pytest.mark.parametrize("key_groups", [0, MOST_KEY_GROUPS + 1])
def test_a_number_of_key_groups_beyond_its_bounds_is_refused(daemon: Daemon, key_groups: int) -> None:
    with pytest.raises(UsageError, match=f"key_groups: expected 1 to {MOST_KEY_GROUPS}, got {key_groups}"):
        daemon.deploy(COUNT, config_json=limits(key_groups), **KEYED)
