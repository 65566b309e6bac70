"""The load of key groups: instances count and publish it, the node sums it up."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from udo_runtime.counters import Counters
from udo_runtime.stats import Stats

from node_manager.control.group_loads import GroupLoads
from node_manager.control.own_policies import read
from tests.conftest import Servers
from udo_protocol.errors import NotFound, SlotBroken, UsageError
from udo_protocol.limits import MOST_KEY_GROUPS
from udo_protocol.queue import slot
from udo_protocol.queue.keys import SlotKeys

KEYS = SlotKeys("d", 0)


def packed(*events: int) -> bytes:
    return struct.pack(f"<{len(events)}Q", *events)


def test_an_instance_counts_each_group_and_nothing_that_is_none() -> None:
    counters = Counters()
    assert counters.groups() == b""
    counters.in_groups(pa.array([3, 1, 3, 3], pa.int32()))
    counters.in_groups(pa.array([0, None, -1, MOST_KEY_GROUPS], pa.int32()))
    counters.in_groups(pa.array(["3", "x"]))
    assert counters.groups() == packed(1, 1, 0, 3)


def test_loads_add_up_over_slots_and_begin_anew_with_each_owner() -> None:
    loads = GroupLoads(10.0)
    for at_s in range(30):
        loads.look("d", 0, at_s, "a" if at_s < 25 else "b", packed(0, 5 * at_s))
        loads.look("d", 1, at_s, "c", packed(*([at_s] if at_s < 28 else [at_s, 7, 1])))  # it has got groups 1 and 2 since
        loads.look("other", 0, at_s, "x", packed(100 * at_s))
    assert loads.events("d", 4) == [10, 5 * (5 + 4) + 7, 1, 0]
    assert loads.events("d", 1) == [10]
    loads.forget({("d", 1)})
    assert loads.events("d", 3) == [10, 7, 1] and loads.events("other", 1) == [0]


def test_what_is_published_is_read_and_what_an_operator_wrote_there_is_refused(servers: Servers) -> None:
    queue, counters = servers.queue(), Counters()
    assert slot.read_group_events(queue, KEYS, "i") == b""
    counters.in_groups(pa.array([2], pa.int32()))
    counters.record(1, 1, 0.1)
    Stats(f"{KEYS}stats:i", counters).publish(queue, force=True)
    assert slot.read_group_events(queue, KEYS, "i") == packed(0, 0, 1)
    assert slot.read_stats(queue, KEYS, "i")["events_in"] == 1
    for wrong in (b"x", b"8" * 8 * (MOST_KEY_GROUPS + 1)):
        queue.call("HSET", f"{KEYS}stats:i", "groups", wrong)
        with pytest.raises(SlotBroken, match="expected 8 bytes for each key group"):
            slot.read_group_events(queue, KEYS, "i")


def test_a_file_of_policies_is_read_at_the_start_with_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["/nowhere"])
    (tmp_path / "mine_to_read.py").write_text("def mine(view, limits): ...\n")
    file = tmp_path / "policies.toml"
    file.write_text('[balance]\nmine = "mine_to_read:mine"\n')
    assert read(None) == {} and read(file) == {"balance": {"mine": "mine_to_read:mine"}}
    file.write_text('[balance]\nmine = "mine_to_read:yours"\n')
    with pytest.raises(UsageError, match="cannot be imported"):
        read(file)
    file.write_text('[balance]\nmine = "mine"\n')
    with pytest.raises((UsageError, NotFound), match="module:function"):
        read(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "none.toml")
