"""What a promotion of a version that comes back by what was kept waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_manager import going_back
from node_manager.drivers.base import Exit
from node_manager.instances import Instance
from tests.conftest import Servers
from udo_protocol import rewinding
from udo_protocol.errors import Conflict

PREFIX = "udo:d:0:"


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    (tmp_path / "log").write_text("out of memory\n")
    return Instance("i1", tmp_path, "warm", {"version": "d@1", "follow": "kept"})


def test_a_version_that_dies_before_the_state_is_its_own_does_not_come_back_and_says_why(servers: Servers, instance: Instance) -> None:
    state, queue = servers.state(), servers.queue()
    rewinding.keep(state, queue, PREFIX, {"digest": "former"}, 60_000)
    instance.died(Exit(code=137))
    with pytest.raises(Conflict, match="d@1 cannot come back: .* ended: .*137(.|\n)*out of memory"):
        going_back.await_rewound(state, PREFIX, instance)
    rewinding.forget(state, queue, PREFIX)
    going_back.await_rewound(state, PREFIX, instance)  # it died later, with the state its own: who replaces it loads that
