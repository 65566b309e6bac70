"""Backups of a registry under load: each is restored whole, or refused; and the registry that is restored from one."""

from __future__ import annotations

import itertools
import json
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from registry.content import backup, restore
from registry.domain.audit import Caller
from registry.store import identity
from registry.store.blobs import Blobs
from registry.store.hub import Hub
from registry.store.store import Store
from tests.conftest import bound, wait_until
from tests.registry.conftest import FakeNode, Running, image, numbered_ahead
from tests.support.seeds import seeds
from tests.support.selection import long
from udo_cli.commands import registry as command
from udo_protocol import errors
from udo_protocol.registry.api import Registry

Start = Callable[..., Running]
BACKUPS = 3


def whole(client: Registry, tmp_path: Path) -> int:
    """Check that everything named is stored and was recorded in the commit that made it; return the number of versions."""
    pushed = {e["detail"] for e in client.audit(limit=1000) if e["action"] == "push"}
    versions = [(o["name"], v["version"]) for o in client.operators() for v in o["versions"]]
    for name, version in versions:
        assert f"{name}@{version}" in pushed
        described = client.version(name, version)
        assert client.manifest(name, version)
        for layer in described["layers"]:
            client.fetch_blob(name, layer["digest"], tmp_path / "layer")
    for deployment in client.deployments():
        assert (deployment["operator"], deployment["version"]) in versions
        done = [e for e in client.audit(deployment["name"], 1000) if e["action"] in ("update.done", "deploy")]
        assert done[0]["to_digest"] == deployment["digest"] or _under_way(client, deployment["name"])
    return len(versions)


def _under_way(client: Registry, name: str) -> bool:
    rows = [e["action"] for e in client.audit(name, 1000) if e["action"].startswith("update")]
    return rows[0] == "update"


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize(("source", "target"), [("sqlite", "postgresql"), long("postgresql", "sqlite")])
def test_each_backup_made_during_pushes_and_updates_is_one_moment_of_the_registry(
    source: str, target: str, seed: int, start_registry: Start, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def started(kind: str, place: str) -> Running:
        url = request.getfixturevalue("postgresql")(f"backup_{source}_{place}") if kind == "postgresql" else ""
        return start_registry(*(["--database", url] if url else []), data=tmp_path / place)

    live, other = started(source, "live"), started(target, "other")
    client, restored, rng = live.client(timeout_s=bound(30)), other.client(timeout_s=bound(30)), random.Random(seed)
    image("op", "0").push(client, tmp_path)
    client.deploy("op", "op", "0", secrets={"KEY": "hidden"})
    over, pushed = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        own = live.client(timeout_s=bound(30))
        (tmp_path / "pushing").mkdir()
        for number in itertools.count(1):
            if over.is_set():
                return
            image("op", str(number), f"v = {number}").push(own, tmp_path / "pushing")
            assert list(own.update("op", str(number)))[-1]["phase"] == "done"
            pushed.release()

    with FakeNode(live.client(), "n"):
        worker = threading.Thread(target=work)
        worker.start()
        try:
            files = []
            for number in range(BACKUPS):
                for _ in range(rng.randrange(1, 4)):
                    assert pushed.acquire(timeout=bound(30))
                files.append(tmp_path / f"{number}.tar")
                client.backup(files[-1])
        finally:
            over.set()
            worker.join(bound(60))
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    known = [whole(client, tmp_path)]
    for file in reversed(files):
        with file.open("rb"):
            restored.restore(file, replace=file is not files[-1])
        known.append(whole(restored, tmp_path))
    assert known == sorted(known, reverse=True) and known[-1] >= 2

    with FakeNode(other.client(), "n2") as node:  # the restored registry goes on: numbers, updates, secrets
        wait_until(lambda: bool(node.polls), 10, "a poll")
        assert node.polls[-1]["deployments"][0]["config"]["secrets"] == {"KEY": "hidden"}
        image("op", "next", "v = 'next'").push(restored, tmp_path)
        wait_until(lambda: all(e["action"] != "update" for e in restored.audit("op", 1)), 20, "the end of an update that was under way")
        assert list(restored.update("op", "next"))[-1]["phase"] == "done"


@pytest.mark.long
def test_a_restored_registry_is_another_one_and_nodes_hear_of_it_at_once(start_registry: Start, tmp_path: Path) -> None:
    running = start_registry()
    client = running.client(timeout_s=bound(30))
    for version in ("1", "2"):
        image("op", version, f"v = {version}").push(client, tmp_path)
    client.deploy("op", "op", "1")
    before = client.health()
    client.backup(tmp_path / "b.tar")
    ahead = numbered_ahead(running)
    with FakeNode(running.client(), "n") as node:
        assert list(client.update("op", "2"))[-1]["phase"] == "done"
        with pytest.raises(errors.Conflict, match="not empty .2 images, 1 deployments.*--replace"):
            client.restore(tmp_path / "b.tar")
        assert client.deployment("op")["version"] == "2"
        done = client.restore(tmp_path / "b.tar", replace=True)
        wait_until(lambda: node.polls[-1]["deployments"][0]["version"] == "1", 10, "the node to hear of it")
        assert node.polls[-1]["generation"] > max(p["generation"] for p in node.polls[:-1])
    after = client.health()
    assert (done["was"], done["registry"]) == (before["registry"], after["registry"]) and before["registry"] != after["registry"]
    assert client.audit(limit=1)[0]["action"] == "restore"
    assert client.plan("op") == ahead + 1, "plans that were made since the backup are not forgotten"
    assert [n["node"] for n in client.nodes()] == [], "who left meanwhile has left"
    token = running.token
    running.stop()
    assert start_registry().client(token).health()["registry"] == after["registry"]


@pytest.mark.parametrize("seed", seeds(1))
def test_a_file_that_is_damaged_or_cut_off_changes_nothing(seed: int, start_registry: Start, tmp_path: Path) -> None:
    running, rng = start_registry(), random.Random(seed)
    client = running.client(timeout_s=bound(30))
    image("op", "1").push(client, tmp_path)
    client.deploy("op", "op", "1")
    client.backup(tmp_path / "b.tar")
    good = (tmp_path / "b.tar").read_bytes()
    blob = good.index(image("op", "1").blobs[1][:64])  # the offset of the code layer
    before = (client.operators(), client.deployments(), client.audit(), client.health()["registry"])
    bad = [good[: rng.randrange(len(good) - 1024)] for _ in range(12)]
    bad += [
        good[:blob] + bytes([good[blob] ^ 1]) + good[blob + 1 :],
        b"",
        b"no archive at all" * 100,
        good.replace(b'"format": 1', b'"format": 9'),
    ]
    for number, content in enumerate(bad):
        (tmp_path / "bad.tar").write_bytes(content)
        with pytest.raises(errors.UsageError, match=r"backup|damaged"):
            client.restore(tmp_path / "bad.tar", replace=True)
        assert (client.operators(), client.deployments(), client.audit(), client.health()["registry"]) == before, number
    assert list((running.data / "blobs" / "incoming").iterdir()) == []
    with pytest.raises(errors.Unauthorized):
        running.client(token=None).backup(tmp_path / "c.tar")
    assert not list(tmp_path.glob("*c.tar*"))


def test_a_registry_whose_restore_was_not_committed_starts_again_as_the_one_it_was(tmp_path: Path) -> None:
    store, blobs = Store(f"sqlite:///{tmp_path / 'r.db'}", Hub(1)), Blobs(tmp_path)

    def started() -> int:
        with store.write() as session:
            return identity.require_same(session, tmp_path, blobs)

    def restored(commits: bool) -> int:
        with store.write() as session:
            head, rows = backup.rows(session, "r", 0.0)
            saved = restore.Unpacked(head, rows, {})
            done = restore.put(session, blobs, tmp_path, Caller("ada", "here", 0.0), saved, "r", replace=True)
            if not commits:
                raise OSError("the disk is full")
        return int(done["registry"])

    first = started()
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is full"):
            restored(commits=False)
    assert started() == first
    assert restored(commits=True) == started() != first
    assert (tmp_path / identity.MARK).read_text() == f"{started()}\n", "it is no other registry's folder any more"
    store.close()


def test_the_commands_make_and_restore_a_backup(start_registry: Start, tmp_path: Path) -> None:
    running, other = start_registry(), start_registry(data=tmp_path / "other")
    client = running.client()
    image("op", "1").push(client, tmp_path)
    file = str(tmp_path / "b.tar")

    def udo(at: Running, *words: str) -> str:
        env = {"UDO_REGISTRY": at.url, "UDO_TOKEN": at.token}
        done = CliRunner().invoke(command.command, list(words), env=env, catch_exceptions=True)
        return done.output + str(done.exception or "")

    assert json.loads(udo(running, "backup", file, "--json")) == {"file": file, "bytes": Path(file).stat().st_size}
    assert "exists" in udo(running, "backup", file)
    assert "is registry" in udo(other, "restore", file)
    assert "--replace" in udo(other, "restore", file)
    assert "restored" in udo(other, "restore", file, "--replace")
    assert [o["name"] for o in other.client().operators()] == ["op"]
