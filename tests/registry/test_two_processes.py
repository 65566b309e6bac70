"""Two registry processes on one PostgreSQL database, whichever is asked and whichever dies, at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from registry.store import postgresql as pg
from registry.store.hub import Hub
from registry.store.store import Store, open_engine
from tests.conftest import bound, wait_until
from tests.registry.conftest import FakeNode, fresh, image, sha, start
from tests.support import forked
from tests.support.registry_pair import Pair
from tests.support.seeds import seeds
from udo_cli.text.application_events import replayed_application
from udo_protocol import errors, supervised
from udo_protocol.registry.api import Registry

pytestmark = pytest.mark.long

KILLS = 6


class BeatingNode(FakeNode):
    """A fake node with heartbeats, as a node manager sends them: through them the process that it does not poll learns of it."""

    def _run(self) -> None:
        beating = threading.Thread(target=self._beat)
        beating.start()
        super()._run()
        beating.join()

    def _beat(self) -> None:
        while not self._stopping.wait(1.0):
            with contextlib.suppress(errors.Unavailable):
                self.client.heartbeat(self.name, address=f"unix:{self.name}.sock")

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.client.leave(self.name)  # a late heartbeat has brought it back


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgresql: Callable[[str], str]) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"), postgresql("pair"))
    yield made
    made.stop()


def operator(client: Registry, tmp_path: Path, *versions: str) -> str:
    """Push an operator with these versions, deploy the first one under its own name, and return the name."""
    name = fresh("fraud")
    for version in versions:
        image(name, version, f"v = {version}").push(client, tmp_path)
    client.deploy(name, name, versions[0])
    return name


@pytest.mark.short
def test_what_is_done_at_one_process_is_known_at_once_to_who_waits_at_the_other(pair: Pair, tmp_path: Path) -> None:
    a, b = pair.client(0), pair.client(1)
    name = operator(a, tmp_path, "1", "2", "3")
    assert b.deployment(name)["version"] == "1"
    layer = b.version(name, "2")["layers"][0]["digest"]
    b.fetch_blob(name, layer, tmp_path / "layer")
    assert sha((tmp_path / "layer").read_bytes()) == layer
    with BeatingNode(a, fresh("na")) as na, BeatingNode(b, fresh("nb")) as nb:
        assert {na.name, nb.name} <= {n["node"] for n in b.nodes() if n["live"]} & {n["node"] for n in a.nodes() if n["live"]}
        events = list(b.update(name, "2"))
        assert events[-1]["phase"] == "done"
        assert Counter(e["phase"] for e in events) == {"preparing": 1, "ready": 2, "promoting": 1, "answering": 2, "done": 1}
        update = events[0]["id"]
        assert [e["phase"] for e in a._events(a._stream("GET", f"/api/v1/updates/{update}/events"))] == [e["phase"] for e in events]
        canary = {"percent": 10.0, "for_s": 0.2, "rollback_if": ["errors>0"], "min_events": 1}
        assert list(a.update(name, "3", 10.0, canary))[-1]["phase"] == "rolled_back"  # these nodes report no counts
        assert list(b.rollback(name))[-1]["phase"] == "done"
        assert a.deployment(name)["version"] == "1"
    assert a.audit(name) == b.audit(name)
    assert a.epoch(name, "s", 1) == b.epoch(name, "s", 1)


def test_one_process_decides_about_applications_and_the_other_goes_on_with_its_journal_when_it_dies(pair: Pair, tmp_path: Path) -> None:
    both, app, node = pair.client(0, 1), fresh("taxi"), fresh("node")
    name = operator(both, tmp_path, "1")
    both.heartbeat(node)
    both.create_application(app, [name], mode="auto", response_ms=200, interval_s=0.3, settings={"token_s": 0.1, "idle_token_s": 0.0})
    numbers = iter(range(1, 10_000))

    def grants() -> list[object]:
        asked = {"operator": name, "kind": "scale_out", "replicas": 2, "gain": 3.0, "cost_ms": 1.0, "why": "busy"}
        part = {"deployment": name, "response_ms": 190.0, "number": next(numbers), "replicas": 1, "proposals": [asked]}
        try:
            return list(both.propose(node, {"use": 0.5, "room": 10, "delays_ms": {}, "deployments": [part], "done": []})["grants"])
        except errors.Unavailable:  # the client switches to the other process
            return []

    wait_until(lambda: bool(grants()), 30, "a grant")
    empty = {"use": 0.5, "room": 10, "delays_ms": {}, "deployments": [], "done": []}
    leads = []
    for at in (0, 1):
        try:
            pair.client(at).propose(fresh("other"), empty)
            leads.append(at)
        except errors.Unavailable as e:
            assert "another process of this registry decides about applications" in str(e)
    assert len(leads) == 1
    assert [at for at in (0, 1) if pair.client(at).application(app)["now"]] == leads
    leader = ("a", "b")[leads[0]]
    os.kill(pair.running[leader].process.pid, signal.SIGKILL)
    wait_until(lambda: bool(grants()), 30, "a grant of the other process")
    pair.start(leader)
    found = replayed_application(app, both.application_journal(app))
    assert found["same"] and found["decisions"] >= 2
    both.remove_application(app)


def test_a_person_signed_in_at_one_process_is_so_at_the_other(pair: Pair, tmp_path: Path) -> None:
    name = operator(pair.client(0), tmp_path, "1", "2")
    with httpx.Client(timeout=bound(20)) as browser, BeatingNode(pair.client(1), fresh("n")):
        signed = browser.post(f"{pair.urls[0]}/console/sign-in", data={"token": pair.token, "name": "ada"})
        assert signed.status_code in (200, 302, 303)
        page = browser.get(f"{pair.urls[1]}/console/deployments/{name}")
        assert page.status_code == 200 and "ada" in page.text


def test_many_writers_at_both_processes_are_one_after_the_other(pair: Pair, tmp_path: Path) -> None:
    clients = [pair.client(0), pair.client(1)]
    name = operator(clients[0], tmp_path, "1", "2")
    before = clients[0].health()["generation"]
    with BeatingNode(clients[0], fresh("n")):
        both = threading.Barrier(2)

        def begin(client: Registry) -> str:
            both.wait(bound(10))
            try:
                return str(list(client.update(name, "2"))[-1]["phase"])
            except errors.Conflict:
                return "conflict"

        with ThreadPoolExecutor(8) as pool:
            outcomes = sorted(pool.map(begin, clients))
            assert outcomes in (["conflict", "done"], ["done", "done"])
            scaled = list(pool.map(lambda i: clients[i % 2].scale(name, 2 + i)["generation"], range(40)))
            epochs = list(pool.map(lambda i: clients[i % 2].epoch(name, "s", i // 4)["version"], range(40)))
            plans = list(pool.map(lambda i: clients[i % 2].plan(name), range(40)))
    assert len(set(scaled)) == 40, "no two changes have one generation"
    assert len(set(plans)) == 40 and all(clients[i].plan(name) > max(plans) for i in (0, 1))
    assert clients[1].wanted("n", wait_s=0)["generation"] >= before + 40
    assert set(epochs) == {"2"}
    started = [e for e in clients[1].audit(name) if e["action"] == "update.done"]
    assert len(started) == outcomes.count("done")


@pytest.mark.parametrize("seed", seeds(1))
def test_whichever_process_is_killed_whenever_the_other_one_finishes_what_it_had_begun(pair: Pair, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    client = pair.client(0, 1)
    name = operator(client, tmp_path, "1", "2")
    nodes = [BeatingNode(pair.client(*order), fresh("n")) for order in ((0, 1), (1, 0), (0, 1))]
    expected = []
    try:
        for turn in range(KILLS):
            version = "2" if turn % 2 == 0 else "1"
            doomed = rng.choice("ab")
            began, phases = threading.Event(), list[str]()

            def follow(version: str = version, began: threading.Event = began, phases: list[str] = phases) -> None:
                stream = pair.client(*rng.choice([(0, 1), (1, 0)])).update(name, version, timeout_s=bound(60))
                for event in stream:
                    phases.append(event["phase"])
                    began.set()

            watcher = threading.Thread(target=follow)
            watcher.start()
            assert began.wait(bound(30))
            time.sleep(rng.uniform(0, 0.15))
            process = pair.running[doomed].process
            os.kill(process.pid, signal.SIGKILL)
            watcher.join(bound(60))
            assert phases[-1] == "done" and Counter(phases)["promoting"] == 1, phases
            expected.append(version)
            process.wait(bound(10))
            pair.start(doomed)
            assert client.deployment(name)["version"] == version
    finally:
        for node in nodes:
            with contextlib.suppress(errors.Unavailable):
                node.__exit__()
    done = [e for e in client.audit(name) if e["action"] == "update.done"]
    assert len(done) == KILLS, "each update has ended once"
    phases = Counter(e["phase"] for e in client.update_status(_last(client, name))["events"])
    assert (phases["ready"], phases["promoting"], phases["answering"], phases["done"]) == (3, 1, 3, 1)


def _last(client: Registry, name: str) -> str:
    detail = next(e["detail"] for e in client.audit(name) if e["action"] == "update")
    return str(detail.rpartition("update ")[2])


def test_an_update_past_its_deadline_is_ended_once_whichever_process_looks(pair: Pair, tmp_path: Path) -> None:
    a, b = pair.client(0), pair.client(1)
    name = operator(a, tmp_path, "1", "2")
    hold = threading.Event()
    with BeatingNode(a, fresh("slow"), lambda _: hold.wait(bound(30))):
        events = list(b.update(name, "2", timeout_s=0.5))
        hold.set()
    assert events[-1]["phase"] == "failed" and [e["phase"] for e in events].count("failed") == 1
    assert [e["action"] for e in a.audit(name)].count("update.failed") == 1


def test_a_writer_that_stands_still_loses_its_turn_and_writes_nothing(pair: Pair, tmp_path: Path) -> None:
    client = pair.client(0, 1)
    name = operator(client, tmp_path, "1")
    engine = open_engine(pair.database)
    with Session(engine) as still:
        pg.take_writers_lock(still)
        still.execute(text("UPDATE deployments SET slots = 99 WHERE name = :name"), {"name": name})
        assert client.scale(name, 3)["slots"] == 3, "after the standing writer's transaction has been ended"
        with pytest.raises(Exception, match=r"terminat|closed"):
            still.commit()
    engine.dispose()
    assert pair.client(1).deployment(name)["slots"] == 3


def test_who_cannot_write_for_ten_seconds_answers_503_and_may_be_asked_again(pair: Pair, tmp_path: Path) -> None:
    name = operator(pair.client(0), tmp_path, "1")
    engine = open_engine(pair.database)
    with (
        Session(engine) as long_writer,
        httpx.Client(base_url=pair.urls[0], headers={"Authorization": f"Bearer {pair.token}"}, timeout=bound(60)) as asking,
    ):
        pg.take_writers_lock(long_writer)
        pg.stand_still_allowed(long_writer)
        asked_at, scale = time.monotonic(), f"/api/v1/deployments/{name}/scale"
        refused = asking.post(scale, json={"slots": 3})
        assert refused.status_code == 503 and "too busy; try again" in refused.text
        assert time.monotonic() - asked_at >= 10
        long_writer.rollback()
        assert asking.post(scale, json={"slots": 3}).json()["slots"] == 3
    engine.dispose()


def test_connections_that_break_are_made_again_and_who_waits_still_hears(pair: Pair, tmp_path: Path) -> None:
    a, b = pair.client(0), pair.client(1)
    name = operator(a, tmp_path, "1", "2")
    engine = open_engine(pair.database)
    with engine.connect() as connection:
        ended = connection.execute(
            text(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        ).scalar()
    engine.dispose()
    assert ended
    generation = wait_for(lambda: a.wanted("w", wait_s=0))["generation"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.wanted, "w", generation, 20)
        wait_for(lambda: b.scale(name, 7))
        assert next(d for d in waiting.result(bound(30))["deployments"] if d["name"] == name)["slots"] == 7


def wait_for(step: Callable[[], dict]) -> dict:  # type: ignore[type-arg]
    """Repeat the step until the registry answers, and return the answer."""
    found: list[dict] = []  # type: ignore[type-arg]

    def answered() -> bool:
        with contextlib.suppress(errors.Unavailable):
            found.append(step())
        return bool(found)

    wait_until(answered, 20, "an answer")
    return found[0]


def test_who_waits_hears_of_commits_after_listening_raised(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = pg.OtherProcesses._hear, []

    def hear(self: pg.OtherProcesses, hub: Hub) -> None:
        calls.append(hub)
        if len(calls) == 1:
            raise RuntimeError("nobody expects this")
        original(self, hub)

    monkeypatch.setattr(pg.OtherProcesses, "_hear", hear)
    before, hub = supervised.errors().get("database-notifications", 0), Hub(4)
    store = Store(pair.database, hub)
    try:
        wait_until(lambda: len(calls) == 2 and hub.commits > 1, 20, "it to listen again")
        seen = hub.commits
        pair.client(0).heartbeat(fresh("n"))
        assert hub.wait_commit(seen, 30)
    finally:
        hub.close()
        wait_until(lambda: not any(t.name.startswith("database-notifications") for t in threading.enumerate()), 20, "its end")
        store.close()
    assert supervised.errors()["database-notifications"] - before == 1


def test_an_upload_begun_at_one_process_is_finished_at_the_other_and_never_by_both_at_once(pair: Pair) -> None:
    content, head = b"x" * 100_000, {"Authorization": f"Bearer {pair.token}"}
    with httpx.Client(base_url=pair.urls[0], headers=head) as a, httpx.Client(base_url=pair.urls[1], headers=head) as b:
        where = a.post("/v2/two/blobs/uploads/").headers["Location"]
        assert a.patch(where, content=content[:60_000]).status_code == 202
        assert b.get(where).headers["Range"] == "0-59999"
        gate = threading.Event()

        def slowly() -> Iterator[bytes]:
            yield content[60_000:80_000]
            gate.wait(bound(30))
            yield content[80_000:]

        def busy() -> bool:
            with (pair.shared / "blobs" / "incoming" / where.rpartition("/")[2]).open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
            return False

        with ThreadPoolExecutor(1) as pool:
            length = {"Content-Length": "40000"}
            finishing = pool.submit(lambda: b.put(where, params={"digest": sha(content)}, content=slowly(), headers=length))
            wait_until(busy, 10, "the second part's begin")
            refused = a.patch(where, content=b"y")
            gate.set()
            assert finishing.result(bound(30)).status_code == 201
        assert refused.status_code == 400 and "another request" in refused.text
        assert a.get(f"/v2/two/blobs/{sha(content)}").content == content
        assert a.get(where).status_code == 404


def test_processes_that_would_not_be_one_registry_are_refused_with_the_remedy(pair: Pair, tmp_path: Path) -> None:
    operator(pair.client(0), tmp_path, "1")
    one = ["--database", f"sqlite:///{tmp_path / 'one.db'}"]
    lone = start(tmp_path / "lone", *one)
    cases = {
        "a folder of its own": ["--database", pair.database],
        "the folder of another registry": ["--database", pair.database, "--shared", str(tmp_path / "other")],
        "the folder, not the database": ["--shared", str(pair.shared)],
        "one SQLite file": one,
    }
    start(tmp_path / "other").stop()
    started = {}
    for number, (case, options) in enumerate(cases.items()):
        with (tmp_path / f"log{number}").open("wb") as log:
            arguments = ["--data", str(tmp_path / f"third{number}"), *options]
            started[case] = forked.start("registry", arguments, output=(log.fileno(), log.fileno()))
    for number, (case, process) in enumerate(started.items()):
        assert process.wait(bound(30)) != 0, case
        assert "--shared" in (tmp_path / f"log{number}").read_text(), case
    lone.stop()
    assert pair.client(0).health()["status"] == pair.client(1).health()["status"] == "ok"
