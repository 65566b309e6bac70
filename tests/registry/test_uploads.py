"""Abandoned uploads are removed: bounded in age and number, and never at the cost of a push in progress."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from registry.config import RegistrySettings
from tests.conftest import bound, wait_until
from tests.registry.conftest import Running, sha
from udo_protocol.errors import Unavailable

Start = Callable[..., Running]
KEPT_S, MOST, SILENCE_S = RegistrySettings.upload_kept_s, RegistrySettings.uploads_most, RegistrySettings.silence_s


def begin(running: Running, content: bytes = b"") -> tuple[str, Path]:
    """Begin an upload and send `content`; return the location to continue at, and the file of the upload."""
    client = running.http()
    where = str(client.post("/v2/a/blobs/uploads/").headers["Location"])
    if content:
        assert client.patch(where, content=content).status_code == 202
    return where, running.data / "blobs" / "incoming" / where.rpartition("/")[2]


def age(path: Path, seconds: float) -> None:
    """Make the upload's last byte look this many seconds old."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_at_start_a_registry_collects_uploads_that_were_given_up_and_keeps_those_that_can_be_resumed(start_registry: Start) -> None:
    running = start_registry()
    empty, broken, recent = begin(running), begin(running, b"some"), begin(running, b"12345")
    (running.data / "blobs" / "incoming" / "tmpabcd").write_bytes(b"of a manifest that a killed registry was writing")
    (restore := running.data / "blobs" / "incoming" / "restore-abcd").mkdir()
    (restore / "0").write_bytes(b"of a backup that a killed registry was restoring")
    for _, path in (empty, broken):
        age(path, KEPT_S + 60)
    age(recent[1], KEPT_S - 600)
    assert running.stop() == 0

    again = start_registry()

    wait_until(lambda: [p.name for p in (again.data / "blobs" / "incoming").iterdir()] == [recent[1].name], 20, "the others to go")
    assert again.http().put(recent[0], params={"digest": sha(b"123456")}, content=b"6").status_code == 201


def test_of_too_many_uploads_silent_ones_make_room_and_others_are_not_touched(start_registry: Start) -> None:
    running = start_registry()
    where, mine = begin(running, b"mine")
    for _ in range(MOST - 1):
        (mine.parent / (secrets.token_hex(16) + mine.name[32:])).touch()

    refused = running.http().post("/v2/a/blobs/uploads/")
    with pytest.raises(Unavailable, match=f"{MOST} uploads are under way"):
        running.client()._checked(refused)
    assert refused.status_code == 429

    old = next(p for p in mine.parent.iterdir() if p != mine)
    age(old, SILENCE_S + 60)
    begin(running)
    assert not old.exists() and len(list(mine.parent.iterdir())) == MOST
    assert running.http().put(where, params={"digest": sha(b"mine")}).status_code == 201


@pytest.mark.long
def test_collecting_does_not_race_a_push_that_is_being_sent(start_registry: Start) -> None:
    running, blob = start_registry(), os.urandom(200_000)
    where, path = begin(running)
    ending, collected = threading.Event(), []

    def collect() -> None:
        client = running.http()
        while not ending.is_set():
            collected.append(client.post("/api/v1/gc", json={"unused_s": 0}).json()["uploads"])

    parts = urlsplit(running.url)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), 10) as conn:
        head = f"PUT {where}?digest={sha(blob)} HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {running.token}\r\n"
        conn.sendall(f"{head}Content-Length: {len(blob)}\r\n\r\n".encode() + blob[:100_000])
        wait_until(lambda: path.stat().st_size == 100_000, 10, "the first half")
        age(path, 10 * KEPT_S)
        collector = threading.Thread(target=collect)
        collector.start()
        wait_until(lambda: len(collected) > 20, 30, "twenty collections")
        conn.sendall(blob[100_000:])
        answer = conn.recv(1000)
        ending.set()
        collector.join(bound(20))
    assert answer.startswith(b"HTTP/1.1 201") and not any(collected)
