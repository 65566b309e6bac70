"""Deployments: the fields that are shown, those that never are, and those that nodes get."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event, select

from elasticity.scaling.application_wish import ApplicationWish
from registry.domain import deployments
from registry.domain.presence import Presence
from registry.store.hub import Hub
from registry.store.models import Application, Deployment, Epoch, Version
from registry.store.store import Store
from tests.conftest import bound, wait_until
from tests.registry.conftest import FakeNode, Running, fresh, image
from udo_protocol import errors
from udo_protocol.registry.api import Registry
from udo_protocol.registry.wanted import NodeReport

SECRET, CONTENT = "s3cr3t-value-xyz", b"file-content-xyz"


def test_secrets_and_files_reach_nodes_but_no_read_and_no_log(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("op")
    image(name).push(client, tmp_path)
    shown = client.deploy(name, name, env={"LEVEL": "3"}, secrets={"KEY": SECRET}, files={"conf/model.bin": CONTENT})

    assert (shown["secrets"], shown["files"], shown["env"]) == (["KEY"], ["conf/model.bin"], {"LEVEL": "3"})
    (told,) = [d for d in client.wanted("node", wait_s=0)["deployments"] if d["name"] == name]
    assert told["config"]["secrets"] == {"KEY": SECRET}
    assert base64.b64decode(told["config"]["files"]["conf/model.bin"]) == CONTENT

    # A refusal may name the field that is wrong, but never show its value.
    for body in (
        {"name": name, "operator": name, "secrets": {"KEY": [SECRET]}},
        {"name": name, "operator": name, "secrets": {"1KEY": SECRET}},
        {"name": name, "operator": name, "files": {"a": SECRET + "!"}},
    ):
        reply = httpx.post(f"{registry.url}/api/v1/deployments", json=body, headers={"Authorization": f"Bearer {registry.token}"})
        assert reply.status_code == 400
        assert SECRET not in reply.text
    with pytest.raises(errors.Conflict) as conflict:
        client.deploy(name, name, secrets={"KEY": SECRET + "2"})
    assert SECRET not in str(conflict.value)

    encoded = base64.b64encode(CONTENT).decode()
    for path in ("deployments", f"deployments/{name}", "audit", "nodes", "operators", f"operators/{name}/versions/1"):
        reply = registry.http().get(f"/api/v1/{path}")
        assert reply.status_code == 200 and SECRET not in reply.text and encoded not in reply.text, path
    assert SECRET not in registry.log and encoded not in registry.log and registry.token not in registry.log


def test_slots_over_nodes_are_spread_evenly_over_the_live_nodes_that_listen_and_stay_there(
    start_registry: Callable[..., Running], tmp_path: Path
) -> None:
    client = start_registry().client()
    image("op").push(client, tmp_path)
    with pytest.raises(errors.Conflict, match="no live node listens for other hosts"):
        client.deploy("op", "op", slots=3, over_nodes=True)
    listening = {"n1": "10.0.0.1:7070", "n2": "10.0.0.2:7070"}
    for node in ("n0", *listening):
        client.heartbeat(node, listen=listening.get(node, ""))
    placed = client.deploy("op", "op", slots=3, over_nodes=True)["placement"]
    assert (placed["version"], placed["nodes"]) == (1, ["n1", "n2", "n1"])
    told = client.wanted("n0", wait_s=0)
    assert (told["addresses"], told["deployments"][0]["placement"]) == (listening, placed)

    client.heartbeat("n3", listen="10.0.0.3:7070")
    after = client.wanted("n0", after=told["generation"], wait_s=0)
    assert after["generation"] > told["generation"] and after["addresses"]["n3"] == "10.0.0.3:7070"
    client.heartbeat("n4", listen="10.0.0.4:7070")
    seen = client.wanted("n0", wait_s=0)["generation"]
    client.leave("n4")
    left = client.wanted("n0", after=seen, wait_s=0)
    assert left["generation"] > seen and left["addresses"] == after["addresses"]
    assert client.deploy("op", "op", slots=3, over_nodes=True)["placement"] == placed, "the same again"
    with pytest.raises(errors.Conflict, match="with other settings"):
        client.deploy("op", "op", slots=3)
    assert client.scale("op", 5)["placement"]["nodes"] == ["n1", "n2", "n1", "n3", "n2"], "on the nodes with the fewest"
    assert client.scale("op", 2)["placement"]["nodes"] == ["n1", "n2"]
    assert client.drain("n1") == [] and client.deployment("op")["placement"]["nodes"] == ["n3", "n2"]
    assert client.scale("op", 3)["placement"]["nodes"] == ["n3", "n2", "n2"], "none on a node that is drained"
    assert client.drain("n1", undo=True) == [] and client.scale("op", 4)["placement"]["nodes"][3] == "n1"


def test_who_decides_about_slots_is_told_to_nodes_and_stays_as_it_is_where_nothing_is_given(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("op")
    image(name).push(client, tmp_path)
    default = {"mode": "advise", "policy": "fuzzy", "least": 1, "most": 0, "idle_after_s": 0.0, "settings": {}}
    assert client.deploy(name, name)["elasticity"] == default

    def config() -> dict[str, Any]:
        return next(dict(d["config"]) for d in client.wanted("node", wait_s=0)["deployments"] if d["name"] == name)

    assert "elasticity" not in config()
    shown = client.scale(name, 2, {"mode": "auto", "most": 4})
    assert shown["elasticity"] == {**default, "mode": "auto", "most": 4} and shown["slots"] == 2
    assert config()["elasticity"] == {"mode": "auto", "most": 4}
    assert client.scale(name, 3)["elasticity"]["mode"] == "auto"
    assert client.scale(name, elasticity={"settings": {"grow": 1.5}})["slots"] == 3
    assert client.deploy(name, name, slots=3)["elasticity"]["settings"] == {"grow": 1.5}, "the same again"
    with pytest.raises(errors.Conflict, match="with other settings"):
        client.deploy(name, name, slots=3, elasticity={"mode": "off"})
    for wrong, why in (
        ({"mode": "on"}, "'off', 'advise' or 'auto'"),
        ({"policy": "local"}, "expected a policy that comes with the package"),
        ({"least": 5}, "expected least <= most, got 5 and 4"),
        ({"settings": {"speed": 1}}, "has no setting 'speed'"),
        ({"settings": {"rules": "[inputs]"}}, "expected a table"),
    ):
        with pytest.raises(errors.UsageError, match=why):
            client.scale(name, elasticity=wrong)
    assert client.deployment(name)["elasticity"] == {**default, "mode": "auto", "most": 4, "settings": {"grow": 1.5}}


def test_only_the_owner_may_read_what_the_registry_keeps(registry: Running) -> None:
    for path in (registry.data / "registry.db", registry.data / "token", registry.data / "blobs"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_deploying_the_same_again_is_fine_and_something_else_conflicts(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    assert client.deploy(name, name, "1")["version"] == "1"
    with pytest.raises(errors.Conflict, match=f"udo update {name} 2"):
        client.deploy(name, name, "2")
    with pytest.raises(errors.Conflict):
        client.deploy(name, name, "1", env={"A": "1"})


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("name", "Not A Name", "name"),
        ("env", {"1A": "x"}, "env"),
        ("files", {"../up": ""}, "inside the operator's directory"),
        ("files", {"/abs": ""}, "inside the operator's directory"),
        ("limits", {"windows": 3}, "no limit 'windows'"),
        ("limits", {"park_ms": -1}, "more than 0"),
        ("limits", {"memory_mb": 512}, "'memory_mb' is the operator's own: set it in its operator.toml"),
        ("policy", "shrug", "policy"),
        ("limits", {"key_groups": 32769}, "a whole number from 1 to 32768, got 32769"),
        ("limits", {"key_groups": 12.5}, "a whole number from 1 to 32768, got 12.5"),
        ("limits", {"retries": 11}, "a whole number from 1 to 10, got 11"),
        ("limits", {"retries": 1.5}, "a whole number from 1 to 10, got 1.5"),
        ("limits", {"read_frames": 0.5}, "'read_frames': expected a whole number, got 0.5"),
        ("surprise", 1, "surprise"),
    ],
)
def test_malformed_deployments_are_refused_by_field(registry: Running, field: str, value: Any, why: str) -> None:
    body = {"name": "a", "operator": "a", field: value}
    reply = httpx.post(f"{registry.url}/api/v1/deployments", json=body, headers={"Authorization": f"Bearer {registry.token}"})
    assert reply.status_code == 400 and why in reply.json()["error"]["message"]


@pytest.fixture
def fifty(tmp_path: Path) -> Iterator[Store]:
    """A database with the deployments d0 to d49, of which an application has d1."""
    made = Store(f"sqlite:///{tmp_path / 'r.db'}", Hub(1))
    version = Version(name="t", version="1", digest="x", manifest={}, layers=[], created_at=0.0, pushed_by="ada")
    empty: dict[str, Any] = {"env": {}, "secrets": {}, "files": {}, "limits": {}, "previous": []}
    with made.write() as session:
        for n in range(50):
            session.add(Deployment(name=f"d{n}", version=version, slots=1, policy="fail", generation=1, made=1, created_at=0.0, **empty))
        session.add(Application(name="app", wish=ApplicationWish(("d1",)).record(), created_at=0.0))
    yield made
    made.close()


def test_a_list_of_deployments_reads_the_applications_once(fifty: Store) -> None:
    statements: list[str] = []
    with fifty.read() as session:
        event.listen(session.get_bind(), "before_cursor_execute", lambda _c, _cursor, statement, *_: statements.append(statement))
        found = deployments.everything(session, Presence([], {}))
    assert len(found) == 50 and [d["name"] for d in found if d["application"] == "app"] == ["d1"]
    assert len([s for s in statements if "FROM applications" in s]) == 1


def test_a_deployment_is_listed_whose_rules_an_earlier_release_has_accepted(fifty: Store) -> None:
    with fifty.write() as session:
        deployments.find(session, "d7").elasticity = {"mode": "auto", "settings": {"rules": "[inputs.weather]"}}
    with fifty.read() as session:
        found = deployments.everything(session, Presence([], {}))
    (shown,) = [d["elasticity"] for d in found if d["name"] == "d7"]
    assert len(found) == 50 and shown["settings"] == {"rules": "[inputs.weather]"}


def test_deploying_what_was_never_pushed_names_the_near_operators(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    with pytest.raises(errors.NotFound, match=name):
        client.deploy("other", name + "x")
    with pytest.raises(errors.NotFound, match="no version '7'"):
        client.deploy("other", name, "7")


def test_a_long_poll_wakes_at_once_when_something_is_deployed(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    generation = client.wanted("poller", wait_s=0)["generation"]
    answers: list[tuple[float, dict[str, Any]]] = []

    def poll() -> None:
        answer = client.wanted("poller", after=generation, wait_s=20)
        answers.append((time.monotonic(), answer))

    thread = threading.Thread(target=poll)
    thread.start()
    wait_until(lambda: client.health()["waiting_requests"] == 1, 5, "the poll's begin")
    asked = time.monotonic()
    client.deploy(fresh("second"), name, "1")
    thread.join(bound(10))

    at, answer = answers[0]
    assert answer["generation"] > generation
    assert at - asked < 19, "the poll itself would last 20 s"


def test_a_poll_without_news_returns_the_same_generation_after_its_wait(deployed: tuple[Registry, str]) -> None:
    client, _ = deployed
    first = client.wanted("quiet", wait_s=0)
    assert client.wanted("quiet", after=first["generation"], wait_s=0.05) == first


def test_a_generation_from_another_life_of_the_registry_is_answered_at_once(deployed: tuple[Registry, str]) -> None:
    client, _ = deployed
    began = time.monotonic()
    client.wanted("node", after=1_000_000, wait_s=20)
    assert time.monotonic() - began < 19, "the poll itself would last 20 s"


def test_nodes_report_into_the_deployment_and_undeploy_forgets_it(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    digest = client.deployment(name)["digest"]
    client.report(
        "n1",
        NodeReport(deployment=name, version="1", digest=digest, state="failed", detail="ImportError: no module x", error_code="operator"),
    )
    (shown,) = client.deployment(name)["nodes"]
    assert (shown["node"], shown["state"], shown["detail"], shown["error_code"]) == ("n1", "failed", "ImportError: no module x", "operator")

    client.undeploy(name)

    assert name not in [d["name"] for d in client.wanted("n1", wait_s=0)["deployments"]]
    with pytest.raises(errors.NotFound):
        client.deployment(name)
    client.report("n1", NodeReport(deployment=name, version="1", digest=digest, state="stopped"))  # a late report is not an error


def test_a_keyed_deployment_is_only_removed_with_its_state(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("keyed")
    image(name, key="card").push(client, tmp_path)
    client.deploy(name, name)
    with pytest.raises(errors.Conflict, match=f"{name}.* is keyed.*udo undeploy {name}"):
        client.undeploy(name)
    assert registry.http().delete(f"/api/v1/deployments/{name}?drop_state=perhaps").status_code == 400
    assert client.deployment(name)["version"] == "1"

    client.undeploy(name, drop_state=True)

    with pytest.raises(errors.NotFound):
        client.deployment(name)


def test_an_epoch_keeps_the_version_of_its_first_caller(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    first = client.epoch(name, "run-1", 7)
    with FakeNode(client, "n"):
        assert [e["phase"] for e in client.update(name, "2")][-1] == "done"

    assert client.epoch(name, "run-1", 7) == first
    assert client.epoch(name, "run-1", 8)["version"] == "2"
    assert client.epoch(name, "run-2", 7)["version"] == "2"


def test_of_a_session_that_has_ended_only_the_last_epoch_is_kept(fifty: Store) -> None:
    with fifty.write() as session:
        for name, run, first, second in (("d0", "ended", 10.0, 20.0), ("d0", "goes on", 10.0, 90.0), ("d1", "ended", 10.0, 20.0)):
            deployments.bind_epoch(session, name, run, 1, first)
            deployments.bind_epoch(session, name, run, 2, second)
    with fifty.write() as session:
        deployments.forget_epochs(session, 50.0)
    with fifty.read() as session:
        left = {(e.deployment, e.session, e.epoch) for e in session.scalars(select(Epoch))}
    assert left == {("d0", "ended", 2), ("d0", "goes on", 2), ("d1", "ended", 2)}


def test_many_callers_of_one_epoch_get_one_version(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(client.epoch(name, "run", 1)["digest"])) for _ in range(8)]
    updater = threading.Thread(target=lambda: list(client.update(name, "2")))
    with FakeNode(client, "n"):
        for t in [*threads[:4], updater, *threads[4:]]:
            t.start()
        for t in [*threads, updater]:
            t.join(bound(20))
    assert len(seen) == 8 and len(set(seen)) == 1


def test_nodes_are_listed_with_what_they_said(registry: Running) -> None:
    client = registry.client()
    reply = client.heartbeat(
        "host-1.lan", address="unix:/n.sock", driver="process", capabilities={"logs": True}, metrics_address="127.0.0.1:9"
    )
    assert reply["interval_s"] > 0
    (node,) = [n for n in client.nodes() if n["node"] == "host-1.lan"]
    assert (node["address"], node["driver"], node["live"]) == ("unix:/n.sock", "process", True)
    client.leave("host-1.lan")
    assert "host-1.lan" not in [n["node"] for n in client.nodes()]


def test_another_node_of_a_name_is_refused_whatever_it_asks_until_that_one_is_gone(deployed: tuple[Registry, str]) -> None:
    client, name = deployed
    node = fresh("node")
    one, two = {"incarnation": "1", "address": "here:/one"}, {"incarnation": "2", "address": "there:/two"}
    digest = client.deployment(name)["digest"]
    said: dict[str, Any] = {"version": "1", "digest": digest, "state": "failed"}
    assert [client.heartbeat(node, **one)["anew"] for _ in range(2)] == [True, False], "whether all has to be reported again"
    with pytest.raises(errors.Conflict, match=r"is there already, at here:/one; the one that asks now at there:/two is another.*--node"):
        client.heartbeat(node, **two)
    for ask in (
        lambda: client.wanted(node, incarnation="2", wait_s=0),
        lambda: client.report(node, NodeReport(deployment=name, **said), "2"),
        lambda: client.leave(node, "2"),
    ):
        with pytest.raises(errors.Conflict, match="at here:/one"):
            ask()
    assert [n["address"] for n in client.nodes() if n["node"] == node] == ["here:/one"]
    assert client.deployment(name)["nodes"] == []

    client.heartbeat(node, **one)  # again, and without an incarnation, as an earlier release asks
    client.wanted(node, wait_s=0)
    client.report(node, NodeReport(deployment=name, **said))
    client.leave(node, "1")
    assert client.heartbeat(node, **two)["anew"]
    with pytest.raises(errors.Conflict, match="at there:/two"):
        client.heartbeat(node, **one)
    client.leave(node, "2")


def test_the_policy_reaches_the_nodes_and_dead_letters_go_only_if_agreed_to(deployed: tuple[Registry, str]) -> None:
    client, operator = deployed
    name = fresh("letters")
    client.deploy(name, operator, "1", policy="dead-letter", limits={"retries": 2})
    wanted = next(d for d in client.wanted("n", wait_s=0)["deployments"] if d["name"] == name)
    assert (wanted["config"]["policy"], wanted["config"]["limits"]) == ("dead-letter", {"retries": 2})
    with pytest.raises(errors.Conflict, match=f"keeps dead letters.*udo dead ls {name}"):
        client.undeploy(name)
    client.undeploy(name, drop_state=True)
