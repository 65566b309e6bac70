"""Limits of an operator that is a command: a frame that exceeds one fails with the limit's name; other frames and deployments go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node_manager.conftest import Daemon, Lane, add
from tests.operators.conftest import put_program
from tests.support.selection import long

# The events of runtimes/go/internal/testop.
FILLS, FORKS = 103, 104


@pytest.mark.parametrize(
    ("event", "limits", "says"),
    [
        (FILLS, {"memory_mb": 320}, "killed: memory limit of 320 MiB exceeded"),
        long(FORKS, {"pids": 40}, "killed: limit of 40 processes exceeded"),
    ],
)
def test_a_command_that_exceeds_its_limits_fails_its_frame_by_name_and_all_else_goes_on(
    daemon: Daemon, lane: Callable[..., Lane], programs: Path, event: int, limits: dict[str, int], says: str
) -> None:
    daemon.deploy(add(1), name="neighbour")
    daemon.api.deploy("d", "t", "1", put_program(daemon, programs / "testop", "plus", limits=limits), "{}", 30_000)
    neighbour, caller = lane("neighbour"), lane()
    assert (neighbour.ask(1), caller.ask(1)) == (2, 2)
    serving = daemon.slot("neighbour").instance

    caller.send([event])
    caller.send([7])

    failure = caller.receive(60).header.failure
    assert failure is not None and says in failure.message
    assert caller.values(caller.receive(60)) == [8]
    assert neighbour.ask(2) == 3
    assert (daemon.slot("neighbour").instance, daemon.slot("neighbour").restarts) == (serving, 0)
    assert not [p for p in daemon.processes() if "sleep" in p.name()]
