"""Applications at the registry: named, handed out, guarded, decided on by the nodes' reports, with a journal that survives restarts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from elasticity.scaling.application_wish import ApplicationWish
from elasticity.scaling.journal_rows import rows_of_application
from elasticity.scaling.model import GAIN, Plan
from registry.domain import application_lines, keyed_steps
from registry.domain.application_managers import ApplicationManagers, ToldBody
from registry.domain.application_steps import Steps
from registry.domain.presence import Presence
from registry.store.hub import Hub
from registry.store.models import Application, Deployment, Version
from registry.store.store import Store
from tests.conftest import bound, wait_until
from tests.registry.conftest import Running, fresh, image
from udo_cli.main import cli
from udo_cli.text.application_events import replayed_application
from udo_protocol.errors import Conflict, NotFound, UsageError
from udo_protocol.registry.api import Registry
from udo_protocol.state.placement import Placement

DOCUMENT = Path(__file__).parents[2] / "docs" / "applications_sla.md"
QUICK: dict[str, Any] = {"interval_s": 0.3, "settings": {"token_s": 0.1, "idle_token_s": 0.0}}


def deployments(client: Registry, tmp_path: Path, *names: str) -> list[str]:
    made = [fresh(name) for name in names]
    for name in made:
        image(name, "1").push(client, tmp_path)
        client.deploy(name, name, "1")
    return made


def plan(name: str, kind: str = "scale_out", replicas: int = 2, gain: float = 3.0) -> dict[str, Any]:
    return {"operator": name, "kind": kind, "replicas": replicas, "gain": gain, "cost_ms": 1.0, "why": "busy"}


def told(*parts: dict[str, Any], done: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"use": 0.5, "room": 10, "delays_ms": {"b": 0.7}, "deployments": list(parts), "done": done or []}


def part(name: str, ms: float | None = 150.0, number: int = 1, *plans: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"deployment": name, "response_ms": ms, "number": number, "replicas": 1, "proposals": list(plans), **more}


def rows(client: Registry, name: str) -> list[dict[str, Any]]:
    return list(rows_of_application(name, client.application_journal(name), True))


def test_an_application_is_named_changed_handed_out_and_removed_and_the_audit_trail_has_it(registry: Running, tmp_path: Path) -> None:
    client, app = registry.client(), fresh("taxi")
    one, two, other = deployments(client, tmp_path, "parse", "count", "other")
    made = client.create_application(app, [one, two], response_ms=150, downtime_percent=0.1)
    assert (made["deployments"], made["mode"], made["response_ms"], made["now"]) == ([one, two], "advise", 150, None)
    assert client.create_application(app, [one, two], response_ms=150, downtime_percent=0.1) == made, "the same again is fine"
    with pytest.raises(Conflict, match="udo app set"):
        client.create_application(app, [one], response_ms=150)
    with pytest.raises(Conflict, match=f"belongs to application '{app}' already"):
        client.create_application(fresh("taxi"), [two, other])
    with pytest.raises(NotFound, match="no deployment 'nothing'"):
        client.create_application(fresh("taxi"), ["nothing"])
    with pytest.raises(Conflict, match="an application needs another name"):
        client.create_application(other, [other])
    with pytest.raises(Conflict, match="a deployment needs another name"):
        client.deploy(app, one, "1")
    with pytest.raises(UsageError, match="no setting 'gamma'"):
        client.change_application(app, settings={"gamma": 1})
    with pytest.raises(NotFound, match="no application"):
        client.application(fresh("taxi"))

    changed = client.change_application(app, mode="auto", settings={"u_max": 0.9, "beta": 0.5})
    assert (changed["mode"], changed["settings"], changed["response_ms"]) == ("auto", {"u_max": 0.9, "beta": 0.5}, 150)
    assert client.change_application(app, settings={"beta": None})["settings"] == {"u_max": 0.9}
    wanted = {d["name"]: d["config"].get("application") for d in client.wanted("n", wait_s=0)["deployments"]}
    assert wanted[one] == wanted[two] == {"name": app, "mode": "auto", "settings": {"u_max": 0.9}} and wanted[other] is None
    assert client.deployment(one)["application"] == app and client.deployment(other)["application"] is None
    with pytest.raises(Conflict, match=f"belongs to application '{app}': undeploy it after udo app rm {app}"):
        client.undeploy(one)
    client.remove_application(app)
    assert app not in [a["name"] for a in client.applications()]
    client.undeploy(one)
    said = [row["action"] for row in client.audit(limit=20) if app in row["detail"]]
    assert said == ["app rm", "app set", "app set", "app create"]


def test_what_a_node_proposes_is_granted_by_the_sla_carried_out_once_and_written_down(registry: Running, tmp_path: Path) -> None:
    client, app, node = registry.client(), fresh("taxi"), fresh("node")
    one, two = deployments(client, tmp_path, "parse", "count")
    client.heartbeat(node)
    client.create_application(app, [one, two], mode="auto", response_ms=200, **QUICK)
    grants: list[dict[str, Any]] = []

    def tell() -> bool:
        grants[:] = client.propose(node, told(part(one, 90), part(two, 91, 5, plan(two), plan(two, gain=3.5))))["grants"]
        return bool(grants)

    wait_until(tell, 20, "a grant")
    assert {(g["plan"]["operator"], g["plan"]["gain"], g["number"], g["before"]) for g in grants} == {(two, 3.5, 5, 1)}, "the better one"
    again = client.propose(node, told(part(one, 90), part(two, 91, 5, plan(two))))["grants"]
    assert [g["id"] for g in again] == [grants[0]["id"]], "until the node has said what became of it, and no second one of that decision"
    done = [{"id": grants[0]["id"], "replicas": 2, "error": ""}]
    reply = client.propose(node, told(part(one, 90), part(two, 91, 5, plan(two)), done=done))
    assert reply["grants"] == [] and reply["hosts"][node] == {"use": 0.5, "room": 10}
    [row] = [r for r in rows(client, app) if r["result"] == "done"]
    assert (row["node"], row["deployment"], row["kind"], row["slots"], row["response_ms"]) == (node, two, "scale_out", 2, 181.0)
    now = client.application(app)["now"]
    assert now["kept"] is True and [p["deployment"] for p in now["chain"]] == [one, two]
    assert next(n for n in client.nodes() if n["node"] == node)["delays_ms"] == {"b": 0.7}
    found = replayed_application(app, client.application_journal(app))
    assert found["same"] and found["decisions"] >= 2
    with httpx.Client(base_url=f"{registry.url}/console/", follow_redirects=True, timeout=bound(30)) as browser:
        before = browser.get(f"applications/{app}").text
        assert "181.0 ms, at most 200 ms" in before and "to see them" in before and "scale out" not in before
        browser.post("sign-in", data={"token": registry.token, "name": "ada"})
        signed_in = browser.get(f"applications/{app}").text
        assert f"<td>{node}</td><td>{two}</td><td>scale out from 1 to 2</td><td>done</td>" in signed_in
        assert app in browser.get("applications").text and f'href="/console/applications/{app}"' in browser.get(f"deployments/{two}").text
    client.leave(node)
    client.remove_application(app)


def test_in_mode_advise_nothing_is_handed_out_and_a_silent_node_or_missing_figures_are_no_good_response(
    registry: Running, tmp_path: Path
) -> None:
    client, app, a, b = registry.client(), fresh("taxi"), fresh("node"), fresh("node")
    [one] = deployments(client, tmp_path, "parse")
    client.heartbeat(a)
    client.create_application(app, [one], response_ms=100, **QUICK)

    def tell(number: int) -> list[str]:
        reply = client.propose(a, told(part(one, 120.0, number, plan(one))))
        assert reply["grants"] == []
        return [r["result"] for r in rows(client, app) if r["kind"]]

    wait_until(lambda: "advised" in tell(1), 20, "advice")
    assert client.application(app)["now"]["kept"] is False
    client.heartbeat(b)  # and reports nothing more
    wait_until(lambda: any(b in r["detail"] for r in rows(client, app) if tell(2)), 20, "a decision without node b")
    client.leave(b)
    shown = [r for r in rows(client, app) if b in r["detail"]]
    assert {(r["result"], r["response_ms"]) for r in shown} == {("declined", None)}
    client.leave(a)
    with pytest.raises(UsageError, match="expected a plan"):
        client.propose(a, told(part(one, 1.0, 3, {"operator": "another"})))
    client.remove_application(app)


def test_the_journal_and_the_tokens_go_on_where_a_restarted_registry_was(start_registry: Callable[..., Running], tmp_path: Path) -> None:
    running = start_registry()
    client = running.client()
    [one] = deployments(client, tmp_path, "parse")
    client.create_application("taxi", [one], interval_s=0.3, settings={"token_s": 100.0})
    count = lambda c: sum(len(s["lines"]) for s in c.application_journal("taxi"))  # noqa: E731
    wait_until(lambda: count(client) > 3, 20, "decisions")
    running.stop()
    client = start_registry().client()
    before = count(client)
    wait_until(lambda: count(client) > before + 1, 20, "more decisions")
    [segment] = client.application_journal("taxi")
    assert segment["segment"] == 1 and replayed_application("taxi", [segment])["same"]
    client.change_application("taxi", response_ms=99)
    wait_until(lambda: len(client.application_journal("taxi")) == 2, 20, "a segment with the new settings")
    assert replayed_application("taxi", client.application_journal("taxi"))["same"]


@pytest.mark.long
def test_a_step_of_a_deployment_with_state_over_nodes_goes_on_after_a_restart_until_its_node_has_followed_or_it_is_given_up(
    start_registry: Callable[..., Running], tmp_path: Path
) -> None:
    running = start_registry()
    clients = [running.client()]
    image("op", "1", key=["card"]).push(clients[0], tmp_path)
    for node in "ab":
        clients[0].heartbeat(node, listen=f"{node}:7070")
    clients[0].deploy("op", "op", "1", slots=3, over_nodes=True, limits={"key_groups": 9})
    clients[0].create_application("app", ["op"], mode="auto", **QUICK)

    def tell(number: int = 0, *plans: dict[str, Any], done: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Report the figures of both nodes, and return the steps handed to node a."""
        for node in "ab":
            clients[-1].heartbeat(node, listen=f"{node}:7070")
        clients[-1].propose("b", told(part("op", 1000.0)))
        return list(clients[-1].propose("a", told(part("op", 1000.0, number, *plans, replicas=2), done=done))["moves"])

    def placed() -> dict[str, Any]:
        return dict(clients[-1].deployment("op")["placement"])

    migrate, grown = {**plan("op", "migrate"), "target": "b"}, {**plan("op"), "target": "b", "replica": "a/0"}
    wait_until(lambda: bool(tell(1, migrate)), 20, "a step that is handed to its node")
    [step] = tell()
    assert step == {"id": step["id"], "deployment": "op", "kind": "migrate", "moves": [[3, [6, 7, 8]]], "runs_to": "", "slots": None}
    assert placed()["nodes"] == ["a", "b", "a", "b"]
    with pytest.raises(Conflict, match="a step of application 'app' changes the slots of deployment 'op'.*udo app set app --mode advise"):
        clients[-1].scale("op", 5)
    assert "a step of application" in clients[-1].drain("b", ["op"])[0]["why"]
    clients[-1].drain("b", undo=True)
    with pytest.raises(Conflict, match="a step of application"):
        list(clients[-1].update("op", "1"))

    running.process.kill()
    running.process.wait(bound(30))
    clients.append(start_registry().client())
    wait_until(lambda: bool(tell()), 20, "it to be handed out again")
    assert tell() == [step]
    version = placed()["version"]
    clients[-1].move_groups("op", "begin", node="a", version=version, groups=[6, 7, 8], to=3)
    for part_of_it in ("in force", "done"):
        clients[-1].move_groups("op", part_of_it, node="a", version=version + 1)
    wait_until(lambda: placed()["nodes"] == ["a", "b", "b"], 20, "the empty slot to go")
    wait_until(lambda: [s["slots"] for s in tell()] == [1], 20, "the node to be told to follow")
    [gone] = tell()
    tell(done=[{"id": gone["id"], "error": "it follows"}])
    assert tell() == [gone] and placed()["step"]["gone"]
    wait_until(lambda: not tell(done=[{"id": gone["id"]}]), 20, "the step to be over")

    def result() -> list[tuple[str, int, str, str]]:
        over = (r for r in rows(clients[-1], "app") if r["result"] in ("done", "failed"))
        return [(r["kind"], r["slots_before"], r["result"], r["detail"]) for r in over]

    assert result() == [("migrate", 2, "done", "")] and "step" not in placed()

    def begins() -> bool:
        clients[-1].propose("a", told(part("op", 1000.0, 2, grown, replicas=1)))
        return bool(placed().get("step"))

    wait_until(begins, 20, "a step that adds a slot")
    assert placed()["nodes"] == ["a", "b", "b", "b"] and placed()["step"]["groups"] == [2]
    clients[-1].change_application("app", mode="advise")
    wait_until(lambda: not placed().get("step"), 20, "the step to be given up")
    assert placed()["nodes"] == ["a", "b", "b"]
    assert result()[-1] == ("scale_out", 1, "failed", "given up: the node has not said why")
    assert replayed_application("app", clients[-1].application_journal("app"))["same"]


@pytest.mark.long
def test_nodes_are_told_the_load_of_all_key_groups_and_a_granted_balance_moves_some(
    start_registry: Callable[..., Running], tmp_path: Path
) -> None:
    client = start_registry().client()
    image("op", "1", key=["card"]).push(client, tmp_path)

    def live() -> None:
        for node in "ab":
            client.heartbeat(node, listen=f"{node}:7070")

    live()
    client.deploy("op", "op", "1", slots=3, over_nodes=True, limits={"key_groups": 9})
    client.create_application("app", ["op"], mode="auto", interval_s=0.3, settings={"token_s": 1000.0})
    assert client.propose("a", told(part("op", 1.0, events=[1] * 9)))["loads"] == {"op": {"nodes": ["a"], "events": [1] * 9}}
    loads = client.propose("b", told(part("op", 1.0, events=[0, 2] * 4)))["loads"]
    assert loads == {"op": {"nodes": ["a", "b"], "events": [1, 3] * 4 + [1]}}
    assert client.propose("c", told())["loads"] == {}
    asked = {**plan("op", "balance"), "groups": [[0, "b/0"], [2, "b/0"]]}

    def tell(number: int, *plans: dict[str, Any]) -> list[dict[str, Any]]:
        live()
        client.propose("b", told(part("op", 1.0)))
        return list(client.propose("a", told(part("op", 1.0, number, *plans, replicas=2)))["moves"])

    wait_until(lambda: bool(tell(1, asked)), 20, "a step without a token")
    [step] = tell(0)
    assert (step["kind"], step["moves"], step["runs_to"], step["slots"]) == ("balance", [[1, [0, 2]]], "", None)
    version = client.deployment("op")["placement"]["version"]
    client.move_groups("op", "begin", node="a", version=version, groups=[0, 2], to=1)
    for part_of_it in ("in force", "done"):
        client.move_groups("op", part_of_it, node="a", version=version + 1)
    wait_until(lambda: not tell(0), 20, "the step to be over")
    placed = client.deployment("op")["placement"]
    assert placed["nodes"] == ["a", "b", "a"] and [g for g, place in enumerate(placed["groups"]) if place == 1] == [0, 2, 3, 4, 5]
    wait_until(lambda: bool(tell(2, asked)) or any(r["result"] == "failed" for r in rows(client, "app")), 20, "an answer to the same again")
    [failed] = [r for r in rows(client, "app") if r["result"] == "failed"]
    assert "no longer in one slot of node a" in failed["detail"]


def test_a_step_is_refused_where_slots_have_replicas_or_its_target_is_away(start_registry: Callable[..., Running], tmp_path: Path) -> None:
    client = start_registry().client()
    image("op", "1", key=["card"]).push(client, tmp_path)
    for node in "ab":
        client.heartbeat(node, listen=f"{node}:7070", incarnation=f"disk-{node}")
    client.deploy("copied", "op", "1", slots=2, over_nodes=True, replicas=1)
    client.deploy("op", "op", "1", slots=2, over_nodes=True)
    client.create_application("app", ["copied", "op"], mode="auto", **QUICK)
    number = iter(range(1, 1000))

    def refused(name: str, target: str, why: str) -> bool:
        asked = {d: [{**plan(d, "migrate", 1), "target": target}] if d == name else [] for d in ("copied", "op")}
        for node in "ba":
            client.heartbeat(node, listen=f"{node}:7070", incarnation=f"disk-{node}")
            client.propose(node, told(*(part(d, 1000.0, next(number), *(plans if node == "a" else [])) for d, plans in asked.items())))
        return any(why in r["detail"] for r in rows(client, "app") if r["result"] == "failed")

    wait_until(lambda: refused("copied", "b", "has replicas, or had some"), 20, "the first refusal")
    wait_until(lambda: refused("op", "c", "node c is away, drained"), 20, "the second refusal")
    assert [client.deployment(name)["placement"].get("step") for name in ("copied", "op")] == [None, None]


def test_the_file_that_the_documentation_shows_makes_an_application(
    start_registry: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start_registry()
    client, path = running.client(), tmp_path / "taxi.toml"
    for name in ("parse", "filter", "count"):
        image(name, "1").push(client, tmp_path)
        client.deploy(name, name, "1")
    [shown] = re.findall(r"^```toml\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    path.write_text(shown)
    monkeypatch.setenv("UDO_REGISTRY", running.url)
    monkeypatch.setenv("UDO_TOKEN_FILE", str(running.data / "token"))
    made = CliRunner().invoke(cli, ["app", "create", "--file", str(path), "--json"])
    assert made.exit_code == 0, made.output
    wish = json.loads(made.output)
    assert (wish["name"], wish["deployments"], wish["mode"]) == ("taxi", ["parse", "filter", "count"], "auto")
    assert (wish["response_ms"], wish["downtime_percent"], wish["settings"]) == (200, 0.1, {"beta": 0.5})
    for words, text in (
        (("app", "ls"), "not known"),
        (("app", "set", "taxi", "--mode", "off", "--setting", "token_s=30"), "mode off"),
        (("app", "show", "taxi"), "beta 0.5, token_s 30"),
        (("inspect", "count"), "taxi"),
        (("app", "rm", "taxi"), "its deployments stay"),
    ):
        done = CliRunner().invoke(cli, [*words])
        assert done.exit_code == 0 and text in done.output, done.output
    path.write_text('name = "taxi"\ncolour = 1\n')
    assert "no entry 'colour'" in CliRunner().invoke(cli, ["app", "create", "--file", str(path)]).output
    assert "expected something to change" in CliRunner().invoke(cli, ["app", "set", "taxi"]).output
    assert "no application 'taxi'" in CliRunner().invoke(cli, ["app", "rm", "taxi"]).output


def test_a_decision_that_could_not_be_written_down_is_none_and_the_manager_goes_on_from_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, lives = [1000.0], Presence(["n"], {})
    store = Store(f"sqlite:///{tmp_path / 'r.db'}", Hub(4))
    with store.write() as session:
        wish = ApplicationWish(("d",), mode="auto", interval_s=10, settings={"token_s": 1.0, "idle_token_s": 1.0})
        session.add(Application(name="app", wish=wish.record(), created_at=0.0))
    managers = ApplicationManagers(store, lambda: now[0], lambda session: lives)

    def later() -> list[dict[str, Any]]:
        now[0] += 10
        reply = managers.take("n", ToldBody.model_validate(told(part("d", 300.0, int(now[0]), plan("d")))))
        managers.tick()
        return list(reply["grants"])

    written = application_lines.decided
    for _ in range(2):
        assert later() == []
    monkeypatch.setattr(application_lines, "decided", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
    with pytest.raises(OSError, match="the disk is full"):
        later()
    monkeypatch.setattr(application_lines, "decided", written)
    for _ in range(4):
        later()
    with store.read() as session:
        segments = [{"segment": n, "lines": lines} for n, lines in application_lines.segments(session, "app")]
    found = replayed_application("app", segments)
    assert found["same"] and found["segments"] == 1 and found["decisions"] >= 3
    assert {g["plan"]["operator"] for g in later()} == {"d"}, "and it grants again"
    store.close()


def test_of_what_nodes_report_only_what_is_about_steps_under_way_is_kept_whenever_it_comes(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'r.db'}", Hub(1))
    growth = Plan("d", "scale_out", 2, GAIN["scale_out"], 1.0, "test")
    placement = keyed_steps.begun(Placement(1, ("a",), True, made=1), "a", growth, ("app", 1, 7, 0.0), 12).document()
    empty: dict[str, Any] = {"env": {}, "secrets": {}, "files": {}, "limits": {}, "previous": []}
    version = Version(name="t", version="1", digest="x", manifest={"key": ["k"]}, layers=[], created_at=0.0, pushed_by="ada")
    numbers: dict[str, Any] = {"slots": 2, "generation": 1, "made": 1, "created_at": 0.0}
    with store.write() as session:
        session.add(Deployment(name="d", version=version, policy="fail", placement=placement, **numbers, **empty))
    steps, wanted = Steps(store), {"app": ApplicationWish(("d",), mode="auto")}

    class Reported(dict[str, str]):
        """Reports to which another one is added while a look goes through them."""

        def items(self) -> Any:
            for entry in super().items():
                steps.heard("app:1:8:d", "")
                yield entry

    steps.look(wanted, 1.0)
    [step] = steps.left["a"]
    steps._said = Reported()
    for identity in (step["id"], "app:1:6:d"):
        steps.heard(identity, "not yet")
    steps.look(wanted, 2.0)
    assert steps._said == {step["id"]: "not yet"} and steps.left["a"] == [step]
    store.close()
