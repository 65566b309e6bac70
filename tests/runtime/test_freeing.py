"""Memory of key groups that have left a slot: a thread of its own frees much of it, so that the slot goes on answering."""

from __future__ import annotations

import threading

import pytest
from udo_runtime.drivers.keyed_owner import free_groups
from udo_runtime.engine.effects import FreeGroups
from udo_runtime.state.groups import Group

from tests.conftest import wait_until


@pytest.mark.parametrize(("keys", "by"), [(100, "MainThread"), (1_000_000, "free-groups")])
def test_a_thread_of_its_own_frees_groups_with_many_keys(keys: int, by: str) -> None:
    freed: list[str] = []

    class Large(Group):
        @property
        def keys(self) -> int:
            return keys

        def __del__(self) -> None:
            freed.append(threading.current_thread().name)

    free_groups(FreeGroups([Large() for _ in range(5)]))
    wait_until(lambda: len(freed) == 5, 20, "the groups to be freed")
    assert set(freed) == {by}
