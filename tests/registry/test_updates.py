"""The live update over real HTTP with fake nodes: two phases, all or nothing before promotion, one at a time, reported as events."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from registry.domain import updates
from registry.store.hub import Hub
from registry.store.models import Participant, Update
from registry.store.store import Store
from tests.conftest import bound, wait_until
from tests.registry.conftest import FakeNode, Running, fresh, image
from udo_protocol import errors
from udo_protocol.registry.api import Registry
from udo_protocol.registry.wanted import NodeReport


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """Updates write the most at once, so they run on both databases."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("postgresql")("updates"))


def _phases(events: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(e["phase"], e["node"]) for e in events]


def _fail(_: dict[str, Any]) -> None:
    raise RuntimeError("ImportError: no module named torch")


def test_an_update_prepares_on_all_nodes_then_promotes_on_all(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    old = client.deployment(name)
    with FakeNode(client, "a") as a, FakeNode(client, "b"):
        events = list(client.update(name, "2"))

    phases = _phases(events)
    assert phases[0] == ("preparing", "") and phases[-1] == ("done", "")
    middle = phases.index(("promoting", ""))
    assert {("ready", "a"), ("ready", "b")} == set(phases[1:middle])
    assert {("answering", "a"), ("answering", "b")} == set(phases[middle + 1 : -1])
    assert [e["at_ms"] for e in events] == sorted(e["at_ms"] for e in events)

    now = client.deployment(name)
    assert now["version"] == "2" and now["previous"] == [{"version": "1", "digest": old["digest"]}]
    assert {n["node"]: (n["state"], n["version"]) for n in now["nodes"]} == {}  # both nodes have left
    mine = [d for poll in a.polls for d in poll["deployments"] if d["name"] == name]
    assert [(d["version"], (d["update"] or {}).get("phase")) for d in mine][:3] == [("1", None), ("1", "prepare"), ("2", "promote")]
    assert mine[1]["update"]["layers"] == client.version(name, "2")["layers"]


def test_a_node_that_fails_to_prepare_leaves_the_old_version_wanted_everywhere(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with FakeNode(client, "good") as good, FakeNode(client, "bad", _fail):
        events = list(client.update(name, "2"))
        withdrawn = lambda: all(d["update"] is None for d in good.polls[-1]["deployments"] if d["name"] == name)  # noqa: E731
        wait_until(withdrawn, 10, "the plan's withdrawal")

    assert events[-1]["phase"] == "failed"
    assert events[-1]["error_code"] == "operator" and events[0]["error_code"] == ""
    assert "node bad: ImportError: no module named torch. 1 keeps serving" in events[-1]["detail"]
    assert "promoting" not in [e["phase"] for e in events]
    assert client.deployment(name)["version"] == "1" and client.deployment(name)["previous"] == []
    assert client.audit(name)[0]["action"] == "update.failed"


def test_a_node_that_never_gets_ready_fails_the_update_at_its_deadline(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    hold = threading.Event()
    with FakeNode(client, "slow", lambda _: hold.wait(bound(20))):
        events = list(client.update(name, "2", timeout_s=0.2))
        assert events[-1]["phase"] == "failed" and "no report 'ready' from slow within 0.2 s" in events[-1]["detail"]
        assert events[-1]["error_code"] == "timeout"
        assert client.deployment(name)["version"] == "1"
        hold.set()  # its late "ready" changes nothing
    assert client.update_status(events[0]["id"])["state"] == "failed"
    assert client.deployment(name)["version"] == "1"


def test_after_promotion_the_new_version_stays_wanted_whatever_a_node_says(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with FakeNode(client, "mute") as mute:
        mute.promote = False
        events = list(client.update(name, "2", timeout_s=1))
    assert events[-1]["phase"] == "failed" and "2 stays wanted" in events[-1]["detail"]
    assert client.deployment(name)["version"] == "2"


def test_a_report_that_comes_once_more_after_later_ones_takes_nothing_back(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'r.db'}", Hub(1))
    texts = dict.fromkeys(("action", "who", "address", "from_version", "from_digest", "to_version", "to_digest", "detail"), "")
    times = {"started_at": 0.0, "deadline_at": 100.0, "timeout_s": 100.0}
    with store.write() as session:
        session.add(Update(id="u", deployment="d", state="promoting", config=None, canary=None, **texts, **times))
        session.flush()
        session.add_all(Participant(update_id="u", node=node, state="ready") for node in "ab")
        for phase in ("answering", "ready"):
            updates.step(session, "u", "a", phase, "", 1.0)
    with store.read() as session:
        assert {p.node: p.state for p in session.scalars(select(Participant))} == {"a": "answering", "b": "ready"}
    store.close()


def test_a_node_that_leaves_while_preparing_is_not_waited_for(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    client.heartbeat("leaver")
    with FakeNode(client, "stayer"):
        events = client.update(name, "2")
        first = next(events)
        client.leave("leaver")
        phases = _phases([first, *events])
    assert ("gone", "leaver") in phases and phases[-1] == ("done", "")


def test_an_update_is_refused_where_no_node_is_live_and_says_which_are_away(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    for refused in (lambda: client.update(name, "2"), lambda: client.update(name, "1")):
        with pytest.raises(errors.Conflict, match=f"no node is live.*{name}' stays at @1.*udo status"):
            refused()
    assert client.deployment(name)["version"] == "1"
    assert client.audit(name)[0]["action"] == "update.refused"


def test_an_update_to_the_version_that_serves_has_nothing_to_do(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with FakeNode(client, "n"):
        assert _phases(client.update(name, "1")) == [("preparing", ""), ("promoting", ""), ("done", "")]
    assert client.deployment(name)["previous"] == []


def test_an_update_whose_every_node_goes_away_fails_and_changes_nothing(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    client.heartbeat("only")
    events = client.update(name, "2")
    first = next(events)
    client.leave("only")
    last = [first, *events][-1]
    assert (last["phase"], last["error_code"]) == ("failed", "unavailable")
    assert "no node is left of only, so nothing serves 2. 1 keeps serving" in last["detail"]
    assert client.deployment(name)["version"] == "1"


def test_only_one_update_of_a_deployment_runs_and_it_keeps_its_versions(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    hold = threading.Event()
    with FakeNode(client, "n", lambda _: hold.wait(bound(20))):
        events = client.update(name, "2")
        for refused in (lambda: client.update(name, "2"), lambda: client.undeploy(name), lambda: client.delete_version(name, "2")):
            with pytest.raises(errors.Conflict):
                refused()
        hold.set()
        assert _phases(events)[-1] == ("done", "")
    assert "update.refused" in [r["action"] for r in client.audit(name)]


def test_an_update_that_running_queries_cannot_accept_is_refused_with_every_reason(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("op")
    image(name, "1").push(client, tmp_path)
    image(name, "2", input={"amount": "float", "card": "int64", "zip": "string"}, output={"amount": "double"}).push(client, tmp_path)
    client.deploy(name, name, "1")
    generation = client.wanted("n", wait_s=0)["generation"]

    with pytest.raises(errors.SchemaError) as refused:
        client.update(name, "2")

    for reason in ("column 'zip' (string) is missing", "column 'amount': expected float, got double", "column 'flag' (bool) is missing"):
        assert reason in str(refused.value)
    assert client.wanted("n", wait_s=0)["generation"] == generation
    assert client.deployment(name)["version"] == "1"
    assert client.audit(name)[0]["action"] == "update.refused"


def test_rollback_goes_back_step_by_step_also_from_a_wider_version(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("op")
    image(name, "1").push(client, tmp_path)
    image(name, "2", code="v = 2").push(client, tmp_path)
    image(name, "3", output={"amount": "double", "flag": "bool", "why": "string"}).push(client, tmp_path)
    client.deploy(name, name, "1")
    with FakeNode(client, "n"):
        for version in ("2", "3"):
            assert _phases(client.update(name, version))[-1] == ("done", "")
        back = list(client.rollback(name))
        assert back[-1]["phase"] == "done" and "column 'why'" in back[0]["detail"]
        assert client.deployment(name)["version"] == "2"
        assert [p["version"] for p in client.deployment(name)["previous"]] == ["1"]
        assert _phases(client.rollback(name, "1"))[-1] == ("done", "")
    assert client.deployment(name)["version"] == "1"
    with pytest.raises(errors.NotFound, match="no former version to roll back to"):
        client.rollback(name)


def test_the_audit_trail_says_who_when_from_which_digest_to_which(registry: Running, deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    before = client.deployment(name)["digest"]
    bob = registry.client(user="bob")
    with FakeNode(client, "n"):
        list(bob.update(name, "2"))
    after = client.deployment(name)["digest"]

    rows = client.audit(name)

    assert [r["action"] for r in rows] == ["update.done", "update", "deploy"]
    for row in rows[:2]:
        assert (row["who"], row["address"], row["from_digest"], row["to_digest"]) == ("bob", "127.0.0.1", before, after)
    assert rows[2]["who"] == "ada" and rows[0]["at"] >= rows[1]["at"] >= rows[2]["at"]
    assert len(client.audit(name, limit=1)) == 1


def test_without_an_event_stream_the_update_answers_where_to_look(registry: Running, deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with FakeNode(client, "n"):
        reply = httpx.post(
            f"{registry.url}/api/v1/deployments/{name}/update", json={"version": "1"}, headers={"Authorization": f"Bearer {registry.token}"}
        )
    assert reply.status_code == 202
    assert client.update_status(reply.json()["id"])["state"] == "done"
    told = httpx.get(registry.url + reply.json()["events"])
    assert told.headers["Content-Type"].startswith("text/event-stream")
    names = [line[7:] for line in told.text.splitlines() if line.startswith("event: ")]
    assert names == ["preparing", "promoting", "done"]
    last = [line[4:] for line in told.text.splitlines() if line.startswith("id: ")][1]
    rest = httpx.get(registry.url + reply.json()["events"], headers={"Last-Event-ID": last})
    assert [line for line in rest.text.splitlines() if line.startswith("event: ")] == ["event: done"]


def test_an_update_goes_on_when_its_watcher_goes_away(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    hold = threading.Event()
    with FakeNode(client, "n", lambda _: hold.wait(bound(20))):
        watch = client.update(name, "2")
        next(watch)
        watch.close()  # type: ignore[attr-defined]
        hold.set()
        wait_until(lambda: client.deployment(name)["version"] == "2", 10, "the update's end")
    wait_until(lambda: client.health()["waiting_requests"] == 0, 10, "the end of the stream nobody reads")


def test_a_watcher_that_was_given_up_is_collected_in_the_middle_of_a_request_and_nothing_hangs(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with FakeNode(client, "slow", lambda _: None):
        forgotten: list[object] = [client.update(name, "2")]
        next(forgotten[0])  # type: ignore[call-overload]
        forgotten.append(forgotten)  # a cycle: only the garbage collector closes the stream
        collected = threading.Event()

        def collect(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_name == "_assign_requests_to_connections":  # the connections' lock is held
                gc.collect()
                collected.set()

        def ask() -> None:
            sys.setprofile(collect)
            client.health()

        asking = threading.Thread(target=ask, daemon=True)
        gc.disable()
        try:
            del forgotten
            asking.start()
            asking.join(bound(20))
        finally:
            gc.enable()
        assert collected.is_set() and not asking.is_alive(), "a request hangs behind the stream that it collected"


@pytest.mark.parametrize("read", [0, 1])
def test_a_watcher_that_goes_away_closes_its_connection(deployed: tuple[Registry, str], read: int) -> None:
    client, name = deployed
    with FakeNode(client, "slow", lambda _: None):
        events = client.update(name, "2")
        assert len(list(islice(events, read))) == read
        del events  # a socket that is collected before it is closed is a ResourceWarning, which is an error here
        gc.collect()
        wait_until(lambda: client.health()["waiting_requests"] <= 1, 10, "the end of the stream nobody reads, the node's poll apart")


def test_unknown_steps_and_updates_are_refused_or_ignored(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    digest = client.deployment(name)["digest"]
    with pytest.raises(errors.UsageError, match="expected one of pulling"):
        client.report("n", NodeReport(deployment=name, version="1", digest=digest, state="x", update_id="u", phase="dancing"))
    client.report("n", NodeReport(deployment=name, version="1", digest=digest, state="ready", update_id="u", phase="ready"))
    with pytest.raises(errors.NotFound):
        client.update_status("u")


@pytest.mark.long
def test_twenty_updates_in_a_row_with_two_nodes_all_end_well(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with FakeNode(client, "a"), FakeNode(client, "b"):
        for i in range(20):
            events = list(client.update(name, "2" if i % 2 == 0 else "1"))
            assert events[-1]["phase"] == "done", events
    assert len(client.deployment(name)["previous"]) == 1
