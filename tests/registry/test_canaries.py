"""Canaries over real HTTP with fake nodes: the registry decides by the nodes' counts, says why, and survives its own restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import bound, wait_until
from tests.registry.conftest import FakeNode, Running, fresh, image
from udo_protocol import errors
from udo_protocol.registry.api import Registry
from udo_protocol.registry.wanted import NodeReport

pytestmark = pytest.mark.long

GOOD = {"events": 50.0, "frames": 10.0, "errors": 0.0, "p50_ms": 1.0, "p99_ms": 2.0}


class CanaryNode(FakeNode):
    """A fake node that also takes part in canaries: it reports once that it has begun, then its counts at every poll."""

    counted: dict[str, float] | None = GOOD

    def _follow(self, d: dict[str, Any], update: dict[str, Any]) -> None:
        if update["phase"] == "canary":
            self.percent = update["percent"]
            said = {"version": update["version"], "digest": update["digest"], "update_id": update["id"]}
            if (update["id"], "canary") not in self._done:
                self._done.add((update["id"], "canary"))
                self.client.report(self.name, NodeReport(deployment=d["name"], state="ready", phase="ready", **said))
            self.told = said
            if self.counted is not None:
                self.tell(d["name"], self.counted)
            return
        super()._follow(d, update)

    def tell(self, name: str, counted: dict[str, float]) -> None:
        """Report the canary's counts."""
        self.client.report(self.name, NodeReport(deployment=name, state="canary", phase="observed", measured=counted, **self.told))


def canary(for_s: float = 0.3, *rollback_if: str, percent: float = 10, min_events: int = 1) -> dict[str, Any]:
    return {"percent": percent, "for_s": for_s, "rollback_if": list(rollback_if), "min_events": min_events}


def phases(events: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> list[str]:
    return [e["phase"] for e in events]


@pytest.mark.short
def test_a_canary_that_holds_is_promoted_as_any_update(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with CanaryNode(client, "a") as a, CanaryNode(client, "b"):
        events = list(client.update(name, "2", canary=canary(0.5, "errors>0", "p99_ms>5")))

    told = phases(events)
    assert told[0] == "canary" and "10 % of the new lanes for 0.5 s, rolled back if errors>0 or p99_ms>5 or fewer" in events[0]["detail"]
    order = [p for p in told if p in ("sharing", "preparing", "promoting", "done")]
    assert order == ["sharing", "preparing", "promoting", "done"]
    assert told[: told.index("sharing")].count("ready") == 2 and told[told.index("preparing") :].count("ready") == 2
    passed = events[told.index("preparing")]
    assert passed["detail"] == "the canary passed: 100 events, 0 errors, p50 1.00 ms, p99 2.00 ms"
    assert passed["at_ms"] - events[told.index("sharing")]["at_ms"] >= 500
    assert a.percent == 10 and client.deployment(name)["version"] == "2"
    assert client.deployment(name)["update"] is None


@pytest.mark.short
@pytest.mark.parametrize(
    ("counted", "condition", "why"),
    [
        ({**GOOD, "errors": 1.0}, "errors>0", "errors>0 holds (errors = 1)"),
        ({**GOOD, "p99_ms": 7.5}, "p99_ms>5", "p99_ms>5 holds (p99_ms = 7.5)"),
        ({**GOOD, "errors": 20.0}, "error_rate>=0.5", "error_rate>=0.5 holds"),
    ],
)
def test_a_condition_that_holds_rolls_back_at_once_and_says_why(
    registry: Running, deployed: tuple[Registry, str], counted: dict[str, float], condition: str, why: str
) -> None:
    client, name = deployed
    with CanaryNode(client, "a"), CanaryNode(client, "b") as b:
        b.counted = counted
        events = list(registry.client(user="bob").update(name, "2", canary=canary(3600, condition)))

    assert events[-1]["phase"] == "rolled_back" and why in events[-1]["detail"] and "1 serves all new lanes" in events[-1]["detail"]
    assert "preparing" not in phases(events)
    now = client.deployment(name)
    assert (now["version"], now["previous"], now["update"]) == ("1", [], None)
    row = client.audit(name)[0]
    assert (row["action"], row["who"]) == ("update.rolled_back", "bob") and why in row["detail"]
    assert all(d["update"] is None for d in client.wanted("a", wait_s=0)["deployments"] if d["name"] == name)


@pytest.mark.parametrize("counted", [{"events": 0.0}, {**GOOD, "events": 4.0}])
def test_a_canary_that_saw_too_few_events_is_rolled_back_whatever_its_times(
    deployed: tuple[Registry, str], counted: dict[str, float]
) -> None:
    client, name = deployed
    with CanaryNode(client, "a") as a:
        a.counted = counted
        events = list(client.update(name, "2", canary=canary(0.2, "p99_ms<1", min_events=5)))
    saw = f"{counted['events']:.0f}"
    assert events[-1]["phase"] == "rolled_back" and f"saw {saw} events, at least 5" in events[-1]["detail"]


def test_a_node_that_never_says_what_it_counted_lets_nothing_be_promoted(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with CanaryNode(client, "a"), CanaryNode(client, "mute") as mute:
        mute.counted = None
        events = list(client.update(name, "2", timeout_s=3, canary=canary(0.2, min_events=0)))
    assert events[-1]["phase"] == "rolled_back" and "no canary metrics from mute within 3 s" in events[-1]["detail"]


def test_an_error_at_the_very_end_is_still_seen(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with CanaryNode(client, "a") as a:
        events = client.update(name, "2", canary=canary(0.2, "errors>0"))
        assert any(e["phase"] == "sharing" for e in events)
        a.counted = {**GOOD, "errors": 1.0}
        assert list(events)[-1]["phase"] == "rolled_back"


def test_a_rollback_ends_a_canary_by_hand(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with CanaryNode(client, "a"):
        events = client.update(name, "2", canary=canary(3600))
        wait_until(lambda: "sharing" in phases(client.update_status(next_id(client, name))["events"]), 10, "the canary")
        with pytest.raises(errors.Conflict, match=f"udo rollback {name}"):
            client.undeploy(name)
        with pytest.raises(errors.Conflict, match="already being updated"):
            client.update(name, "2")
        assert phases(client.rollback(name))[-1] == "rolled_back"
        last = list(events)[-1]
    assert last["phase"] == "rolled_back" and "ada asked for it" in last["detail"]
    assert [r["action"] for r in client.audit(name)[:2]] == ["update.rolled_back", "rollback"]


@pytest.mark.short
def test_a_canary_is_promoted_by_hand_before_its_time_is_over_once_all_nodes_have_begun(
    registry: Running, deployed: tuple[Registry, str]
) -> None:
    client, name = deployed
    bob = registry.client(user="bob")
    with pytest.raises(errors.Conflict, match=f"{name!r} has no canary under way"):
        bob.promote(name)
    client.heartbeat("late")
    with CanaryNode(client, "a"):
        events = client.update(name, "2", canary=canary(3600, "errors>0", min_events=1_000_000))
        update = next_id(client, name)
        with pytest.raises(errors.Conflict, match="has not begun on all nodes yet"):
            bob.promote(name)
        client.leave("late")
        wait_until(lambda: "sharing" in phases(client.update_status(update)["events"]), 10, "the canary")
        assert phases(bob.promote(name))[-1] == "done"
        told = list(events)
    assert phases(told)[-1] == "done" and client.deployment(name)["version"] == "2"
    [detail] = [e["detail"] for e in told if e["phase"] == "preparing"]
    assert detail.startswith("bob promoted the canary before its time: ")
    rows = [(r["action"], r["who"]) for r in client.audit(name)]
    assert rows[:2] == [("update.done", "ada"), ("promote", "bob")] and rows.count(("promote.refused", "bob")) == 2


def next_id(client: Registry, name: str) -> str:
    """The id of the update in progress."""
    running = client.deployment(name)["update"]
    assert running is not None and running["state"] == "canary" and running["to_version"] == "2"
    return str(running["id"])


def test_a_node_that_cannot_begin_fails_the_update(deployed: tuple[Registry, str]) -> None:
    client, name = deployed

    class Broken(CanaryNode):
        def _follow(self, d: dict[str, Any], update: dict[str, Any]) -> None:
            said = {"version": "2", "digest": update["digest"], "update_id": update["id"]}
            self.client.report(
                self.name,
                NodeReport(deployment=d["name"], state="failed", phase="failed", detail="no torch", error_code="operator", **said),
            )

    with CanaryNode(client, "a"), Broken(client, "b"):
        last = list(client.update(name, "2", canary=canary(3600)))[-1]
    assert (last["phase"], last["error_code"]) == ("failed", "operator") and "no torch. 1 keeps serving" in last["detail"]

    client.heartbeat("mute")
    last = list(client.update(name, "2", timeout_s=0.2, canary=canary(3600)))[-1]
    assert last["phase"] == "failed" and "no report 'ready' from mute" in last["detail"]
    client.leave("mute")


def test_a_node_that_leaves_is_not_waited_for_and_one_that_comes_back_counts_again(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with CanaryNode(client, "a") as a:
        a.counted = None
        events = client.update(name, "2", canary=canary(3600, "errors>0"))
        update = next_id(client, name)
        wait_until(lambda: "sharing" in phases(client.update_status(update)["events"]), 10, "the canary")
        client.leave("a")
        assert [n["state"] for n in client.update_status(update)["nodes"]] == ["gone"]
        client.heartbeat("a")
        a.tell(name, GOOD)
        [node] = client.update_status(update)["nodes"]
        assert node["state"] == "ready" and {k: node["measured"][k] for k in GOOD} == GOOD
        a.tell(name, {**GOOD, "errors": 3.0})
        assert list(events)[-1]["phase"] == "rolled_back"
        a.tell(name, GOOD)  # too late: changes nothing
    assert client.update_status(update)["state"] == "rolled_back"


@pytest.fixture
def keyed(deployed: tuple[Registry, str], tmp_path: Path) -> str:
    """A keyed deployment at version 1; version 2 is pushed."""
    client, name = deployed[0], fresh("keyed")
    for version in ("1", "2"):
        image(name, version, f"v = {version}", key="card").push(client, tmp_path)
    client.deploy(name, name, "1")
    return name


def test_a_keyed_canary_is_told_as_one_that_serves_nobody(deployed: tuple[Registry, str], keyed: str) -> None:
    client, _ = deployed
    with CanaryNode(client, "a") as a:
        a.counted = {**GOOD, "compared": 10.0, "different": 0.0}
        events = list(client.update(keyed, "2", canary=canary(0.3, "different>0")))
        assert "13 of 128 key groups, tested beside 1 for 0.3 s, rolled back if different>0 or fewer" in events[0]["detail"]
        assert any(e["phase"] == "sharing" and e["detail"] == "2 has 13 of 128 key groups, tested beside 1" for e in events)
        passed = next(e for e in events if e["phase"] == "preparing")
        assert passed["detail"].endswith("p99 2.00 ms, 0 of 10 frames compared different")
        assert client.deployment(keyed)["version"] == "2"


@pytest.mark.parametrize(
    ("counted", "why"),
    [
        ({**GOOD, "compared": 4.0, "different": 1.0}, "different>0 holds (different = 1)"),
        (GOOD, "no answer of the canary could be compared"),
    ],
)
def test_a_keyed_canary_that_answers_otherwise_or_cannot_be_compared_is_rolled_back(
    deployed: tuple[Registry, str], keyed: str, counted: dict[str, float], why: str
) -> None:
    client, _ = deployed
    with CanaryNode(client, "a") as a:
        a.counted = counted
        last = list(client.update(keyed, "2", canary=canary(0.3, "different>0")))[-1]
    assert last["phase"] == "rolled_back" and why in last["detail"] and "1 continues to serve" in last["detail"]


def test_what_a_node_says_of_the_first_error_stands_in_the_reason(deployed: tuple[Registry, str], keyed: str) -> None:
    client, _ = deployed
    with CanaryNode(client, "a") as a:
        a.counted = None
        events = client.update(keyed, "2", canary=canary(3600, "errors>0"))
        wait_until(lambda: hasattr(a, "told"), 10, "the node to begin")
        said = {"state": "canary", "phase": "observed", "measured": {**GOOD, "errors": 1.0}, "detail": "ValueError: unlucky"}
        client.report("a", NodeReport(deployment=keyed, **said, **a.told))
        assert list(events)[-1]["detail"].endswith("On node a: ValueError: unlucky. 1 continues to serve")


def test_a_node_whose_canary_cannot_go_on_rolls_back_with_its_reason(deployed: tuple[Registry, str], keyed: str) -> None:
    client, _ = deployed
    with CanaryNode(client, "a") as a:
        events = client.update(keyed, "2", canary=canary(3600))
        wait_until(lambda: hasattr(a, "told"), 10, "the node to begin")
        assert any(e["phase"] == "sharing" for e in events)
        client.report(
            "a",
            NodeReport(
                deployment=keyed, state="failed", phase="failed", detail="migrate() failed: KeyError: 3", error_code="operator", **a.told
            ),
        )
        last = list(events)[-1]
    assert last["phase"] == "rolled_back" and last["detail"] == "node a: migrate() failed: KeyError: 3. 1 continues to serve"


@pytest.mark.short
def test_what_cannot_be_tried_is_refused(registry: Running, deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with pytest.raises(errors.Conflict, match="no node is live"):
        client.update(name, "2", canary=canary())
    with CanaryNode(client, "a"):
        with pytest.raises(errors.UsageError, match="expected a keyed deployment"):
            client.update(name, "2", canary=canary(1, "different>0"))
        with pytest.raises(errors.Conflict, match="serves @1 already"):
            client.update(name, "1", canary=canary())
        for wrong, why in (
            (canary(1, "errors=0"), "expected MEASURE>NUMBER"),
            (canary(percent=0), "canary.percent"),
            (canary(percent=101), "canary.percent"),
            (canary(0), "canary.for_s"),
            ({"for_s": 1}, "canary.percent"),
        ):
            with pytest.raises(errors.UsageError, match=why):
                client.update(name, "2", canary=wrong)
    http = registry.http()
    reply = http.post(f"/api/v1/deployments/{name}/rollback", json={"canary": canary()})
    assert reply.status_code == 400 and "belongs to an update" in reply.json()["error"]["message"]
    reply = http.post(
        "/api/v1/nodes/a/report", json={"deployment": name, "version": "1", "digest": "d", "state": "canary", "measured": {"events": -1}}
    )
    assert reply.status_code == 400


@pytest.mark.parametrize(("counted", "end"), [(GOOD, "done"), ({**GOOD, "errors": 1.0}, "rolled_back")])
def test_a_canary_outlives_the_registry_and_its_watcher_reads_on(
    start_registry: Callable[..., Running], tmp_path: Path, counted: dict[str, float], end: str
) -> None:
    first = start_registry()
    url, client = first.url, first.client(timeout_s=bound(20))
    for version in ("1", "2"):
        image("op", version, f"v = {version}").push(client, tmp_path)
    client.deploy("op", "op", "1")
    with CanaryNode(first.client(timeout_s=bound(20)), "a") as a:
        a.counted = None
        events = client.update("op", "2", canary=canary(3.0, "errors>0"))
        assert next(events)["phase"] == "canary"
        wait_until(lambda: hasattr(a, "told"), 10, "the node to begin")
        first.process.terminate()
        first.process.wait(bound(10))
        start_registry("--listen", url.removeprefix("http://"), data=first.data)
        client.heartbeat("a")
        a.counted = counted
        assert list(events)[-1]["phase"] == end
    assert client.deployment("op")["version"] == ("2" if end == "done" else "1")


def test_progress_of_a_long_canary_is_told_now_and_then_only(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with CanaryNode(client, "a") as a:
        a.counted = None
        events = client.update(name, "2", canary=canary(3600))
        wait_until(lambda: hasattr(a, "told"), 10, "the node to begin")
        for n in range(50):
            a.tell(name, {**GOOD, "events": float(n)})
        client.rollback(name).close()  # type: ignore[attr-defined]
        told = list(events)
    assert phases(told).count("observed") <= 1
    assert json.dumps(told)
