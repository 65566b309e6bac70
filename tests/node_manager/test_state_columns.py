"""State in columns on a node: updates from rows and back, a killed instance, a rollback, an export with values."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from udo_runtime.state.columns import COLUMNS

from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, put_image
from tests.support.attempt import Attempt
from tests.support.keyed_node import COUNT, KEYED
from udo_cli.state_file import ended_groups
from udo_cli.text.state_text import entries
from udo_protocol.proto import node_manager_pb2 as pb

COLUMNAR = """
import pyarrow as pa
import pyarrow.compute as pc
from udo_runtime import Operator
class Count(Operator):
    def process_keys(self, keys, events, states, ctx):
        order = pc.sort_indices(keys.index)
        by_key = keys.index.take(order)
        counts, before = by_key.value_counts().field("counts"), states.column("n", pa.int64(), 0)
        first = pc.subtract(pc.add(before, counts), pc.cumulative_sum(counts))
        states.put("n", pc.add(before, counts))
        return {"b": pc.add(first.take(by_key), pa.array(range(1, len(order) + 1))).take(pc.sort_indices(order))}
"""
TYPED: dict[str, Any] = {**KEYED, "state": {"n": "int64"}}


def updated(daemon: Daemon, version: str, source: str, **manifest: Any) -> None:
    last = list(daemon.api.update("d", version, put_image(daemon.home, source, version=version, **manifest)))[-1]
    assert last.phase == "done", last


def stored(daemon: Daemon) -> tuple[dict[int, int], set[bool]]:
    """Return key -> count, and the set of answers to whether a piece is in columns."""
    parts = [part for part in daemon.api.export_state("d", "s") if part.HasField("piece")]
    kinds = {p.piece.data[0] == COLUMNS for p in parts if p.piece.kind != pb.StatePiece.META}
    return {e["key"]: e["state"]["n"] for e in entries(ended_groups(iter(parts), 0))}, kinds


@pytest.mark.long
def test_versions_in_rows_and_in_columns_go_on_from_each_others_state(daemon: Daemon) -> None:
    daemon.deploy(COUNT, **TYPED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 2, 1]) == [1, 1, 2]
    assert stored(daemon) == ({1: 2, 2: 1}, {False})
    updated(daemon, "2", COLUMNAR, **TYPED)
    assert Attempt.at_node(daemon.api, "d", "s", 1, 1).run([1, 3, 1]) == [3, 1, 4]
    values, columns = stored(daemon)
    assert values == {1: 4, 2: 1, 3: 1} and True in columns
    slot = next(s for s in daemon.api.status().slots if s.deployment == "d")
    os.kill(slot.pid, signal.SIGKILL)
    wait_until(lambda: any(s.deployment == "d" and s.pid not in (0, slot.pid) for s in daemon.api.status().slots), 30, "another instance")
    assert Attempt.at_node(daemon.api, "d", "s", 1, 2).run([1, 3]) == [3, 1], "an attempt that is repeated undoes what the killed one did"
    assert Attempt.at_node(daemon.api, "d", "s", 2, 1).run([3, 1, 2]) == [2, 4, 2]
    updated(daemon, "3", COUNT, **TYPED)
    assert Attempt.at_node(daemon.api, "d", "s", 3, 1).run([1, 2, 3]) == [5, 3, 3]
    updated(daemon, "4", COLUMNAR, **TYPED, isolation="process")
    assert Attempt.at_node(daemon.api, "d", "s", 4, 1).run([1, 2, 3]) == [6, 4, 4]
    assert stored(daemon)[0] == {1: 6, 2: 4, 3: 4}


@pytest.mark.long
def test_columns_are_migrated_and_a_rollback_returns_to_them_as_they_were(daemon: Daemon) -> None:
    daemon.deploy(COLUMNAR, **TYPED)
    assert Attempt.at_node(daemon.api, "d", "s", 0, 1).run([1, 2, 1]) == [1, 1, 2]
    migrating = (COUNT + "    def migrate(self, old, from_version):\n        return {'m': old['n'] * 10}\n").replace('"n"', '"m"')
    updated(daemon, "2", migrating, **{**KEYED, "state_version": 1, "migrates_from": [0]})
    assert Attempt.at_node(daemon.api, "d", "s", 1, 1).run([1, 2]) == [21, 11], "columns were migrated"
    last = list(daemon.api.update("d", "1", put_image(daemon.home, COLUMNAR, **TYPED)))[-1]
    assert last.phase == "done", last
    assert Attempt.at_node(daemon.api, "d", "s", 2, 1).run([1, 2]) == [4, 3], "and the input since is processed again"
