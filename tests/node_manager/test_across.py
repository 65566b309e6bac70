"""A deployment with slots on several nodes: any node says where they are, and an epoch counts in all slots or in none."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from udo_runtime.state.codec import unpack

from node_manager.servers import access
from tests.conftest import bound, patience, wait_until
from tests.node_manager.conftest import Daemon, add
from tests.support.canaries import Watched
from tests.support.diffs import Running
from tests.support.keyed_node import exported
from tests.support.keyed_slots import again_and_again
from tests.support.node_commands import told, udo
from tests.support.node_query import COUNT, KEYED, Query
from tests.support.nodes import Nodes, nodes
from tests.support.split_attempt import Job
from udo_cli import state_file
from udo_protocol.errors import Conflict, NodeAway, SlotsAway, StateElsewhere, StateLost, UdoError, UsageError

pytestmark = pytest.mark.long
# Sets a timer one second after each event; when it fires, the answer is the key.
TIMED = """
import datetime as dt
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        ctx.timer(event["t"] + dt.timedelta(seconds=1))
        yield {"b": 0}
    def on_timer(self, key, when, ctx):
        yield {"b": key}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Nodes a and b with the slots of `count` (keyed) and `add`, and c, which has no slots and only calls."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))  # short enough for sockets
    with nodes(top, "a", "b", "c", listening="ab") as made:
        made.deploy("count", COUNT.format(version=1), slots=3, **KEYED)
        made.deploy("add", add(1), slots=2)
        yield made
    shutil.rmtree(top, ignore_errors=True)


def test_a_keyed_query_counts_right_over_the_slots_of_all_nodes_whichever_node_its_tasks_ask(cluster: Nodes) -> None:
    assert cluster.client.deployment("count")["placement"]["nodes"] == ["a", "b", "a"]
    assert {n: cluster.groups(n, "count") for n in "abc"} == {"a": ["0-42", "86-127"], "b": ["43-85"], "c": []}
    query = Query(cluster, "right")
    for node in ("a", "b", "c", "https://b"):
        query.epoch(node)
    wait_until(lambda: all(cluster.events(n, "count") > 100 for n in "ab"), 20, "events on both nodes")

    cluster.push("count", "2", COUNT.format(version=2), **KEYED)
    assert list(cluster.client.update("count", "2"))[-1]["phase"] == "done"
    query.epoch("c", version=2)


def test_the_watermark_is_one_over_all_nodes(cluster: Nodes) -> None:
    cluster.deploy("timed", TIMED, slots=2, **KEYED, event_time={"column": "t"}, input={"a": "int64", "t": "timestamp[us]"})
    job = Job(cluster.address("a"), "timed", times=True, tls=cluster.tls)
    low, high = 5, 100  # a key group of the first slot, and one of the second
    assert job.epoch(0, [[low]], second=0) == [0]
    assert job.epoch(1, [[high]], second=10) == [0], "time has gone on for both, from the next epoch on"
    assert sorted(job.epoch(2, [[high]], second=10)) == [0, low], "the first slot's timer, by the second one's event"
    cluster.client.undeploy("timed", drop_state=True)


def test_a_stateless_lane_is_served_where_it_is_opened_and_else_by_another_node(cluster: Nodes) -> None:
    lanes = [cluster.lane(n, "add") for n in "abcccc"]
    assert [lane.reply.node for lane in lanes[:2]] == ["a", "b"]
    assert Counter(lane.reply.node for lane in lanes[2:]) == {"a": 2, "b": 2}, "in turn"
    assert [lane.ask(5) for lane in lanes] == [6] * len(lanes)


def test_while_a_node_is_away_stateless_lanes_go_elsewhere_and_keyed_state_waits_for_its_return_with_its_disk(cluster: Nodes) -> None:
    query = Query(cluster, "lost")
    query.epoch("a")
    cluster.lose("b")
    assert [cluster.lane("c", "add").ask(1) for _ in range(2)] == [2, 2], "both by a"
    with pytest.raises(SlotsAway, match=r"has its slots 1 of 3 on node b: no node manager answers .*Start its node manager again"):
        Job(cluster.address("a"), "count", "refused", tls=cluster.tls).epoch(0, [[1]])
    waiting = Job(cluster.address("c"), "count", "waited", tls=cluster.tls)
    waiting.wait_s = 0.2
    with pytest.raises(SlotsAway, match=r"on node b: .*Waited 0.2 s for it .*Spark tries the task again"):
        waiting.epoch(0, [[1]])
    cluster.start("b")
    query.epoch("a", wait_s=30)
    query.epoch("b")


def test_a_node_that_comes_back_without_its_disk_is_noticed_even_in_a_querys_first_epoch(cluster: Nodes, tmp_path: Path) -> None:
    """Nothing else would show the loss: to b's new slot the query is new, and the events of another partition are gone."""
    job = Job(cluster.address("a"), "count", "first", tls=cluster.tls)
    even, odd = {"partition": 0, "partitions": 2}, {"partition": 1, "partitions": 2}
    assert [b % 1000 for b in job.epoch(0, [[0, 50, 100]], **even)] == [1, 1, 1], "on a, b and a"
    cluster.lose("b", disk=True)
    cluster.start("b")
    wait_until(lambda: cluster.offers("a", "count"), 60, "b to have its slot again")
    lost = "had a part of its state on node b, which has lost its disk since.*udo state release count first --force"
    for epoch in (0, 1):
        with pytest.raises(StateElsewhere, match=lost):
            job.epoch(epoch, [[1, 51, 101]], **odd)
    Query(cluster, "begun since").epoch("c")
    part = "session first has state on node a and none on node b, which has slots too"
    assert part in udo(cluster, "state", "export", "count", "first", tmp_path / "first.state", code=4)
    assert f"session first: not checked, since its state is not whole: {part}" in told(
        cluster, "push", next_version(tmp_path, 1000), *CHECK
    )

    cluster.client.release("count", "first", force=True)

    def refusal() -> str:
        try:
            job.epoch(0, [[1]])
        except UdoError as e:
            return str(e)
        return ""

    wait_until(lambda: "was released, and node a still has its state from before" in refusal(), 30, "a to hear of the release")
    cluster.daemons["a"].api.drop_state("count", "first", force=True)
    job.restart()
    assert [b % 1000 for b in job.epoch(0, [[0, 1, 50, 51]])] == [1, 1, 1, 1], "nothing is left of it"


def test_a_part_of_a_session_that_is_dropped_takes_the_others_with_it(cluster: Nodes) -> None:
    query = Query(cluster, "dropped")
    query.epoch("a")
    cluster.daemons["b"].api.drop_state("count", "dropped", force=True)
    query.job.restart()

    def refusal() -> str:
        try:
            query.job.epoch(0, [[1]])
        except UdoError as e:
            return str(e)
        return ""

    wait_until(lambda: "node a still has its state from before" in refusal(), 30, "a to hear of it")
    cluster.daemons["a"].api.drop_state("count", "dropped", force=True)
    assert [b % 1000 for b in query.job.epoch(0, [[1, 50]])] == [1, 1]
    assert [b % 1000 for b in query.job.epoch(1, [[1, 50]])] == [2, 2]


def test_one_command_drops_a_session_on_all_nodes(cluster: Nodes) -> None:
    query = Query(cluster, "everywhere")
    query.epoch("a")
    assert "in use" in udo(cluster, "state", "drop", "count", "everywh", "--yes", code=4)
    assert udo(cluster, "state", "drop", "count", "everywh", "--yes", "--force")["keys"] == len(query.keys)
    assert "no session 'everywh'; there are" in udo(cluster, "state", "drop", "count", "everywh", "--yes", code=3)
    query.restart()
    assert [b % 1000 for b in query.job.epoch(0, [[1, 50, 100]])] == [1] * 3
    cluster.lose("b")
    wait_until(lambda: not next(n["live"] for n in cluster.client.nodes() if n["node"] == "b"), 60, "b to be away")
    assert udo(cluster, "state", "drop", "count", "everywhere", "--yes", "--force")["keys"] == 2
    cluster.start("b")
    wait_until(lambda: cluster.offers("a", "count"), 60, "b to have its slot again")
    assert udo(cluster, "state", "drop", "count", "everywhere", "--yes", "--force")["keys"] == 1
    query.restart()
    assert [b % 1000 for b in query.job.epoch(0, [[1, 50, 100]])] == [1] * 3


def test_a_session_is_exported_as_it_is_at_one_moment_while_its_query_goes_on(cluster: Nodes) -> None:
    query, stop, history = Query(cluster, "exported"), threading.Event(), list[Counter[int]]()

    def run() -> None:
        while not stop.is_set():
            query.epoch("a")
            history.append(query.counts.copy())

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            wait_until(lambda: len(history) > 2, 30, "epochs")
            found = []
            for node in "abc" * 3:
                parts = cluster.daemons[node].api.export_state("count", "exported")
                header = next(parts).header
                found.append((header, list(state_file.ended_groups(parts, header.state_version))))
        finally:
            stop.set()
        running.result(bound(60))
    assert len({header.last_ended for header, _ in found}) > 1, "the query went on meanwhile"
    for header, groups in found:
        assert [g.group for g in sorted(groups, key=lambda g: g.group)] == list(range(128))
        for g in groups:
            counted = {unpack(key): unpack(value)["n"] for key, value in g.values.items()}
            last = header.last_ended
            assert counted in [{a: n for a, n in history[e].items() if a % 128 == g.group} for e in (last, last - 1)], (last, g)
    shown = udo(cluster, "state", "show", "count", "exp", "--key", "7")
    assert shown["keys"] == len(query.keys) and shown["entries"] == [{"key": 7, "state": {"n": query.counts[7]}, "group": 7}]


# Reads state of the next version, and of the present one only if it migrates.
CHECK = ("--check", "count", "--dry-run", "--base", "none")
NEXT = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        yield {"b": 0}
    def migrate(self, old, from_version):
        if old["n"] > LIMIT: raise ValueError(f"{old['n']} is too many")
        return old
"""
MANIFEST = """
name = "count"
version = "9"
entry = "op:run"
key = "a"
state_version = 1
migrates_from = [0]
[input]
a = "int64"
[output]
b = "int64"
"""


def next_version(code: Path, limit: int) -> Path:
    """Write an operator of the next state version, whose migrate() fails on a count above `limit`."""
    code.mkdir(exist_ok=True)
    (code / "operator.toml").write_text(MANIFEST)
    (code / "op.py").write_text(NEXT.replace("LIMIT", str(limit)))
    return code


def test_the_commands_that_read_and_write_a_whole_session_do_so_on_all_nodes(cluster: Nodes, tmp_path: Path) -> None:
    query, file, code = Query(cluster, "commanded"), tmp_path / "commanded.state", tmp_path / "next"
    query.epoch("b")
    query.epoch("b")
    assert udo(cluster, "state", "export", "count", "commanded", file)["keys"] == len(query.keys)
    assert udo(cluster, "state", "import", file, "count", "copy")["keys"] == len(query.keys)
    keys = sorted(query.counts)
    again = Job(cluster.address("c"), "count", "copy", tls=cluster.tls)
    assert again.epoch(2, [keys]) == [query.version * 1000 + query.counts[k] + 1 for k in keys]

    assert f"session commanded: {len(query.keys)} keys migrate" in told(cluster, "push", next_version(code, 1000), *CHECK)
    refused = udo(cluster, "push", next_version(code, 1), *CHECK, code=6)
    assert "is too many" in refused, "some key of some node has been seen more than once"

    parts = cluster.daemons["c"].api.export_state("count", "commanded")
    next(parts)
    parts.close()  # type: ignore[attr-defined]
    wait_until(lambda: not any(pinned(cluster.daemons[node]) for node in "ab"), 30, "an export that was broken off to hold nothing")


def pinned(daemon: Daemon) -> int:
    """Return the number of savepoints in the slots of a node."""
    with contextlib.closing(access.connect(daemon.home, "state")) as state:
        return sum(state.call("HLEN", key) for key in state.call("KEYS", "udo:count:*:savepoints"))


def test_a_session_is_imported_into_the_slots_of_all_nodes_and_served_by_none_before_it_is_whole(cluster: Nodes, tmp_path: Path) -> None:
    query, file = Query(cluster, "copied"), tmp_path / "copied.state"
    query.epoch("a")
    query.epoch("b")
    summary = exported(cluster.daemons["a"].api, file, "count", "copied")
    keys = sorted(query.counts)
    next_ones = [query.version * 1000 + query.counts[k] + 1 for k in keys]

    def imports(node: str, session: str, start_epoch: int | None = None) -> None:
        cluster.daemons[node].api.import_state(state_file.parts(file, summary, "count", session, start_epoch, False))

    def epoch(node: str, session: str, number: int) -> list[int]:
        return Job(cluster.address(node), "count", session, tls=cluster.tls).epoch(number, [keys])

    imports("c", "whole")
    (listed,) = [s for s in udo(cluster, "state", "ls", "count") if s["session"] == "whole"]
    assert listed["keys"] == len(keys), listed
    assert epoch("b", "whole", 2) == next_ones
    with pytest.raises(Conflict, match="in use"):
        imports("a", "whole")

    cluster.lose("b")
    for session in ("repeated", "left"):
        with pytest.raises(NodeAway, match="the session's slots 1 of 3 are on node b"):
            imports("a", session, 0)
    cluster.start("b")
    wait_until(lambda: cluster.offers("a", "count"), 60, "b to have its slot again")
    for node in "ab":
        with pytest.raises(StateLost, match="repeat udo state import, or remove"):
            epoch(node, "left", 0)
    imports("a", "repeated", 0)
    assert epoch("c", "repeated", 0) == next_ones
    assert udo(cluster, "state", "drop", "count", "left", "--yes", "--force")["keys"] == 0
    assert [b % 1000 for b in epoch("c", "left", 0)] == [1] * len(keys)


def test_what_a_node_was_told_of_the_others_outlives_it_without_the_registry(cluster: Nodes) -> None:
    query = Query(cluster, "told")
    query.epoch("a")
    cluster.registry.stop()
    cluster.daemons["a"].kill()
    cluster.start("a")
    wait_until(lambda: len(cluster.groups("a", "count")) == 2, 30, "the slots to be back")
    query.epoch("a", wait_s=30)
    cluster.start_registry()


def mirrors(daemon: Daemon, deployment: str) -> list[int]:
    """Return the number of instances that compare their answers in each of the deployment's slots on a node."""
    slots = [s.slot for s in daemon.api.status().slots if s.deployment == deployment]
    with contextlib.closing(access.connect(daemon.home, "queue")) as queue:
        return [len((queue.call("GET", f"udo:{deployment}:{slot}:mirrors") or b"").split()) // 3 for slot in slots]


def test_a_canary_and_a_diff_of_a_keyed_deployment_are_tried_in_the_slots_of_all_nodes(cluster: Nodes) -> None:
    cluster.deploy("tried", COUNT.format(version=1), slots=3, **KEYED)
    job, everywhere = Job(cluster.address("c"), "tried", tls=cluster.tls), [10, 50, 100]
    assert job.epoch(0, [everywhere]) == [1001] * 3
    cluster.push("tried", "2", COUNT.format(version=1) + "# 2\n", **KEYED)
    canary = Watched(cluster, 8 * patience(), "errors>0", "different>0", percent=100, min_events=3, name="tried").sharing()
    job.epoch(1, [everywhere])
    assert {node: found.get("events", 0) for node, found in canary.counted(events=3).items()} == {"a": 2, "b": 1, "c": 0}
    assert canary.end()["phase"] == "done", "though nothing is heard of c, which has no slots"
    assert job.epoch(2, [everywhere]) == [1003] * 3

    cluster.push("tried", "3", COUNT.format(version=2), **KEYED)
    digest = cluster.client.version("tried", "3")["digest"]
    diffs = [Running(cluster.daemons[node], digest, name="tried", for_s=15).begun() for node in "ac"]
    wait_until(lambda: {node: mirrors(cluster.daemons[node], "tried") for node in "ab"} == {"a": [2, 2], "b": [2]}, 30, "all to have begun")
    job.epoch(3, [everywhere])
    for diff in diffs:
        ended = diff.end()
        assert (ended["different"], ended["outcome"], len(diff.examples)) == (3, "different", 3), ended
    events = cluster.daemons["b"].api.diff("tried", "", digest, for_s=600)
    next(events)
    events.close()  # type: ignore[attr-defined]
    wait_until(lambda: [mirrors(cluster.daemons[node], "tried") for node in "ab"] == [[0, 0], [0]], 30, "the diff to end everywhere")
    cluster.client.undeploy("tried", drop_state=True)


def test_a_version_that_cannot_read_the_newer_ones_state_comes_back_on_all_nodes(cluster: Nodes) -> None:
    """Also after a node manager was killed; but on no node if a queue server was, which held the input since the update."""
    cluster.deploy("back", COUNT.format(version=1), slots=3, **KEYED)
    job, keys = Job(cluster.address("c"), "back", tls=cluster.tls), list(range(0, 120, 2))
    assert job.epoch(0, [keys]) == [1001] * 60
    migrating = COUNT.replace('"n"', '"m"') + "    def migrate(self, old, from_version): return {{'m': old['n']}}\n"
    cluster.push("back", "2", migrating.format(version=2), state_version=1, migrates_from=[0], **KEYED)
    assert list(cluster.client.update("back", "2"))[-1]["phase"] == "done"
    assert job.epoch(1, [keys]) == [2002] * 60
    job.dies(2, [keys], (0,))
    cluster.daemons["b"].kill()
    cluster.start("b")
    last = list(cluster.client.rollback("back"))[-1]
    assert last["phase"] == "done", last
    assert again_and_again(lambda: job.epoch(2, [keys])) == [1003] * 60

    assert list(cluster.client.update("back", "2"))[-1]["phase"] == "done"
    assert job.epoch(3, [keys]) == [2004] * 60
    (lost,) = [s for s in cluster.daemons["b"].api.status().servers if s.role == "queue"]
    os.kill(lost.pid, signal.SIGKILL)
    wait_until(
        lambda: any(s.role == "queue" and s.pid not in (0, lost.pid) for s in cluster.daemons["b"].api.status().servers), 30, "another one"
    )
    wait_until(lambda: all(s.pid for s in cluster.daemons["b"].api.status().slots if s.deployment == "back"), 30, "another owner")
    refused = list(cluster.client.rollback("back"))[-1]
    assert refused["phase"] == "failed" and "the queue server was lost since the update" in refused["detail"], refused
    assert again_and_again(lambda: job.epoch(4, [keys])) == [2005] * 60
    cluster.client.undeploy("back", drop_state=True)


def test_a_stateless_canary_gets_its_share_of_the_lanes_of_every_node_with_slots(cluster: Nodes) -> None:
    cluster.deploy("share", add(1), slots=2)
    cluster.push("share", "2", add(2))
    canary = Watched(cluster, 3600, "errors>0", name="share").sharing()
    lanes = {node: [cluster.lane(node, "share") for _ in range(4)] for node in "abc"}
    assert {node: sorted(lane.ask(5) for lane in opened) for node, opened in lanes.items()} == dict.fromkeys("abc", [6, 6, 7, 7])
    found = canary.counted(events=6)
    assert {node: told.get("events", 0) for node, told in found.items()} == {"a": 3, "b": 3, "c": 0}, "those of c in turn"
    list(cluster.client.rollback("share"))
    assert canary.end()["phase"] == "rolled_back"
    wait_until(lambda: [cluster.lane(node, "share").ask(5) for node in "aabb"] == [6] * 4, 30, "new lanes to be answered by 1 only")

    canary = Watched(cluster, 8 * patience(), "errors>0", name="share").sharing()
    assert sorted(cluster.lane("b", "share").ask(5) for _ in range(2)) == [6, 7]
    assert canary.end()["phase"] == "done"
    before = [lane for opened in lanes.values() for lane in opened]
    wait_until(lambda: {lane.ask(5) for lane in before} == {7}, 30, "those opened before to be answered by 2, too")


def test_what_slots_over_nodes_do_not_do_yet_is_refused_with_what_to_do(cluster: Nodes) -> None:
    with pytest.raises(Conflict, match="the key groups 43-127 are in slots that are to go: move them first"):
        cluster.client.scale("count", 1)
    for name in ("count", "add"):
        with pytest.raises(UsageError, match="expected mode off or advise, since its slots are spread over nodes"):
            cluster.client.scale(name, elasticity={"mode": "auto"})
