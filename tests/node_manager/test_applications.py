"""An application on a real node and registry: its Operator Managers ask, its manager grants, and callers notice nothing."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elasticity.scaling.journal_rows import rows_of
from node_manager.manager import Manager
from node_manager.reconcile.asking import Asking
from tests.conftest import bound, wait_until
from tests.node_manager.conftest import Daemon, add
from tests.support import cluster
from tests.support.callers import Callers, answers
from tests.support.cluster import Cluster
from udo_cli.commands.events import replayed
from udo_cli.exits import ExitCode
from udo_cli.main import cli
from udo_protocol import supervised
from udo_protocol.errors import Conflict, Unavailable
from udo_protocol.registry.wanted import WantedDeployment

pytestmark = pytest.mark.long

SLOW = """
import time
from udo_runtime import operator
@operator
def run(batch):
    time.sleep(0.1)
    return {"b": [a * 2 for a in batch.column("a").to_pylist()]}
"""
WINDOW = 4
WISH: dict[str, Any] = {"mode": "auto", "response_ms": 20, "interval_s": 1.0}
QUICK = {"token_s": 1.0, "idle_token_s": 1.0, "calm_s": 2.0, "reverse_s": 3.0}


def chain(daemon: Daemon) -> Callers:
    """Load whose events go through `first` and whose answers go through `then`, a lane each; all answers are checked."""

    def once(thread: int, turn: int) -> int:
        values = [thread * 1_000_000 + turn * WINDOW + i for i in range(WINDOW)]
        between = answers(daemon.api, "first", f"load-{thread}-{turn}", values)
        then = answers(daemon.api, "then", f"load-{thread}-{turn}", [b for (b,) in between])
        assert then == [[2 * (v + 1)] for v in values]
        return WINDOW

    return Callers(3, once)


@pytest.fixture
def chained(home: Path, tmp_path: Path) -> Iterator[Cluster]:
    """Deployments `first` and `then` on a node that decides every second."""
    with cluster.running(home, tmp_path / "registry", "--decide-s", "1", "--pinned-idle-s", "1") as c:
        for version, (name, source) in enumerate({"first": add(1), "then": SLOW}.items(), start=1):
            c.push(str(version), source)
            c.client.deploy(name, "t", str(version), elasticity={"most": 3})
        wait_until(lambda: all(c.state(name)[0] == "answering" for name in ("first", "then")), 60, "both to answer")
        yield c


def slots(c: Cluster, name: str) -> int:
    """Return the number of slots that get new lanes."""
    return len(c.node.api.signals(name).slots)


def shown(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == ExitCode.OK, done.output
    return done.output


def test_an_application_in_auto_scales_its_slow_part_by_grants_and_back_and_no_answer_changes(
    chained: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = chained
    monkeypatch.setenv("UDO_REGISTRY", c.registry.url)
    monkeypatch.setenv("UDO_NODE", str(c.node.home / "node.sock"))
    c.client.create_application("app", ["first", "then"], **WISH, settings=QUICK)
    with chain(c.node) as load:
        load.wait(lambda: slots(c, "then") > 1, 60, "a second slot that was granted")
        os.kill(max(s.pid for s in c.node.api.status().slots if s.deployment == "then"), signal.SIGKILL)
        load.more(20, "answers by both, one of which has died")
        assert slots(c, "first") == 1, "it is not busy"
    assert load.failures == []
    wait_until(lambda: slots(c, "then") == 1, 60, "one slot again")

    result = lambda rows: {(r["kind"], r["result"]) for r in rows if r["result"] in ("done", "failed")}  # noqa: E731
    rows = lambda: json.loads(shown("events", "app", "--json", "--last", "0"))  # noqa: E731
    wait_until(lambda: result(rows()) >= {("scale_out", "done"), ("scale_in", "done")}, 10, "both steps to be written down")
    done = [r for r in rows() if r["result"] == "done"]
    assert done[0]["response_ms"] > 15 and {(r["node"], r["deployment"]) for r in done} == {("n1", "then")}
    own = list(rows_of(c.node.api.decisions("then"), False))
    assert ("scale_out", "done") in result(own) and "granted by app" in {r["detail"] for r in own}
    assert "all come out the same" in shown("events", "app", "--replay") and replayed(c.node.api.decisions("then"))["same"]
    assert "SLA" in shown("app", "ls") and "first → then" in shown("app", "show", "app")
    assert c.client.deployment("then")["slots"] == 1, "the registry's own number is what it was"


def test_without_a_registry_nothing_is_granted_everything_is_answered_and_afterwards_it_goes_on(chained: Cluster) -> None:
    c, url = chained, chained.registry.url
    c.client.create_application("app", ["first", "then"], **{**WISH, "interval_s": 60}, settings=QUICK)
    asks = lambda: [r for r in rows_of(c.node.api.decisions("then"), False) if r["result"] == "asked"]  # noqa: E731
    with chain(c.node) as load:
        load.wait(lambda: bool(asks()), 60, "something to be asked for")
        c.registry.stop()
        seen, there = load.answered, len(asks())
        load.wait(lambda: load.answered > seen + 20 and len(asks()) > there, 60, "it to go on asking")
        assert slots(c, "then") == 1 and load.failures == []
        from tests.registry.conftest import start

        c.registry = start(c.data, "--listen", url.removeprefix("http://"))
        c.client = c.registry.client()
        c.client.change_application("app", interval_s=1.0)
        load.wait(lambda: slots(c, "then") > 1, 60, "a grant by the registry that is back")
    assert load.failures == []


class FakeManager:
    """Stands in for the registry that Asking talks to: answers with these grants, or raises."""

    def __init__(self, *grants: dict[str, Any]) -> None:
        self.grants, self.told = list(grants), list[dict[str, Any]]()
        self.error: BaseException | None = None

    def propose(self, node: str, told: Any) -> dict[str, Any]:
        self.told.append(dict(told))
        if self.error is not None:
            raise self.error
        return {"hosts": {node: {"use": 0.1, "room": 5}}, "grants": self.grants, "loads": {"d": {"nodes": [node, "b"], "events": [3, 4]}}}


def grant(number: int, before: int, **more: Any) -> dict[str, Any]:
    plan = {"operator": "d", "kind": "scale_out", "replicas": before + 1, "gain": 3.0, "cost_ms": 1.0, "why": "test"}
    return {"id": f"app:1:{number}:d", "application": "app", "number": number, "before": before, "plan": plan, **more}


@pytest.mark.short
def test_a_grant_is_carried_out_once_and_only_for_the_slots_it_was_proposed_for(manager: Manager) -> None:
    from tests.node_manager.conftest import put_image

    digest = put_image(manager.settings.home, add(1))
    config = {"application": {"name": "app", "mode": "auto"}, "elasticity": {"most": 3}}
    manager.deploy(WantedDeployment("d", "t", "1", digest, config=config), 30)
    wait_until(lambda: manager.controllers.asked("d")[0] >= 0, 30, "a first decision")
    other, stale = {**grant(1, 1), "id": "x", "application": "another"}, {**grant(0, 2), "id": "y"}
    far = FakeManager(grant(0, 1), other, stale)
    asking = Asking(manager, far)
    asking.exchange()
    wait_until(lambda: len(manager.deployments.find("d").own) == 2, 30, "the second slot")
    asking.exchange()

    def heard() -> set[tuple[str, int, str]]:
        asking.exchange()
        return {(d["id"], d["replicas"], d["error"].partition(":")[0]) for told in far.told for d in told["done"]}

    wait_until(lambda: len(heard()) == 3, 30, "what became of all three")
    assert ("app:1:0:d", 2, "") in heard()
    assert {(i, n) for i, n, error in heard() if error} == {("x", 1), ("y", 2)} and len(manager.deployments.find("d").own) == 2
    [part] = far.told[-1]["deployments"]
    assert part["deployment"] == "d" and part["down_s"] == 0.0 and far.told[-1]["use"] >= 0
    manager.controllers.tick(1e9)  # a decision after both slots were seen
    with pytest.raises(Conflict, match="2 slots on node n by now: the step was for 1"):
        [d] = manager.plant.deployments()
        manager.controllers.carry_out(d, 0, 1, manager_plan(), lambda replicas, error: None)


def manager_plan() -> Any:
    from elasticity.scaling.model import Plan

    return Plan("d", "scale_out", 2, 3.0, 1.0, "test")


def test_asking_and_measuring_go_on_after_they_raised(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "PAUSE_FIRST_S", 0.001)
    far, before = FakeManager(), supervised.errors()
    far.error = RuntimeError("nobody expects it")
    asking = Asking(manager, far)
    asking._every_s = 0.01
    asking.start()
    wait_until(lambda: supervised.errors().get("asking", 0) > before.get("asking", 0), 10, "an error")
    far.error = Unavailable("the registry is away")
    seen = len(far.told)
    wait_until(lambda: len(far.told) > seen + 2, 10, "further tries")
    far.error = None
    wait_until(lambda: manager.neighbours.around(host("n")) == (host("n"),), 10, "the registry's answer")
    asking.stop()

    peers = iter([RuntimeError("nobody expects it")])

    def raising() -> list[str]:
        if error := next(peers, None):
            raise error
        measured.set()
        return []

    measured = threading.Event()
    monkeypatch.setattr(manager.across, "peers", raising)
    from node_manager.control.neighbours import Neighbours

    neighbours = Neighbours(manager.across, every_s=0.01)
    neighbours.start()
    assert measured.wait(bound(10)) and supervised.errors()["neighbours"] == before.get("neighbours", 0) + 1
    neighbours.stop()


def test_the_load_of_key_groups_counts_if_it_is_new_and_of_all_nodes(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    from node_manager.control import neighbours

    known = neighbours.Neighbours(manager.across)
    assert known.events("d", ["a"]) is None
    known.told({}, {"d": {"nodes": ["a", "b"], "events": [3, 4]}})
    assert known.events("d", ["b", "a"]) == known.events("d", ["a", "a"]) == (3, 4)
    assert known.events("d", ["a", "c"]) is known.events("other", ["a"]) is None, "what is not known is no load of 0"
    monkeypatch.setattr(neighbours, "_LOADS_S", -1.0)
    assert known.events("d", ["a"]) is None, "the registry has been away for a while"


def host(name: str) -> Any:
    from elasticity.scaling.model import Host

    return Host(name, 0.5, 3, {})
