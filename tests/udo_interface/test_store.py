"""The files of a state store: which of them make up the state before an epoch, and the errors when one is missing or broken."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from tests.support.stores import KEY, History, write
from udo_interface.store.spark_partitions import groups_of
from udo_interface.store.store import File, SessionStore, StoreLocation, chains, newest_at, parsed, superseded
from udo_interface.store.store_place import located, put, require_writable
from udo_protocol.errors import StateLost, UsageError
from udo_protocol.limits import KEY_GROUPS


def store(tmp_path: Path, **more: Any) -> SessionStore:
    return SessionStore(StoreLocation(str(tmp_path / "udo"), KEY, **more), "count", "query/1")


def test_a_files_name_says_which_attempt_it_is_of_and_drafts_are_no_files() -> None:
    file = File(12, 3, 8, 1_700_000_000_000, 77, 2, True)
    assert parsed(f"/some/where/{file.name}") == file
    assert file.groups == set(groups_of(3, 8))
    for other in (f"{file.name}.1a2b.draft", "12/note.txt", "x/0of1-1-1-v0.full.arrow", "12/0of1-1-1.full.arrow"):
        assert parsed(other) is None


def test_deltas_lie_over_the_newest_full_file_and_null_removes(tmp_path: Path) -> None:
    s = store(tmp_path)
    write(s, 0, {5: {b"a": b"1", b"b": b"1"}, 6: {b"c": b"1"}}, full=True)
    write(s, 1, {5: {b"a": b"2"}, 6: {b"c": None}}, highest_us=7)  # type: ignore[dict-item]
    write(s, 2, {5: {b"b": b"3"}}, highest_us=5)
    assert s.values(s.files(), [5, 6], 3) == ({5: {b"a": b"2", b"b": b"3"}, 6: {}}, {5: 0, 6: 0})
    assert s.values(s.files(), [5], 2) == ({5: {b"a": b"2", b"b": b"1"}}, {5: 0})
    assert (s.highest(s.files(), 3), s.highest(s.files(), 2), s.highest(s.files(), 1)) == ({"t": 5}, {"t": 7}, {})


@given(st.data())
def test_whatever_runs_and_attempts_left_behind_the_state_before_each_epoch_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    s = store(tmp_path_factory.mktemp("store"))
    history = History(s, data.draw)
    files = s.files()
    for epoch in range(1, len(history.states)):
        assert s.values(files, range(KEY_GROUPS), epoch)[0] == history.states[epoch]
    last = len(history.states) - 1
    s.prune(last)  # as the task of the last epoch but one does
    for epoch in range(max(last - 1, 1), last + 1):
        assert s.values(s.files(), range(KEY_GROUPS), epoch)[0] == history.states[epoch]


@given(st.data())
def test_without_a_needed_file_the_state_is_lost_never_older_or_empty(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    s = store(tmp_path_factory.mktemp("store"))
    history = History(s, data.draw)
    last = len(history.states) - 1
    gone = data.draw(st.sampled_from(s.files()))
    rest = [f for f in s.files() if f != gone]
    try:
        found, _ = s.values(rest, range(KEY_GROUPS), last)
    except StateLost as e:
        assert f"continues with epoch {last}" in str(e)
    else:
        assert found == history.states[last]  # another attempt's file, or a later full one, says the same


def test_a_gap_names_the_place_the_group_and_both_epochs(tmp_path: Path) -> None:
    s = store(tmp_path)
    write(s, 0, {}, full=True)
    write(s, 2, {})
    with pytest.raises(StateLost, match=r"query%2F1/1: no file holds key group 0 and others after epoch 1.*epoch 3: expected.*epoch 2"):
        s.values(s.files(), range(KEY_GROUPS), 3)
    with pytest.raises(StateLost, match="found no files"):
        chains([], [1], 1, "x")


def test_broken_files_are_named(tmp_path: Path) -> None:
    s = store(tmp_path)
    path = write(s, 0, {5: {b"a": b"treasure"}}, full=True)
    whole = path.read_bytes()

    def refused(match: str) -> None:
        with pytest.raises(StateLost, match=match) as e:
            s.values(s.files(), [5], 1)
        assert str(path) in str(e.value)
        assert "epoch 0 did, and the query continues with epoch 1" in str(e.value)

    path.write_bytes(whole[:-10])
    refused("cannot be read")
    path.write_bytes(b"")
    refused("cannot be read")
    path.write_bytes(whole.replace(b"treasure", b"treasurf"))
    refused("checksum is wrong")
    path.write_bytes(whole)
    assert s.values(s.files(), [5], 1)[0] == {5: {b"a": b"treasure"}}
    other = SessionStore(StoreLocation(s.stored.location, (("id", "int64"),)), "count", "query/1")
    with pytest.raises(StateLost, match="its state is kept by"):
        other.values(other.files(), [5], 1)


def test_state_of_another_number_of_key_groups_is_refused_and_any_number_can_be_chosen(tmp_path: Path) -> None:
    many = store(tmp_path, key_groups=1000)
    write(many, 0, {999: {b"a": b"1"}}, full=True)
    files = many.files()
    assert many.values(files, range(1000), 1)[0][999] == {b"a": b"1"}
    assert many.highest(files, 1) == {}
    with pytest.raises(StateLost, match="its state is in 1000 key groups, the deployment has 128: .* --key-groups 1000"):
        store(tmp_path).values(store(tmp_path).files(), [5], 1)


def test_a_file_can_be_read_without_this_project(tmp_path: Path) -> None:
    path = write(store(tmp_path), 4, {5: {b"a": b"1"}}, run=3, attempt=9)
    with pa.ipc.open_file(path) as reader:
        assert reader.read_all().to_pylist() == [{"group": 5, "key": b"a", "value": b"1"}]
        about = json.loads(reader.schema.metadata[b"udo"])
    assert (about["format"], about["epoch"], about["key"], about["groups"]) == (1, 4, [["k", "string"]], list(range(KEY_GROUPS)))


def test_state_of_several_versions_is_refused_only_where_it_is_needed(tmp_path: Path) -> None:
    s = store(tmp_path)
    write(s, 0, {5: {b"a": b"1"}}, full=True)
    write(s, 1, {5: {b"a": b"2"}}, version=1)
    with pytest.raises(StateLost, match="the state of key group 5 before epoch 2 lies in several state versions"):
        s.values(s.files(), [5], 2)
    write(s, 2, {5: {b"a": b"3"}}, version=1, full=True)
    assert s.values(s.files(), [5], 3) == ({5: {b"a": b"3"}}, {5: 1})


def test_groups_of_one_epoch_are_read_each_in_its_state_version(tmp_path: Path) -> None:
    s, (one, other) = store(tmp_path), (groups_of(partition, 2)[0] for partition in range(2))
    write(s, 0, {one: {b"a": b"1"}}, partition=0, partitions=2, full=True)
    write(s, 0, {other: {b"b": b"2"}}, partition=1, partitions=2, full=True, version=1)
    assert s.values(s.files(), [one, other], 1) == ({one: {b"a": b"1"}, other: {b"b": b"2"}}, {one: 0, other: 1})


def test_nothing_is_removed_while_a_chain_has_a_gap() -> None:
    files = [File(e, 0, 1, 1, 1, 0, e % 3 == 0) for e in range(9)]
    assert superseded(files, 8) == [0, 1, 2, 3, 4, 5]
    assert superseded([f for f in files if f.epoch != 7], 8) == []


def test_of_two_runs_the_later_counts_group_by_group() -> None:
    old, new = File(3, 0, 1, 100, 9, 0, False), File(3, 1, 2, 200, 1, 0, False)
    found = newest_at([new, old], 3)
    assert {n for n, f in found.items() if f is new} == set(groups_of(1, 2))
    assert found.keys() == set(range(KEY_GROUPS))


def test_a_file_and_its_folder_are_synced_before_it_counts_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, list[str]]] = []

    def sync(fd: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(fd).st_mode), [p.name for p in (tmp_path / "a").iterdir() if not p.name.startswith(".")]))

    monkeypatch.setattr(os, "fsync", sync)
    put(fs.LocalFileSystem(), f"{tmp_path}/a/b", pa.py_buffer(b"udo"))
    assert (tmp_path / "a" / "b").read_bytes() == b"udo"
    assert synced == [(False, []), (True, ["b"])]


@pytest.mark.parametrize("local", [True, False])
def test_a_write_that_fails_leaves_no_draft(tmp_path: Path, local: bool) -> None:
    files = fs.LocalFileSystem() if local else fs.SubTreeFileSystem("/", fs.LocalFileSystem())
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        put(files, f"{tmp_path}/a/b", b"udo")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]


def test_locations_are_made_absolute_and_sparks_spelling_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located("ckpt/udo") == str(tmp_path / "ckpt" / "udo")
    assert located(tmp_path / "x") == str(tmp_path / "x")
    for path in ("x", "a b", "100%", "a%20b", "x#1", "x?y"):
        assert located(f"file:{tmp_path}/{path}") == located(f"file://{tmp_path}/{path}") == f"{tmp_path}/{path}"
        require_writable(located(f"file:{tmp_path}/{path}"))
        assert (tmp_path / path).is_dir()
    assert located("file://localhost/x") == "/x"
    assert located("s3a://bucket/ckpt") == located("S3N://bucket/ckpt") == "s3://bucket/ckpt"
    assert located("s3a://bucket?scheme=http") == "s3://bucket?scheme=http"
    assert located("abfs://container@account.dfs.core.windows.net/x") == "abfs://container@account.dfs.core.windows.net/x"


@pytest.mark.parametrize(
    ("location", "match"),
    [
        ("", "expects a directory's path or URI"),
        ("file:x", "expected file:/path or file:///path"),
        ("file://host/x", "expected file:/path or file:///path"),
        ("hdfs:/user/x", "expected hdfs://bucket/path or hdfs://host:port/path, or a path"),
        ("dbfs:/x", "or a path"),
    ],
)
def test_a_location_that_says_no_place_is_refused(location: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        located(location)


@pytest.mark.parametrize("location", ["s3a://AKIA:hidden@bucket/x", "s3://AKIA:hid/hidden@bucket/x", "gs://me:hidden@bucket/x"])
def test_a_secret_in_a_location_is_refused_and_not_repeated(location: str) -> None:
    with pytest.raises(UsageError, match="got one with a secret") as e:
        located(location)
    assert "hid" not in str(e.value)


@pytest.mark.parametrize(
    ("location", "match"),
    [
        ("hdfs://namenode:8020/x", "libjvm below JAVA_HOME, libhdfs below HADOOP_HOME .*`hadoop classpath --glob`"),
        ("wasbs://container@account/x", "Unrecognized filesystem type"),
        ("fsspec+nosuch://x/y", "fsspec|nosuch"),
    ],
)
def test_a_file_system_that_pyarrow_has_no_way_to_is_said_in_one_line(location: str, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match=f"store='{location}' cannot be used: .*{match}") as e:
        require_writable(located(location))
    assert "\n" not in str(e.value)


def test_a_place_that_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for location in (str(tmp_path / "file" / "below"), "nosuchscheme://x/y"):
        with pytest.raises(UsageError, match="cannot be used"):
            require_writable(location)
    require_writable(str(tmp_path / "new" / "directory"))
    assert list((tmp_path / "new" / "directory").iterdir()) == []
