"""Mode auto for deployments that keep state, on a real node: key groups move, slots come and go, and every event counts once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticity.scaling import journal
from elasticity.scaling.journal_rows import rows_of
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon
from tests.support import cluster
from tests.support.cluster import Cluster
from tests.support.keyed_slots import COUNT, Oracle, counted
from tests.support.split_attempt import Job
from udo_cli.commands.events import replayed
from udo_protocol import ranges

SLOW = (
    COUNT.format(version=1).replace("class run", "import time\nclass run").replace("        n =", "        time.sleep(0.002)\n        n =")
)
# The defaults, except for shorter times.
QUICK = {"balance_s": 1.0, "balance_use": 0.1, "token_s": 1.0, "reverse_s": 4.0}
# Key groups that an even map of two slots has all in the first slot, and all in the second.
FIRST, SECOND = range(16), range(96, 112)
MINE = """
from elasticity.balance.view import decided, goal
def even_to_the_last(view, limits):
    keys_map = view.keys_map.copy()
    loaded = view.keys_load > 0
    loaded[1::2] = False
    keys_map[loaded] = view.engines - 1
    return decided(view, keys_map, goal(view, limits))
"""


class Query:
    """A query whose every answer is checked; an epoch takes about a second of one slot's time."""

    def __init__(self, node: Daemon) -> None:
        self._job, self._oracle, self._epoch = Job(str(node.home / "node.sock")), Oracle(), -1

    def epoch(self, keys: range, batches: int = 20) -> None:
        """Run an epoch with 20 events in each batch, over these keys in turn."""
        self._epoch += 1
        sent = [[keys[(20 * i + k) % len(keys)] for k in range(20)] for i in range(batches)]
        assert counted(self._job.epoch(self._epoch, sent)) == [n % 1000 for n in self._oracle.epoch(sent)], f"epoch {self._epoch}"

    @property
    def keys(self) -> int:
        return len(self._oracle.counts)


@pytest.fixture
def quick(home: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose node decides every second."""
    with cluster.running(home, tmp_path / "registry", "--decide-s", "1", "--pinned-idle-s", "1") as c:
        yield c


def deploy(c: Cluster, slots: int, **elasticity: Any) -> Query:
    c.push("1", SLOW, key=["a"])
    c.client.deploy("d", "t", "1", slots=slots, elasticity={"mode": "auto", **elasticity})
    wait_until(lambda: c.state()[0] == "answering", 60, "the deployment to answer")
    return Query(c.node)


def share(c: Cluster, keys: range) -> list[int]:
    """Return the number of these key groups in each slot."""
    there = [set(ranges.parsed(s.groups, 128)) for s in c.node.api.status().slots if s.map_version]
    return [len(groups & set(keys)) for groups in there]


def steps(c: Cluster, *kinds: str) -> list[dict[str, Any]]:
    return [row for row in rows_of(c.node.api.decisions("d"), False) if row["kind"] in kinds and row["result"] != "declined"]


def decided(c: Cluster) -> int:
    return sum(len(journal.read(part.lines)[1]) for part in c.node.api.decisions("d"))


@pytest.mark.long
def test_loaded_key_groups_move_to_where_there_is_room_and_a_skew_that_swings_is_not_followed(quick: Cluster) -> None:
    c = quick
    query = deploy(c, 2, least=2, most=2, policy="ds2", settings={**QUICK, "reverse_s": 300.0})
    assert share(c, FIRST) == [16, 0]
    wait_until(lambda: query.epoch(FIRST) or sum(x in range(5, 12) for x in share(c, FIRST)) == 2, 90, "the load to be shared")
    wait_until(lambda: all(row["result"] == "done" for row in steps(c, "balance")), 20, "the last step to be written down")
    moved = [group for row in steps(c, "balance") for group in row["groups"]]
    assert moved and set(moved) <= set(FIRST)

    before, seen = len(steps(c, "balance")), decided(c)
    wait_until(lambda: [query.epoch(keys, 10) for keys in (FIRST, SECOND)] and decided(c) > seen + 10, 120, "ten more decisions")
    groups = [group for row in steps(c, "balance") for group in row["groups"]]
    assert len(groups) == len(set(groups)), "no group moved twice"
    assert len(steps(c, "balance")) <= before + 4, "of ten; on a busy machine a window of one second has an uneven part of the load"
    assert not steps(c, "scale_out", "scale_in") and replayed(c.node.api.decisions("d"))["same"]
    (listed,) = c.node.api.sessions("d").sessions
    assert listed.keys == query.keys, "no key is in two slots"


@pytest.mark.long
def test_a_load_scales_a_keyed_deployment_out_and_its_end_scales_it_in(quick: Cluster) -> None:
    c = quick
    query = deploy(c, 1, least=1, most=3, policy="accept_all", settings={**QUICK, "capacity": 1})
    slots = lambda: len(share(c, FIRST))  # noqa: E731
    wait_until(lambda: query.epoch(range(128)) or slots() > 1, 90, "a second slot")
    query.epoch(range(128))
    wait_until(lambda: slots() == 1, 90, "one slot again")
    query.epoch(range(128))
    wait_until(lambda: all(row["result"] != "begun" for row in steps(c, "scale_out", "scale_in", "balance")), 20, "all to be written down")
    assert {row["result"] for row in steps(c, "scale_out", "scale_in")} == {"done"}
    assert {row["mode"] for row in steps(c, "scale_out")} == {"auto"}
    found = replayed(c.node.api.decisions("d"))
    assert found["same"] and found["segments"] == 1
    (listed,) = c.node.api.sessions("d").sessions
    assert listed.keys == query.keys


@pytest.mark.long
def test_a_node_balances_by_a_policy_from_a_file_of_its_own(home_daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_a_node.py").write_text(MINE)
    (tmp_path / "policies.toml").write_text('[balance]\nmine = "mine_of_a_node:even_to_the_last"\n')
    daemon = home_daemon.start("--decide-s", "1", "--policies", str(tmp_path / "policies.toml"))
    wish = {"mode": "auto", "least": 2, "most": 2, "policy": "ds2", "settings": {**QUICK, "balance": "mine"}}
    daemon.deploy(SLOW, config_json=json.dumps({"elasticity": wish}), key=["a"])
    daemon.deploy(SLOW, name="e", config_json=json.dumps({"elasticity": {**wish, "settings": {"balance": "theirs"}}}), key=["a"])
    query = Query(daemon)

    def where() -> list[list[int]]:
        there = [set(ranges.parsed(s.groups, 128)) for s in daemon.api.status().slots if s.deployment == "d" and s.map_version]
        return [sorted(groups & set(FIRST)) for groups in there]

    wait_until(lambda: query.epoch(FIRST) or where() == [[*FIRST[1::2]], [*FIRST[::2]]], 90, "what the policy says")
    header, _ = journal.read(next(iter(daemon.api.decisions("d"))).lines)
    assert header.settings["balance"] == "mine_of_a_node:even_to_the_last"
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert replayed(daemon.api.decisions("d"))["same"]
    other, _ = journal.read(next(iter(daemon.api.decisions("e"))).lines)
    assert other.about["mode"] == "advise" and "has no balancing policy 'theirs'; it has DLB-H" in other.about["not_auto"]
