"""Nothing is lost and nothing is stored in part: garbage collection under pushes, killed registries, power cuts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import event

import registry.http.stream
import registry.store.blobs
from registry.app import create_app
from registry.config import RegistrySettings
from registry.domain import application_managers
from registry.http.web import Services
from tests.conftest import bound, wait_until
from tests.registry.conftest import Image, Running, image, sha
from udo_protocol import supervised

pytestmark = pytest.mark.long

Start = Callable[..., Running]


@contextlib.contextmanager
def serving(config: RegistrySettings) -> Iterator[Flask]:
    """The application in this process, where a test can set its clock and watch its steps."""
    app = create_app(config)
    try:
        yield app
    finally:
        parts: Services = app.extensions["registry"]
        parts.hub.close()
        for thread in threading.enumerate():
            if thread.name == "update-deadlines":
                thread.join(bound(10))
        parts.store.close()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Flask]:
    """An application over an empty directory, its housekeeping at start done."""
    with serving(RegistrySettings(tmp_path / "data", tmp_path / "token", database_url=f"sqlite:///{tmp_path / 'r.db'}")) as app:
        hub = app.extensions["registry"].hub
        wait_until(lambda: hub.commits >= 3, 10, "the first round of housekeeping")
        yield app


class Closing(FlaskClient):
    """A test client that reads and closes every reply, as a server does."""

    def open(self, *args: Any, **options: Any) -> Any:
        return super().open(*args, **{**options, "buffered": True})


def _client(app: Flask) -> FlaskClient:
    app.test_client_class = Closing
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {app.extensions['registry'].tokens[0]}"
    return client


def _push(client: FlaskClient, one: Image) -> None:
    for blob in one.blobs:
        assert client.post(f"/v2/{one.name}/blobs/uploads/?digest={sha(blob)}", data=blob).status_code == 201
    assert client.put(f"/v2/{one.name}/manifests/{one.version}", data=one.manifest).status_code == 201


@pytest.mark.short
def test_a_blob_that_a_push_was_told_is_there_stays_until_its_manifest_comes(app: Flask) -> None:
    client, parts = _client(app), app.extensions["registry"]
    now = time.time()
    parts.clock = lambda: now
    old = image("op", "1")
    for blob in (*old.blobs, b"garbage"):
        client.post(f"/v2/op/blobs/uploads/?digest={sha(blob)}", data=blob)
    day = parts.config.unused_kept_s
    now += 0.9 * day
    assert client.head(f"/v2/op/blobs/{sha(old.blobs[0])}").status_code == 200
    assert client.post(f"/v2/op/blobs/uploads/?mount={sha(old.blobs[1])}&from=op").status_code == 201
    now += 0.9 * day

    assert client.post("/api/v1/gc").json == {"blobs": 1, "uploads": 0}

    assert client.head(f"/v2/op/blobs/{sha(b'garbage')}").status_code == 404
    assert client.put("/v2/op/manifests/1", data=old.manifest).status_code == 201
    now += 10 * day
    assert client.post("/api/v1/gc").json == {"blobs": 0, "uploads": 0}
    assert client.get(f"/v2/op/blobs/{sha(old.blobs[1])}").data == old.blobs[1]


@pytest.mark.short
def test_a_push_that_comes_between_a_collections_commit_and_its_removal_of_files_keeps_its_blobs(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push waits for the collection: it must not be told that a blob exists which is about to be removed."""
    client, parts = _client(app), app.extensions["registry"]
    one = image("op", "1")
    for blob in one.blobs:  # the blobs of a push that never sent its manifest
        assert client.post(f"/v2/op/blobs/uploads/?digest={sha(blob)}", data=blob).status_code == 201
    pusher, remove = threading.Thread(target=lambda: _push(_client(app), one)), parts.blobs.remove

    def push_first(digest: str) -> None:
        if pusher.ident is None:
            pusher.start()
            pusher.join(1.0)  # a push that did not have to wait is done by now
        remove(digest)

    monkeypatch.setattr(parts.blobs, "remove", push_first)
    assert client.post("/api/v1/gc", json={"unused_s": 0}).json["blobs"] == len(one.blobs)  # type: ignore[index]
    pusher.join(bound(20))
    assert client.get("/v2/op/manifests/1").status_code == 200
    assert [client.get(f"/v2/op/blobs/{sha(blob)}").data for blob in one.blobs] == list(one.blobs)


def test_deadlines_are_kept_after_looking_after_them_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = registry.http.stream.updates.overdue, []

    def overdue(*args: Any) -> bool:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("nobody expects this")
        return original(*args)

    before = supervised.errors().get("update-deadlines", 0)
    monkeypatch.setattr(registry.http.stream.updates, "overdue", overdue)
    monkeypatch.setattr(registry.http.stream.history, "are_open", lambda _: True)
    with serving(RegistrySettings(tmp_path / "data", tmp_path / "token", database_url=f"sqlite:///{tmp_path / 'r.db'}")) as app:
        wait_until(lambda: len(calls) > 2, 20, "it to look again")
        assert app.test_client().get("/healthz").json["background_errors"] >= 1  # type: ignore[index]
    assert supervised.errors()["update-deadlines"] - before == 1


def test_applications_are_decided_about_after_deciding_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = application_managers.applications.wishes, []

    def wishes(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("nobody expects this")
        return original(*args)

    before = supervised.errors().get("applications", 0)
    monkeypatch.setattr(application_managers.applications, "wishes", wishes)
    with serving(RegistrySettings(tmp_path / "data", tmp_path / "token", database_url=f"sqlite:///{tmp_path / 'r.db'}")):
        wait_until(lambda: len(calls) > 1, 20, "it to look again")
    assert supervised.errors()["applications"] - before == 1


def test_a_registry_that_stood_still_hears_the_nodes_before_it_judges_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP for a minute: what nodes sent meanwhile is read only when it goes on."""
    slept, judged = [0.0], []
    monkeypatch.setattr(registry.http.stream, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + slept[0]))
    monkeypatch.setattr(registry.http.stream.updates, "overdue", lambda *_: judged.append(slept[0]) and False)
    monkeypatch.setattr(registry.http.stream.history, "are_open", lambda _: True)
    config = RegistrySettings(tmp_path / "data", tmp_path / "token", database_url=f"sqlite:///{tmp_path / 'r.db'}")
    with serving(dataclasses.replace(config, node_live_s=1.0)):
        wait_until(lambda: len(judged) > 1, 20, "it to judge")
        slept[0] = 60.0
        began = time.monotonic()
        wait_until(lambda: judged[-1] == 60.0, 20, "it to judge again")
        assert time.monotonic() - began > 1.0


def test_collecting_without_pause_harms_no_push(start_registry: Start, tmp_path: Path) -> None:
    running = start_registry()
    ending, failures, pushed = threading.Event(), [], []

    def pusher(number: int) -> None:
        client, garbage = running.http(), os.urandom(100)
        for round_ in range(6):
            one = image(f"op{number}", str(round_), code=f"shared = {round_}")
            client.post(f"/v2/{one.name}/blobs/uploads/", params={"digest": sha(garbage)}, content=garbage)
            for blob in one.blobs:
                if client.head(f"/v2/{one.name}/blobs/{sha(blob)}").status_code == 404:
                    client.post(f"/v2/{one.name}/blobs/uploads/", params={"mount": sha(blob)})
                    client.post(f"/v2/{one.name}/blobs/uploads/", params={"digest": sha(blob)}, content=blob)
            reply = client.put(f"/v2/{one.name}/manifests/{round_}", content=one.manifest)
            (pushed if reply.status_code == 201 else failures).append((one, reply.text))
            if round_ % 3 == 2:
                client.delete(f"/v2/{one.name}/manifests/{sha(one.manifest)}")
                pushed.pop()

    def collector() -> None:
        client = running.http()
        while not ending.is_set():
            client.post("/api/v1/gc", json={"unused_s": 5}, timeout=bound(20))

    threads = [threading.Thread(target=pusher, args=(n,)) for n in range(3)]
    sweeper = threading.Thread(target=collector)
    for t in (*threads, sweeper):
        t.start()
    for t in threads:
        t.join(bound(60))
    ending.set()
    sweeper.join(bound(20))
    assert not failures
    client = running.http()
    client.post("/api/v1/gc", json={"unused_s": 0})
    _all_whole(client)
    needed = {b for n in range(3) for r in (0, 1, 3, 4) for b in _digests(image(f"op{n}", str(r), code=f"shared = {r}"))}
    assert {f"sha256:{p.name}" for p in (running.data / "blobs" / "sha256").iterdir()} == needed


def _digests(one: Image) -> list[str]:
    return [sha(one.manifest), *map(sha, one.blobs)]


def _all_whole(client: httpx.Client) -> set[tuple[str, str]]:
    """Read every tag's manifest and blobs, check their digests, and return the tags of all repositories."""
    found = set()
    for name in client.get("/v2/_catalog").json()["repositories"]:
        for tag in client.get(f"/v2/{name}/tags/list").json()["tags"]:
            reply = client.get(f"/v2/{name}/manifests/{tag}")
            assert reply.headers["Docker-Content-Digest"] == sha(reply.content)
            table = json.loads(reply.content)
            for descriptor in (table["config"], *table["layers"]):
                assert sha(client.get(f"/v2/{name}/blobs/{descriptor['digest']}").content) == descriptor["digest"]
            found.add((name, tag))
    return found


def test_a_registry_killed_at_any_moment_has_all_it_acknowledged_and_only_whole_images(start_registry: Start) -> None:
    moments = random.Random(1)
    acknowledged: set[tuple[str, str]] = set()
    running = start_registry()
    for round_ in range(2):
        ending = threading.Event()

        def pusher(number: int, running: Running, round_: int, ending: threading.Event) -> None:
            client = running.http()
            with contextlib.suppress(httpx.HTTPError):
                for i in range(10_000):
                    one = image(f"op{number}", f"{round_}-{i}", code=f"v = {i}")
                    for blob in one.blobs:
                        client.post(f"/v2/{one.name}/blobs/uploads/", params={"digest": sha(blob)}, content=blob)
                    if client.put(f"/v2/{one.name}/manifests/{one.version}", content=one.manifest).status_code == 201:
                        acknowledged.add((one.name, one.version))
                    if ending.is_set():
                        return

        threads = [threading.Thread(target=pusher, args=(n, running, round_, ending)) for n in range(3)]
        before = len(acknowledged)
        for t in threads:
            t.start()
        wait_until(lambda before=before: len(acknowledged) >= before + moments.randint(3, 12), 30, "some pushes")  # type: ignore[misc]
        (worker,) = psutil.Process(running.process.pid).children()
        for process in (running.process, worker):
            process.kill()
        ending.set()
        for t in threads:
            t.join(bound(30))
        running.process.wait(bound(10))
        running = start_registry()
        client = running.http()
        assert acknowledged <= _all_whole(client)
        versions = {(o["name"], v["version"]) for o in client.get("/api/v1/operators").json()["operators"] for v in o["versions"]}
        assert versions == _all_whole(client)


def test_before_a_manifest_is_acknowledged_all_of_it_is_on_the_disk_and_files_go_after_the_commit(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which a power cut is harmless: file, directory, database, answer; for a removal: database, then file."""
    client, parts, steps = _client(app), app.extensions["registry"], []
    fsync, replace, unlink = os.fsync, os.replace, Path.unlink
    names = {parts.blobs.path("sha256:" + "0" * 64).parent: "directory"}

    def watch_fsync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)
        steps.append(f"sync {names.get(path, 'file')}")

    def watch_replace(source: str | Path, target: str | Path) -> None:
        replace(source, target)
        steps.append("place")

    def watch_unlink(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        steps.append("remove")

    monkeypatch.setattr(registry.store.blobs.os, "fsync", watch_fsync)
    monkeypatch.setattr(registry.store.blobs.os, "replace", watch_replace)
    monkeypatch.setattr(Path, "unlink", watch_unlink)
    durable = parts.store._durable.kw["bind"]
    own = threading.get_ident()  # the registry's own threads may commit meanwhile
    event.listen(durable, "commit", lambda connection: steps.append("commit") if threading.get_ident() == own else None)
    with durable.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL: a commit is on the disk

    one = image("op", "1")
    stored = ["sync file", "place", "sync directory", "commit"]
    for blob in one.blobs:
        client.post(f"/v2/op/blobs/uploads/?digest={sha(blob)}", data=blob)
    assert steps == stored * 2
    steps.clear()
    assert client.put("/v2/op/manifests/1", data=one.manifest).status_code == 201
    assert steps == stored
    steps.clear()
    assert client.delete(f"/v2/op/manifests/{sha(one.manifest)}").status_code == 202
    assert steps == ["commit"]
    assert client.post("/api/v1/gc", json={"unused_s": 0}).json == {"blobs": 3, "uploads": 0}
    assert steps.index("commit", 1) < steps.index("remove") and steps.count("remove") == 3


def test_versions_of_a_registry_from_before_repositories_are_pulled_and_kept(tmp_path: Path) -> None:
    from alembic import command
    from alembic.config import Config as AlembicConfig
    from sqlalchemy import create_engine, text

    one = image("old", "1")
    config = RegistrySettings(tmp_path / "data", tmp_path / "token")
    blobs = registry.store.blobs.Blobs(tmp_path / "data" / "blobs")
    for blob in (one.manifest, *one.blobs):
        blobs.write(sha(blob), blob)
    engine = create_engine(config.database)
    alembic = AlembicConfig()
    alembic.set_main_option("script_location", str(Path(registry.__file__).parent / "migrations"))
    with engine.begin() as connection:
        alembic.attributes["connection"] = connection
        command.upgrade(alembic, "0001")
        row = {"d": sha(one.manifest), "b": json.dumps([sha(one.manifest), *map(sha, one.blobs)])}
        columns = "name, version, digest, manifest, layers, blobs, created_at, pushed_by"
        connection.execute(text(f"INSERT INTO versions ({columns}) VALUES ('old', '1', :d, '{{}}', '[]', :b, 1, 'x')"), row)
    engine.dispose()

    with serving(config) as app:
        client = _client(app)
        assert client.post("/api/v1/gc", json={"unused_s": 0}).json == {"blobs": 0, "uploads": 0}
        assert client.get("/v2/old/manifests/latest").data == one.manifest
        assert client.get("/v2/old/tags/list").json["tags"] == ["1"]
        assert client.get(f"/v2/old/blobs/{sha(one.blobs[1])}").data == one.blobs[1]


@pytest.mark.short
def test_long_polls_are_no_sign_of_life_of_a_node(app: Flask) -> None:
    """A dead node's last poll ends late, and its successor polls before it is known: neither keeps the former disk live."""
    client, now = _client(app), 1000.0
    app.extensions["registry"].clock = lambda: now
    _push(client, image("op", key=["card"]))

    def asks(disk: str) -> int:
        return client.get(f"/api/v1/nodes/n/wanted?wait_s=0&incarnation={disk}").status_code

    def beats(disk: str) -> int:
        return client.post("/api/v1/nodes/n/heartbeat", json={"listen": "n:7070", "incarnation": disk}).status_code

    def live() -> bool:
        return client.get("/api/v1/nodes").get_json()["nodes"][0]["live"]

    assert (beats("former"), live(), asks("other"), beats("other")) == (200, True, 409, 409)
    now += app.extensions["registry"].config.node_live_s + 1
    assert (asks("former"), asks("other"), live()) == (200, 200, False)
    keyed = {"name": "d", "operator": "op", "version": "1", "slots": 1, "over_nodes": True}
    refused = client.post("/api/v1/deployments", json=keyed)
    assert refused.status_code == 409 and "node" in refused.get_json()["error"]["message"], refused.get_json()
    assert (beats("other"), live(), asks("former")) == (200, True, 409)
    assert client.post("/api/v1/deployments", json=keyed).status_code == 201


def test_a_full_disk_is_told_as_such_and_an_update_works_when_there_is_room(app: Flask) -> None:
    client = _client(app)
    for version in ("1", "2"):
        _push(client, image("op", version))
    assert client.post("/api/v1/deployments", json={"name": "d", "operator": "op", "version": "1"}).status_code == 201
    full = [True]
    for engine in app.extensions["registry"].store._engines:

        @event.listens_for(engine, "checkout")
        def _limit(connection: Any, *_: Any) -> None:
            connection.execute(f"PRAGMA max_page_count={1 if full[0] else 1 << 30}")

    client.post("/api/v1/nodes/n/heartbeat", json={})
    change = {"version": "2", "config": {"env": {"LONG": "x" * (1 << 20)}}}
    answer = client.post("/api/v1/deployments/d/update", json=change)
    assert (answer.status_code, answer.json["error"]["code"]) == (507, "unavailable")  # type: ignore[index]
    assert "the registry's disk is full" in answer.json["error"]["message"]  # type: ignore[index]
    full[0] = False
    client.post("/api/v1/nodes/n/heartbeat", json={})
    assert client.post("/api/v1/deployments/d/update", json=change).status_code == 202
