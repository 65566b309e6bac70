"""Canaries of keyed operators with a real registry and a real node: the new version tries a share and serves nobody."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from node_manager.config import Release
from node_manager.manager import Manager
from node_manager.reconcile.reconcile import Reconciler
from node_manager.servers import access
from node_manager.trials import keyed_canaries
from node_manager.trials.mirrors import MirrorFindings
from tests.conftest import bound, patience, wait_until
from tests.node_manager.conftest import Daemon, put_image
from tests.registry.conftest import start
from tests.support.attempt import GROUPS, Attempt
from tests.support.canaries import Watched
from tests.support.cluster import Cluster
from tests.support.diffs import Running, traces
from tests.support.keyed_node import COUNT, KEYED
from tests.support.migrated import MIGRATED
from udo_protocol.diff_report import DiffReport
from udo_protocol.errors import Conflict, ServerLost
from udo_protocol.formats.schema import schema_id, to_ipc
from udo_protocol.node.api import NodeClient
from udo_protocol.queue.frame import ANSWER, Header, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot_reader import SlotReader
from udo_protocol.registry.api import Registry
from udo_protocol.registry.wanted import WantedDeployment
from udo_protocol.state import changelog

pytestmark = pytest.mark.long

# The operator counts each key. Version 2 does the same, but fails on key 13, sleeps on key 14, dies on key 15, hangs on key 16, and counts
# key 3 twice.
ODD = """
import os, time
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        a = event["a"]
        if a == 13: raise ValueError("unlucky")
        if a == 14: time.sleep(0.05)
        if a == 15: os._exit(9)
        if a == 16: time.sleep(3600)
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1 + (a == 3)
        yield {"b": n}
"""
# tests/support/attempt.py sends key k in group k % 4; the tested half of the groups is spread: 0, 2, 4 ...
HALF = 50


class Keyed:
    """Version 1 of the counter is deployed as `d`; a query with one session sends epoch after epoch."""

    def __init__(self, c: Cluster, **options: Any) -> None:
        self.c, self.epoch = c, 0
        c.push("1", COUNT, **KEYED)
        c.client.deploy("d", "t", "1", **options)
        wait_until(lambda: c.state() == ("answering", "1"), 30, "version 1 to answer")
        wait_until(lambda: [n["live"] for n in c.client.nodes()] == [True], 20, "the node to be live")

    def run(self, *keys: int) -> list[int]:
        """Send one epoch of these keys; return the answers."""
        self.epoch += 1
        return Attempt.at_node(self.c.node.api, "d", "q", self.epoch - 1, self.epoch).run(keys)

    def canary(self, *rollback_if: str, percent: float = 100, for_s: float = 3600, min_events: int = 1) -> Watched:
        """Begin a canary of version 2; return it once it tries frames."""
        return Watched(self.c, for_s, *rollback_if, percent=percent, min_events=min_events).sharing()

    def measured(self) -> dict[str, Any]:
        """Return the counts of the running canary, as reported to the registry; {} if there is none."""
        update = self.c.client.deployment("d")["update"]
        nodes = self.c.client.update_status(update["id"])["nodes"] if update else []
        return (nodes[0]["measured"] or {}) if nodes else {}

    def counted(self, **least: float) -> dict[str, Any]:
        """Wait until the running canary has counted at least this much; return its counts."""
        wait_until(lambda: all(self.measured().get(n, 0) >= v for n, v in least.items()), 30, f"the canary to count {least}")
        return self.measured()

    def instance(self) -> int:
        """Return the process id of the instance under test; 0 while there is none."""
        for record in self.c.node.records():
            if record.get("comparing") and record["state"] == "standby":
                return int(record["handle"]["data"]["pid"])
        return 0

    def traces(self) -> set[str]:
        """Return the traces of a canary: instances, and keys on the servers."""
        found = {"instance"} if any(record.get("comparing") for record in self.c.node.records()) else set()
        for role in ("queue", "state"):
            with contextlib.closing(access.connect(self.c.node.home, role)) as conn:  # type: ignore[arg-type]
                found |= traces(conn)
        return found

    def end(self, canary: Watched) -> dict[str, Any]:
        """End the canary by a rollback; return its last event."""
        list(self.c.client.rollback("d"))
        return canary.end()


@pytest.fixture
def keyed(cluster: Cluster) -> Iterator[Keyed]:
    """The deployment; at the end no canary may have left a trace on either server, or an instance."""
    k = Keyed(cluster)
    yield k
    assert k.run(1, 2)
    wait_until(lambda: not k.traces(), 20, f"all of the canary to go: {k.traces()}")
    assert [s.slot for s in cluster.node.api.status().slots] == [0]


def test_a_canary_that_holds_serves_nobody_and_is_promoted_with_the_state_carried_over(keyed: Keyed) -> None:
    keyed.c.push("2", COUNT + "# 2\n", **KEYED)
    assert keyed.run(1, 2, 3) == [1, 1, 1]
    canary = keyed.canary("errors>0", "different>0", "p99_ms>5000", for_s=4 * patience(), min_events=6)
    [slot] = keyed.c.node.api.status().slots
    assert (slot.version, slot.pinned, slot.diff) == ("1", "", "") and "128 of 128 key groups tested by 2" in slot.canary

    assert keyed.run(1, 2, 3) == [2, 2, 2]
    assert keyed.run(1, 1, 4) == [3, 4, 1]
    counted = keyed.counted(events=6, compared=4)

    assert (counted["events"], counted["frames"], counted["errors"]) == (6, 2, 0)
    assert (counted["compared"], counted["different"]) == (4, 0)  # two frames, two ENDs
    last = canary.end()
    assert last["phase"] == "done", canary.events
    assert keyed.run(1, 2) == [5, 3]
    assert keyed.c.state() == ("answering", "2")


@pytest.mark.parametrize(
    ("key", "condition", "why"),
    [
        (13, "errors>0", "unlucky"),
        (14, "p99_ms>40", "p99_ms>40 holds"),
        (15, "errors>0", "exit status 9"),
        (3, "different>0", "different>0 holds"),
        (None, "errors>0", "saw 0 events"),
    ],
)
def test_a_canary_is_rolled_back_with_the_reason_and_no_answer_is_touched(keyed: Keyed, key: int | None, condition: str, why: str) -> None:
    keyed.c.push("2", ODD, **KEYED)
    keyed.run(1)
    canary = keyed.canary(condition, for_s=3600 if key else 0.5)
    if key:
        assert keyed.run(1, key, key) == [2, 1, 2]
    last = canary.end()
    assert last["phase"] == "rolled_back" and why in last["detail"] and "1 continues to serve" in last["detail"], last
    assert keyed.run(1, 2) == [3 if key else 2, 1]
    assert keyed.c.client.deployment("d")["version"] == "1"


def test_a_share_of_the_key_groups_is_tried_and_no_event_of_others(keyed: Keyed) -> None:
    keyed.c.push("2", ODD, **KEYED)
    canary = keyed.canary("errors>0", "different>0", percent=HALF)
    assert "64 of 128 key groups" in keyed.c.node.api.status().slots[0].canary

    assert keyed.run(13, 15, 3, 1, 5, 7) == [1] * 6  # all in groups 1 and 3: version 2 would fail, but does not get them
    assert keyed.run(2, 4, 8, 12, 1, 3) == [1, 1, 1, 1, 2, 2]
    counted = keyed.counted(events=4)

    assert (counted["events"], counted["compared"], counted["errors"]) == (4, 1, 0)
    assert keyed.end(canary)["phase"] == "rolled_back"


def test_another_form_of_state_is_migrated_tried_and_promoted(keyed: Keyed) -> None:
    keyed.run(1, 2)
    keyed.c.push("2", MIGRATED, **KEYED, state_version=1, migrates_from=[0])
    canary = keyed.canary("errors>0", "different>0", for_s=3 * patience(), min_events=4)
    assert keyed.run(1, 2, 3) == [2, 2, 1]
    assert keyed.run(1, 3) == [3, 2]
    keyed.counted(events=5)
    assert canary.end()["phase"] == "done", canary.events
    assert keyed.run(1, 2, 3) == [4, 3, 3]


BAD_MIGRATION = MIGRATED.replace("return {'m': old['n']}", "return {'m': {1: 1, 2: 2}[old['n']]}")


def test_state_that_cannot_be_migrated_ends_it_with_the_reason_at_once_or_when_it_comes(keyed: Keyed) -> None:
    keyed.c.push("2", BAD_MIGRATION, **KEYED, state_version=1, migrates_from=[0])
    keyed.run(1)
    canary = keyed.canary()
    keyed.run(1)
    assert keyed.run(1) == [3]
    keyed.run(2)
    last = canary.end()
    assert last["phase"] == "rolled_back" and "KeyError: 3" in last["detail"], last
    again = list(keyed.c.client.update("d", "2", canary={"percent": 100, "for_s": 60}))
    assert again[-1]["phase"] == "failed" and "KeyError: 3" in again[-1]["detail"] and "1 keeps serving" in again[-1]["detail"]
    assert keyed.run(1) == [4]


def test_state_of_other_groups_that_cannot_be_migrated_fails_the_update_after_the_canary(keyed: Keyed) -> None:
    keyed.c.push("2", BAD_MIGRATION, **KEYED, state_version=1, migrates_from=[0])
    keyed.run(1, 1, 1)  # state 3 cannot be migrated, but is in group 1, which a canary of half of the groups does not load
    canary = keyed.canary("errors>0", "different>0", percent=HALF, for_s=4 * patience())
    assert keyed.run(2, 4) == [1, 1]
    last = canary.end()
    assert last["phase"] == "failed" and "KeyError: 3" in last["detail"] and "1 keeps serving" in last["detail"], canary.events
    assert keyed.run(1, 2) == [4, 2]


# State of 240 KB for each key.
BULKY = COUNT.replace("        yield", "        ctx.state['much'] = f'{n:06}' * 40_000\n        yield")


def test_a_canary_is_sent_the_state_and_the_changelog_of_its_key_groups_only(manager: Manager, api: NodeClient) -> None:
    """There is one key in each of the groups 0 to 3. A canary of 10 % has the first of these groups."""
    one, two = (put_image(manager.settings.home, BULKY, version=version, **KEYED) for version in "12")
    manager.deploy(WantedDeployment("d", "t", "1", one), 30)
    epochs = itertools.count()

    def run() -> None:
        epoch = next(epochs)
        Attempt.at_node(api, "d", "q", epoch, epoch + 1).run(GROUPS)

    def sent() -> int:
        """Return the number of bytes that the state server has sent so far."""
        with contextlib.closing(manager.servers.connect("state")) as state:
            return int(re.search(rb"total_net_output_bytes:(\d+)", state.call("INFO", "stats"))[1])  # type: ignore[index]

    def canary(percent: float, keys: int) -> tuple[int, int]:
        """Return the bytes sent while a canary loads the state, and while it tries the events of `keys` keys in four epochs."""
        before = sent()
        manager.canaries.start("d", f"{percent}", Release("2", two), percent)
        loaded = sent()
        [(_, running)] = manager.canaries.running()
        for _ in range(4):
            run()
        wait_until(lambda: running.measured().events == 4 * keys, 30, "the canary to try its events")
        followed = sent()
        manager.canaries.end("d")
        return loaded - before, followed - loaded

    run()
    share, whole = canary(10, keys=1), canary(100, keys=4)
    # A quarter, or a third if one of them has not yet read the last entry of the changelog.
    assert all(some < 0.4 * all_ for some, all_ in zip(share, whole, strict=True)), (share, whole)


@pytest.mark.parametrize("role", ["queue", "state"])
def test_a_canary_begins_anew_when_a_server_is_lost(keyed: Keyed, role: str) -> None:
    keyed.c.push("2", ODD, **KEYED)
    canary = keyed.canary("errors>0")
    assert keyed.run(1, 2) == [1, 1]
    keyed.counted(events=2)
    before = keyed.instance()

    pid = next(int(s.pid) for s in keyed.c.node.api.status().servers if s.role == role)
    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: keyed.instance() not in (0, before), 60, "the canary to begin anew")
    wait_until(lambda: keyed.c.node.slot().state == "owner", 60, "the owner to serve")
    assert keyed.run(1, 2) == [2, 2]
    assert keyed.counted(events=4)["errors"] == 0
    assert keyed.run(13) == [1]
    assert canary.end()["phase"] == "rolled_back"


class Lost:
    """Stands in for comparisons: the first counts five events and loses its server when told to; the server never comes back."""

    def __init__(self) -> None:
        self.begun = 0
        self.lost = threading.Event()

    def run(self, *_: Any) -> Iterator[MirrorFindings]:
        self.begun += 1
        if self.begun == 1:
            yield MirrorFindings(DiffReport(events=5), [])
            self.lost.wait(bound(20))
        raise ServerLost("the state server is away")


def test_one_that_does_not_begin_anew_is_given_up_after_about_twenty_seconds_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Over(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return self.is_set()

    image = SimpleNamespace(manifest=SimpleNamespace(version="2"), digest="sha256:2")
    wanted: Any = SimpleNamespace(image=image, ready_timeout_s=20, reference="t@2", config=SimpleNamespace(key_groups=4))
    slot: Any = SimpleNamespace(deployment="d", number=0, node=SimpleNamespace(settings=SimpleNamespace(stop_grace_s=1)))
    comparisons = Lost()
    canary = keyed_canaries.SlotCanary(comparisons, slot, wanted, range(4))  # type: ignore[arg-type]
    monkeypatch.setattr(canary, "_over", Over())
    canary.start()
    canary.wait_begun(time.monotonic() + bound(20))
    comparisons.lost.set()
    try:
        wait_until(lambda: canary.failure is not None, 20, "it to be given up")
        assert "the state server is away" in str(canary.failure)
        assert 20 < sum(pauses) < 25 and canary.measured().events == 5
    finally:
        canary.stop()
        canary.wait_stopped()


def test_an_instance_that_dies_is_an_error_and_is_started_again(keyed: Keyed) -> None:
    keyed.c.push("2", ODD, **KEYED)
    canary = keyed.canary("errors>1")
    assert keyed.run(1) == [1]
    keyed.counted(events=1)
    pid = keyed.instance()
    os.kill(pid, signal.SIGKILL)
    keyed.counted(errors=1)
    wait_until(lambda: keyed.instance() not in (0, pid), 30, "another instance")
    assert keyed.run(1, 1) == [2, 3]
    keyed.counted(events=3)
    os.kill(keyed.instance(), signal.SIGKILL)
    last = canary.end()
    assert last["phase"] == "rolled_back" and "errors = 2" in last["detail"] and "SIGKILL" in last["detail"]


def test_an_instance_that_hangs_is_an_error_and_does_not_hold_up_the_owner(keyed: Keyed) -> None:
    keyed.c.push("2", ODD, **KEYED, limits={"answer_timeout_s": 2})
    canary = keyed.canary("errors>0")
    assert keyed.run(16, 1) == [1, 1]
    assert keyed.run(1) == [2]
    last = canary.end()
    assert last["phase"] == "rolled_back" and "hangs" in last["detail"], last


def test_a_node_manager_that_is_killed_and_comes_back_begins_anew(keyed: Keyed) -> None:
    keyed.c.push("2", ODD, **KEYED)
    canary = keyed.canary("errors>0")
    former = keyed.instance()
    keyed.c.node.kill()
    keyed.c.start_node()
    wait_until(lambda: keyed.instance() not in (0, former), 60, "the canary to begin anew")
    assert not psutil.pid_exists(former) or psutil.Process(former).status() == psutil.STATUS_ZOMBIE
    wait_until(lambda: bool(keyed.c.node.slot().canary), 30, "the canary to be shown")
    assert keyed.run(1, 13) == [1, 1]
    assert canary.end()["phase"] == "rolled_back"


def test_the_owner_may_die_meanwhile(keyed: Keyed) -> None:
    keyed.c.push("2", COUNT + "# 2\n", **KEYED)
    canary = keyed.canary("errors>0", "different>0", for_s=6 * patience(), min_events=8)
    for n in range(1, 5):
        assert keyed.run(1, 2) == [n, n]
        owner = keyed.c.node.slot()
        os.kill(owner.pid, signal.SIGKILL)
        wait_until(lambda o=owner: keyed.c.node.slot().instance not in ("", o.instance), 30, "another owner")  # type: ignore[misc]
    assert canary.end()["phase"] == "done", canary.events
    assert keyed.run(1, 2) == [5, 5]


def test_a_diff_and_a_canary_run_at_once_and_one_update_at_a_time(keyed: Keyed) -> None:
    digest = keyed.c.push("2", ODD, **KEYED)
    diff = Running(keyed.c.node, digest, for_s=15).begun()
    canary = keyed.canary()
    assert keyed.run(1, 2) == [1, 1]
    assert keyed.counted(compared=2)["different"] == 0
    assert diff.seen(2).reports[-1]["different"] == 0
    with pytest.raises(Conflict, match="already being updated"):
        keyed.c.client.update("d", "2")
    with pytest.raises(Conflict, match="udo rollback d"):
        keyed.c.client.undeploy("d", drop_state=True)

    assert keyed.end(canary)["phase"] == "rolled_back"
    wait_until(lambda: not keyed.c.node.slot().canary, 20, "the canary to go")
    assert keyed.run(3) == [1]
    assert diff.seen(4).reports[-1]["different"] > 0  # version 2 counts key 3 twice
    assert diff.end()["outcome"] == "different"


def test_state_changed_from_outside_lets_it_begin_anew(keyed: Keyed) -> None:
    keyed.c.push("2", COUNT + "# 2\n", **KEYED)
    keyed.run(1, 2)
    canary = keyed.canary("errors>0", "different>0")
    assert keyed.run(1, 2) == [2, 2]
    keyed.counted(events=2)
    before = keyed.instance()
    keyed.c.node.api.drop_state("d", "q", force=True)
    wait_until(lambda: keyed.instance() not in (0, before), 30, "the canary to begin anew")
    keyed.epoch = 0
    assert keyed.run(1, 1) == [1, 2]
    counted = keyed.counted(events=4)
    assert (counted["errors"], counted["different"]) == (0, 0)
    assert keyed.end(canary)["phase"] == "rolled_back"


def test_who_is_not_told_of_checkpoints_any_more_compares_nothing_from_there_on(keyed: Keyed) -> None:
    keyed.c.push("2", COUNT + "# 2\n", **KEYED)
    keyed.run(1, 2)
    canary = keyed.canary("errors>0", "different>0")
    keyed.run(1, 2)
    keyed.counted(compared=2)
    before = keyed.instance()
    with contextlib.closing(access.connect(keyed.c.node.home, "state")) as state:
        [reader] = state.call("HKEYS", "udo:d:0:readers")
        state.call(*changelog.leaving(SlotKeys("d", 0), bytes(reader).decode()))
        keyed.run(1, 2)
        wait_until(lambda: keyed.instance() not in (0, before), 30, "the canary to begin anew")
    assert keyed.measured()["compared"] == 2
    wait_until(lambda: keyed.run(1, 2) and keyed.measured()["compared"] >= 4, 30, "it to compare again")
    assert (keyed.measured()["errors"], keyed.measured()["different"]) == (0, 0)
    assert keyed.end(canary)["phase"] == "rolled_back"


def test_a_frame_that_the_loaded_state_holds_already_is_not_compared(keyed: Keyed) -> None:
    """The answer may arrive after the checkpoint that covers it; here a copy of an answer comes late."""
    keyed.c.push("2", COUNT + "# 2\n", **KEYED)
    with contextlib.closing(access.connect(keyed.c.node.home, "queue")) as queue:
        reader = SlotReader(queue, SlotKeys("d", 0), "test", 0)
        reader.pin(1, 60_000)
        keyed.run(1, 2)
        answers = pa.schema([("b", pa.int64())])
        header = Header(lane="q.r1.0.1", number=1, kind=ANSWER, version="1", schema=schema_id(to_ipc(answers)), rows=2)
        canary = keyed.canary("errors>0", "different>0")
        key = f"udo:d:0:served:{bytes(queue.call('GET', 'udo:d:0:mirrors')).split()[0].decode()}"
        copy = b"".join(map(bytes, encode(header, pa.record_batch([pa.array([1, 1])], schema=answers))))
        queue.call("RPUSH", key, f"1 1 1 {len(copy)}", copy)
        wait_until(lambda: not queue.call("EXISTS", key), 20, "the copy to be taken")
        reader.pin(0, 0)
    assert keyed.run(1, 2) == [2, 2]
    counted = keyed.counted(compared=2)
    assert (counted["compared"], counted["different"]) == (2, 0)
    assert keyed.end(canary)["phase"] == "rolled_back"


def test_a_canary_and_an_updates_standby_stand_beside_one_another(manager: Manager) -> None:
    images = manager.settings.home
    one, two = put_image(images, COUNT, **KEYED), put_image(images, COUNT + "# 2\n", version="2", **KEYED)
    manager.deploy(WantedDeployment("d", "t", "1", one), 30)
    manager.updates.prepare("d", Release("2", two))
    manager.canaries.start("d", "u", Release("2", two), 100)
    assert [name for name, _ in manager.canaries.running()] == ["d"]
    manager.updates.promote("d", Release("2", two))
    assert [name for name, _ in manager.canaries.running()] == ["d"]
    manager.canaries.end("d")
    manager.canaries.start("d", "v", Release("1", one), 100)
    manager.updates.prepare("d", Release("1", one))
    manager.updates.discard("d")
    assert [name for name, _ in manager.canaries.running()] == ["d"]
    manager.canaries.end("d")


def test_a_canary_discards_what_an_update_that_came_to_nothing_had_prepared(manager: Manager) -> None:
    """The registry may ask for both in such quick succession that the node sees no state in between; here its reports reach no registry."""
    home = manager.settings.home
    one, two = put_image(home, COUNT, **KEYED), put_image(home, COUNT + "# 2\n", version="2", **KEYED)
    manager.deploy(WantedDeployment("d", "t", "1", one), 30, source="registry")
    manager.updates.prepare("d", Release("2", two))
    update = {"id": "u", "phase": "canary", "version": "2", "digest": two, "percent": 100}
    wish = {"name": "d", "operator": "t", "version": "1", "digest": one, "config": {}, "update": update}
    with Registry("http://127.0.0.1:1", token="t") as nobody:
        assert Reconciler(manager, nobody)._bring_about(WantedDeployment.parse(wish))
    assert [name for name, _ in manager.canaries.running()] == ["d"]
    manager.canaries.end("d")


def test_a_registry_that_is_away_meanwhile_decides_when_it_is_back(keyed: Keyed) -> None:
    keyed.c.push("2", COUNT + "# 2\n", **KEYED)
    assert keyed.run(1, 2) == [1, 1]  # the session gets its home
    canary = keyed.canary("errors>0", "different>0", for_s=12 * patience(), min_events=2)
    url = keyed.c.registry.url
    keyed.c.registry.process.terminate()
    keyed.c.registry.process.wait(bound(10))
    assert keyed.run(1, 2) == [2, 2]
    keyed.c.registry.process = start(keyed.c.data, "--listen", url.removeprefix("http://")).process
    assert canary.end()["phase"] == "done", canary.events
    assert keyed.run(1, 2) == [3, 3]


def test_every_node_tries_the_same_share_and_their_counts_are_summed(keyed: Keyed) -> None:
    c = keyed.c
    keyed.c.push("2", ODD, **KEYED)
    other = Daemon(c.node.home.parent / "h2")
    other.start("--node", "n2", "--registry", c.registry.url, "--token-file", str(c.data / "token"))
    try:
        wait_until(lambda: [n["state"] for n in c.client.deployment("d")["nodes"]] == ["answering"] * 2, 30, "both nodes to answer")
        canary = keyed.canary("errors>0", percent=HALF)
        update = c.client.deployment("d")["update"]["id"]
        assert keyed.run(13, 2, 2) == [1, 1, 2]  # 13 is in a group that is not tried
        assert Attempt.at_node(other.api, "d", "q2", 0, 1).run([15, 4]) == [1, 1]
        events = lambda: sum((n["measured"] or {}).get("events", 0) for n in c.client.update_status(update)["nodes"])  # noqa: E731
        wait_until(lambda: events() == 3, 30, "both nodes to have counted their share")
        [(_, slot)] = [(s.slot, s) for s in other.api.status().slots]
        assert "64 of 128 key groups" in slot.canary
        assert keyed.end(canary)["phase"] == "rolled_back"
        wait_until(lambda: not any(s.canary for s in other.api.status().slots), 20, "the other node's canary to go")
    finally:
        other.stop()
    assert not other.processes()


def test_a_node_that_stops_takes_its_canary_along(cluster: Cluster) -> None:
    k = Keyed(cluster)
    cluster.push("2", ODD, **KEYED)
    canary = k.canary()
    assert cluster.node.stop() == 0
    assert not cluster.node.processes()
    assert not list((cluster.node.home / "handles").glob("*.json"))
    assert k.end(canary)["phase"] == "rolled_back"


def test_bad_events_are_tried_by_the_deployments_policy_and_no_letter_is_written(cluster: Cluster) -> None:
    k = Keyed(cluster, policy="dead-letter")
    cluster.push("2", ODD, **KEYED)
    canary = k.canary("errors>0")
    assert k.run(13, 1) == [1, 1]
    assert k.run(1) == [2]
    counted = k.counted(events=3)
    assert (counted["errors"], counted["different"]) == (0, 1)
    assert cluster.node.slot().dead_letters == 0
    assert k.end(canary)["phase"] == "rolled_back"
