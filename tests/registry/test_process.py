"""The registry as a process: it stops at once, keeps everything, and refuses settings that cannot work."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine

from registry.store.models import Base
from registry.store.store import migrate, open_engine
from tests.conftest import bound, wait_until
from tests.registry.conftest import FakeNode, Running, image, numbered_ahead
from udo_protocol import errors
from udo_protocol.listening import bindable
from udo_protocol.registry.api import Registry

Start = Callable[..., Running]


def _filled(running: Running, tmp_path: Path) -> Registry:
    client = running.client()
    for version in ("1", "2"):
        image("op", version, f"v = {version}").push(client, tmp_path)
    client.deploy("op", "op", "1", secrets={"KEY": "x"})
    return client


def test_sigterm_ends_long_polls_streams_and_the_process_at_once(start_registry: Start, tmp_path: Path) -> None:
    running = start_registry()
    client = _filled(running, tmp_path)
    client.heartbeat("n")  # a node that never answers holds the update open
    generation = client.wanted("n", wait_s=0)["generation"]
    watcher = running.client(timeout_s=1)
    stream = watcher.update("op", "2")
    next(stream)
    polls = [threading.Thread(target=lambda: client.wanted("n", after=generation + 1, wait_s=30)) for _ in range(5)]
    for t in polls:
        t.start()
    wait_until(lambda: client.health()["waiting_requests"] == 6, 5, "the polls' begin")

    began = time.monotonic()
    running.process.terminate()
    assert running.process.wait(bound(10)) == 0
    took = time.monotonic() - began

    assert took < 20, "the polls would have ended after 30 s"
    for t in polls:
        t.join(bound(10))
    with pytest.raises(errors.Unavailable, match="udo up"):
        list(stream)
    assert not (running.data / "address").exists()


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_keeps_everything(start_registry: Start, tmp_path: Path, end: signal.Signals) -> None:
    running = start_registry()
    client = _filled(running, tmp_path)
    with FakeNode(client, "n"):
        assert [e["phase"] for e in client.update("op", "2")][-1] == "done"
    assigned = client.epoch("op", "run", 1)
    before = (client.deployments(), client.operators(), client.audit(), client.wanted("n", wait_s=0))
    token, pid = running.token, running.process.pid
    os.kill(pid, end)
    running.process.wait(bound(10))

    again = start_registry().client(token)

    assert (again.deployments(), again.operators(), again.audit(), again.wanted("n", wait_s=0)) == before
    assert again.epoch("op", "run", 1) == assigned
    layer = again.version("op", "1")["layers"][0]["digest"]
    again.fetch_blob("op", layer, tmp_path / "layer")


def test_an_update_cut_off_by_a_restart_is_finished_by_its_nodes(start_registry: Start, tmp_path: Path) -> None:
    running = start_registry()
    address = running.url.removeprefix("http://")
    client = _filled(running, tmp_path)
    hold = threading.Event()
    with FakeNode(client, "n", lambda _: hold.wait(bound(30))):
        stream = client.update("op", "2")
        next(stream)
        seen: list[str] = []
        watcher = threading.Thread(target=lambda: seen.extend(e["phase"] for e in stream))
        watcher.start()
        running.process.terminate()
        running.process.wait(bound(10))
        start_registry("--listen", address)
        hold.set()
        watcher.join(bound(20))
        assert seen[-1] == "done"  # the watcher opened its stream again
        assert client.deployment("op")["version"] == "2"
        client.close()


@pytest.mark.long
def test_two_registries_never_share_a_data_directory(start_registry: Start) -> None:
    running = start_registry()
    second = subprocess.run(
        [sys.executable, "-m", "registry", "--data", str(running.data)],
        capture_output=True,
        text=True,
        timeout=bound(60),
        check=False,
    )
    assert second.returncode == 2 and "another registry already serves" in second.stderr
    assert running.client().health()["status"] == "ok"


def test_a_unix_socket_serves_the_same_api(start_registry: Start, tmp_path: Path) -> None:
    running = start_registry("--listen", f"unix:{tmp_path}/r.sock")
    assert running.url == f"unix:{tmp_path}/r.sock"
    client = _filled(running, tmp_path)
    assert client.deployment("op")["version"] == "1"
    assert client.audit("op")[0]["address"] == "local"


@pytest.mark.long
def test_an_address_in_use_is_an_error_that_names_it(start_registry: Start, tmp_path: Path) -> None:
    port = start_registry().url.rpartition(":")[2]
    command = [sys.executable, "-m", "registry", "--data", str(tmp_path / "other"), "--listen", f"127.0.0.1:{port}"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=bound(60), check=False)
    assert second.returncode != 0 and port in second.stderr


def test_a_database_url_that_cannot_work_is_named_with_what_was_expected(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "registry", "--data", str(tmp_path / "data"), "--database", "nosuch://u:pass-word@host/db"]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=bound(60), check=False)
    assert failed.returncode != 0 and "expected one such as sqlite:" in failed.stderr and "pass-word" not in failed.stderr


def test_a_killed_worker_is_replaced_and_nothing_is_lost(start_registry: Start, tmp_path: Path) -> None:
    running = start_registry()
    client = _filled(running, tmp_path)
    (worker,) = psutil.Process(running.process.pid).children()
    worker.kill()
    worker.wait(bound(10))
    patient = running.client()
    wait_until(lambda: _answers(patient), 20, "another worker's start")
    assert [d["name"] for d in client.deployments()] == ["op"]


def _answers(client: Registry) -> bool:
    try:
        return bool(client.health())
    except errors.Unavailable:
        return False


def test_an_address_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(errors.UsageError, match="expected http://host:port"):
        Registry("127.0.0.1:5000")


def test_a_registry_that_is_away_is_named_with_the_remedy() -> None:
    with Registry("http://127.0.0.1:9", timeout_s=1) as client, pytest.raises(errors.Unavailable, match=r"127.0.0.1:9.*udo up"):
        client.deployments()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_migrations_make_exactly_the_tables_of_the_models(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    url = f"sqlite:///{tmp_path / 'r.db'}" if database == "sqlite" else request.getfixturevalue("postgresql")("migrated")
    engine = open_engine(url)
    migrate(engine)
    migrate(engine)  # a second time changes nothing
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_another_database_url_is_used_instead_of_the_default(start_registry: Start, tmp_path: Path) -> None:
    running = start_registry("--database", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    _filled(running, tmp_path)
    engine = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM deployments").scalar() == 1
    engine.dispose()
    assert not (running.data / "registry.db").exists()


def test_the_client_needs_neither_the_server_nor_its_libraries() -> None:
    unwanted = ("flask", "sqlalchemy", "httpx", "pyarrow", "registry")
    code = f"import sys, udo_protocol.registry.api; print([m for m in {unwanted} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=bound(60), check=True).stdout.strip() == "[]"
    )


@pytest.mark.long
def test_a_registry_that_was_away_waits_for_the_nodes_that_were_live_before_it(start_registry: Start, tmp_path: Path) -> None:
    """Nodes could send it no heartbeat while it was away; an update goes on with them once they do."""
    running = start_registry()
    client = _filled(running, tmp_path)
    client.heartbeat("n")
    with sqlite3.connect(running.data / "registry.db") as database:  # the registry and node n were away for an hour, node old for a day
        database.execute("UPDATE nodes SET last_seen = last_seen - 3600")
        columns = "address, driver, capabilities, metrics_address"
        old = f"INSERT INTO nodes (name, {columns}, last_seen) SELECT 'old', {columns}, last_seen - 86400 FROM nodes"
        database.execute(old)
    running.process.kill()
    running.process.wait(bound(10))

    client = start_registry().client(running.token)
    assert client.health()["live_nodes"] == 0
    events = client.update("op", "2")
    first = next(events)
    assert "on 1 node(s), not on old (away since" in first["detail"]
    assert [(n["node"], n["state"]) for n in client.update_status(first["id"])["nodes"]] == [("n", "waiting"), ("old", "gone")]
    with FakeNode(client, "n"):
        last = [first, *events][-1]
    assert (last["phase"], last["detail"]) == ("done", "2 answers, not on old: away")


def test_each_plan_has_a_higher_number_than_all_before_whatever_the_clock_says(start_registry: Start, tmp_path: Path) -> None:
    running = start_registry()
    client = _filled(running, tmp_path)
    begun_ms = int(time.time() * 1000)
    assert begun_ms <= client.plan("op") < client.plan("op"), "above those of a registry whose database was lost"
    ahead = numbered_ahead(running)
    reader = running.client(None)  # a client that may call operators and nothing else
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda _: reader.plan("op"), range(20))) == list(range(ahead + 1, ahead + 21))
    running.process.kill()
    running.process.wait(bound(10))

    again = start_registry().client(None)
    assert again.plan("op") == ahead + 21
    with pytest.raises(errors.NotFound, match="deployment 'oq'"):
        again.plan("oq")


def test_a_registry_comes_back_on_the_port_it_had_and_says_so_where_it_cannot(start_registry: Start) -> None:
    running = start_registry()
    url, port = running.url, int(running.url.rpartition(":")[2])
    for taken in (False, True):
        running.process.kill()
        running.process.wait(bound(10))
        with contextlib.ExitStack() as others:
            if taken:
                wait_until(lambda: bindable(port), 10, "the end of the killed registry's worker")
                others.enter_context(socket.create_server(("127.0.0.1", port)))
            running = start_registry()
        assert (running.url == url) is not taken
    assert f"port {port} was used before and is taken" in running.log
