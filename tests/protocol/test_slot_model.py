"""Random interleavings of producers, readers, promotions and crashes on real servers (slot_machine.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import Servers
from tests.protocol import slot_machine as machines
from tests.support.selection import long

EXAMPLES = int(os.environ.get("UDO_MODEL_EXAMPLES", "400" if os.environ.get("UDO_DEEP") else "100"))


@pytest.fixture(autouse=True)
def model_servers(servers: Servers) -> Iterator[None]:
    machines.SlotMachine.servers = servers
    yield
    for conn in machines.SlotMachine.connections.values():
        conn.close()
    machines.SlotMachine.connections.clear()


def run(machine: type[machines.SlotMachine], examples: int, phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink)) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(600)
def test_every_accepted_frame_is_answered_exactly_once_in_order_whatever_happens() -> None:
    run(machines.SlotMachine, EXAMPLES)


@pytest.mark.parametrize(
    "broken", [long(machines.PipelinedRearm), machines.StandbyReadsAhead, machines.CheckpointAhead, machines.EmitOverwrites]
)
@pytest.mark.timeout(600)
def test_a_build_without_one_of_the_rules_is_caught(broken: type[machines.SlotMachine]) -> None:
    with pytest.raises(AssertionError, match="no prefix|are lost|refused|stuck"):
        run(broken, 2000, (Phase.generate,))
