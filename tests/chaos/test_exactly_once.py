"""A few seeds of the chaos suite, and a broken build that it must catch. Many more: python -m benchmarks exactly_once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from benchmarks.chaos import lanes
from node_manager.servers import find_server
from tests.conftest import require
from udo_protocol.errors import Unavailable


@pytest.fixture(autouse=True)
def server() -> Iterator[None]:
    try:
        find_server(os.environ.get("UDO_SERVER"))
    except Unavailable as e:
        require("queue server", str(e))
    yield


def test_queries_under_fire_come_out_as_one_plain_process_says() -> None:
    outcome = lanes.run(range(12), deadline_s=30)
    assert not outcome.reports, "\n\n".join(outcome.reports.values())
    assert outcome.seeds >= 3
    assert outcome.faults


def test_a_build_that_does_not_take_attempts_back_is_caught() -> None:
    outcome = lanes.run(range(40), broken="undo", until_mismatch=True, deadline_s=60)
    assert outcome.reports
    assert "expected" in next(iter(outcome.reports.values()))
