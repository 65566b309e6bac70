"""A slot that is added while a version is prepared takes no part in that update, but serves the version all the same."""

from __future__ import annotations

import json

import pytest

from node_manager.config import Release
from node_manager.manager import Manager
from tests.conftest import wait_until
from tests.node_manager.conftest import add, put_image
from tests.support.keyed_slots import COUNT, Oracle, counted
from tests.support.split_attempt import Job
from udo_protocol.errors import Conflict
from udo_protocol.node.api import NodeClient


def versions(api: NodeClient) -> list[str]:
    """Return the version of each slot's owner."""
    return [s.version for s in api.status().slots if s.state == "owner"]


def test_a_slot_that_is_added_while_a_version_is_prepared_serves_it_with_the_others(manager: Manager, api: NodeClient) -> None:
    home = manager.settings.home
    first = put_image(home, COUNT.format(version=1), key=["a"])
    api.deploy("d", "t", "1", first, json.dumps({"slots": 2}), 30_000)
    manager.ask_slots("d", 2, 30)
    job, oracle = Job(str(manager.settings.socket)), Oracle()
    sent = [[n % 40 for n in range(20 * i, 20 * i + 20)] for i in range(10)]
    counted_first = counted(job.epoch(0, sent))
    assert [n % 1000 for n in counted_first] == [n % 1000 for n in oracle.epoch(sent)]

    second = put_image(home, COUNT.format(version=2), version="2", key=["a"])
    manager.updates.prepare("d", Release("2", second))
    with pytest.raises(Conflict, match="the version of deployment 'd' is being changed"):
        manager.ask_slots("d", 3, 30)
    assert versions(api) == ["1", "1", "1"]
    manager.updates.promote("d", Release("2", second))
    wait_until(lambda: versions(api) == ["2", "2", "2"], 60, "all slots to serve version 2")
    manager.ask_slots("d", 3, 60)
    groups = [s.groups for s in api.status().slots]
    assert all(groups) and len(groups) == 3
    assert [n % 1000 for n in counted(job.epoch(1, sent))] == [n % 1000 for n in oracle.epoch(sent)], "no count is lost"


@pytest.mark.long
def test_without_state_too(manager: Manager, api: NodeClient) -> None:
    home = manager.settings.home
    api.deploy("d", "t", "1", put_image(home, add(1)), "{}", 30_000)
    second = put_image(home, add(2), version="2")
    manager.updates.prepare("d", Release("2", second))
    manager.ask_slots("d", 2, 30)
    manager.updates.promote("d", Release("2", second))
    wait_until(lambda: versions(api) == ["2", "2"], 60, "both slots to serve version 2")
