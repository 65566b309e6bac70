"""A query's state in files, beside its checkpoint or wherever pyarrow.fs reaches: one file per partition and epoch.

    <location>/<deployment>/<session>/<epoch>/<partition>of<partitions>-<run>-<attempt>-v<state version>.[void.]<full|delta>.arrow

A file is complete under its name or not there. The state before epoch e is, for each key group, its newest full file below e and
the deltas of every epoch from there to e - 1. If an epoch has several files, the one with the newest (run, attempt) counts: all
are of ENDed attempts, which have the same result; a file that a limit cut short (void) counts only if all were. A gap is an
error, never an empty start. docs/state.md, "A second store".
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from udo_interface.store.spark_partitions import groups_of
from udo_interface.store.store_place import OBJECT_STORES, first_line, hint, put, reached
from udo_protocol.errors import StateLost, Unavailable
from udo_protocol.formats import body
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.queue.event_times import ONLY, EventTimes, combined
from udo_protocol.state.stored import ROWS

FORMAT = 1
# Epochs from one full file to the next, with deltas between: bounds the files to read after a loss and the files kept.
FULL_EVERY = 10
# Files read at once for their event times: there is one for each partition, and a distant store is slow.
READERS = 16
_META = b"udo"
_NAME = re.compile(r"(\d+)of(\d+)-(\d+)-(\d+)-v(\d+)\.(void\.)?(full|delta)\.arrow")


@dataclass(frozen=True)
class StoreLocation:
    """The location of a call's state, and its key columns (name, type); travels to the tasks."""

    location: str
    key: tuple[tuple[str, str], ...]
    key_groups: int = KEY_GROUPS
    full_every: int = FULL_EVERY


@dataclass(frozen=True)
class File:
    """The contents of a file's name: an ENDed attempt of a partition. `run` is the number of its plan."""

    epoch: int
    partition: int
    partitions: int
    run: int
    attempt: int
    state_version: int
    full: bool
    void: bool = False
    key_groups: int = KEY_GROUPS  # not in the name

    @property
    def name(self) -> str:
        """The path below the session's directory."""
        kind = f"{'void.' * self.void}{'full' if self.full else 'delta'}"
        return f"{self.epoch}/{self.partition}of{self.partitions}-{self.run}-{self.attempt}-v{self.state_version}.{kind}.arrow"

    @property
    def groups(self) -> frozenset[int]:
        """The key groups whose state it holds."""
        return _groups(self.partition, self.partitions, self.key_groups)


@functools.lru_cache(maxsize=4096)
def _groups(partition: int, partitions: int, key_groups: int) -> frozenset[int]:
    return frozenset(groups_of(partition, partitions, key_groups))


def parsed(path: str, key_groups: int = KEY_GROUPS) -> File | None:
    """The file of this path; None for anything else (a draft, somebody's note)."""
    directory, _, name = path.rpartition("/")
    epoch, found = directory.rpartition("/")[2], _NAME.fullmatch(name)
    if found is None or not epoch.isdigit():
        return None
    partition, partitions, run, attempt, state_version = map(int, found.groups()[:5])
    return File(int(epoch), partition, partitions, run, attempt, state_version, found[7] == "full", found[6] is not None, key_groups)


def newest_at(files: Iterable[File], epoch: int) -> dict[int, File]:
    """For each key group, the file that counts for `epoch`."""
    found: dict[int, File] = {}
    for f in sorted((f for f in files if f.epoch == epoch), key=lambda f: (not f.void, f.run, f.attempt)):
        found.update(dict.fromkeys(f.groups, f))
    return found


def chains(files: Sequence[File], groups: Iterable[int], epoch: int, where: str, since: int | None = None) -> dict[int, list[File]]:
    """For each group the files that make up its state before `epoch`, a full one first. StateLost names the first group that lacks one.

    A group's newest file must be of epoch `since` (None: the one before) or later; from there back to the full file, no epoch may lack one.
    """
    found: dict[int, list[File]] = {n: [] for n in groups}
    needed = epoch - 1 if since is None else since
    open_ones, at = set(found), epoch - 1
    while open_ones:
        newest = newest_at(files, at)
        if missing := sorted(n for n in open_ones - newest.keys() if found[n] or at <= needed):
            reaches = f"files of epochs {min(f.epoch for f in files)} to {max(f.epoch for f in files)}" if files else "no files"
            raise StateLost(
                f"{where}/{at}: no file holds key group {missing[0]}{' and others' * (len(missing) > 1)} after epoch {at}, and the query "
                f"continues with epoch {epoch}: expected its state up to epoch {epoch - 1}, found {reaches} below that one. Restore the "
                "missing files, or, if the operator is new in this query and the store empty, call it with start='empty'"
            )
        for n in open_ones & newest.keys():
            found[n].insert(0, newest[n])
            if newest[n].full:
                open_ones.remove(n)
        at -= 1
    return found


def superseded(files: Sequence[File], epoch: int) -> list[int]:
    """Epochs whose files no state before `epoch` or later needs; none while a chain has a gap."""
    if not files:
        return []
    try:
        kept = chains(files, range(files[0].key_groups), epoch, "")
    except StateLost:
        return []
    oldest = min(chain[0].epoch for chain in kept.values())
    return sorted({f.epoch for f in files if f.epoch < oldest})


def _checksum(batches: Iterable[pa.RecordBatch]) -> int:
    """CRC-32 over groups, keys and values; Arrow files have no checksum of their own."""
    crc = 0
    for batch in batches:
        for column in batch.columns if batch.num_rows else ():
            _, numbers, *data = column.buffers()
            numbers = numbers[: 4 * (len(column) + len(data))]
            crc = zlib.crc32(numbers, crc ^ column.null_count)
            for d in data:
                crc = zlib.crc32(d[: struct.unpack("<i", numbers[-4:])[0]], crc)
    return crc


@dataclass
class SessionStore:
    """One session's files."""

    stored: StoreLocation
    deployment: str
    session: str
    directory: str = field(init=False)

    def __post_init__(self) -> None:
        self._files, base = reached(self.stored.location)
        self.directory = f"{base.rstrip('/')}/{quote(self.deployment, safe='')}/{quote(self.session, safe='')}"

    def files(self, epoch: int | None = None) -> list[File]:
        """All files, or those of one epoch. Unavailable if they cannot be listed."""
        from pyarrow.fs import FileSelector

        below = self.directory if epoch is None else f"{self.directory}/{epoch}"
        try:
            found = self._files.get_file_info(FileSelector(below, allow_not_found=True, recursive=epoch is None))
        except OSError as e:
            raise self._away(f"{below} cannot be listed", e) from e
        # In an object store a refused upload leaves an empty object: closing its stream sent the rest, which was nothing.
        complete = 1 if self._files.type_name in OBJECT_STORES else 0
        return [
            f for info in found if info.is_file and info.size >= complete and (f := parsed(info.path, self.stored.key_groups)) is not None
        ]

    def write(self, file: File, batches: Sequence[pa.RecordBatch], about: dict[str, Any]) -> int:
        """Write a file and return its size in bytes. `about` goes into its metadata, beside the contents of its name."""
        described = {
            "format": FORMAT,
            "deployment": self.deployment,
            "session": self.session,
            "key": [list(column) for column in self.stored.key],
            "key_groups": self.stored.key_groups,
            "groups": sorted(file.groups),
            "epoch": file.epoch,
            "partition": file.partition,
            "partitions": file.partitions,
            "state_version": file.state_version,
            "checksum": _checksum(batches),
            **about,
        }
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, ROWS.with_metadata({_META: json.dumps(described)})) as writer:
            for batch in batches:
                writer.write_batch(batch)
        data = sink.getvalue()
        path = f"{self.directory}/{file.name}"
        try:
            put(self._files, path, data)
        except OSError as e:
            raise self._away(f"{path} cannot be written", e, f"Epoch {file.epoch} is not complete without it: run it again") from e
        return len(data)

    def values(
        self, files: Sequence[File], groups: Iterable[int], epoch: int, since: int | None = None
    ) -> tuple[dict[int, dict[bytes, bytes]], dict[int, int]]:
        """The packed state of these groups before `epoch`, and the state version of each group. Raises StateLost.

        The versions differ if an update fell between the ENDs of two partitions of an epoch, and a restart has put their groups together.
        """
        kept = chains(files, groups, epoch, self.directory, since)
        holding: dict[File, set[int]] = {}
        for n, chain in kept.items():
            for file in chain:
                holding.setdefault(file, set()).add(n)
        for n, chain in kept.items():
            if len(found := {f.state_version: f.name for f in chain}) > 1:
                raise StateLost(
                    f"{self.directory}: the state of key group {n} before epoch {epoch} lies in several state versions: {found}"
                )
        values: dict[int, dict[bytes, bytes]] = {n: {} for n in kept}
        for file in sorted(holding, key=lambda f: f.epoch):
            batches = self._read(file, epoch)
            for n, key, value in (row for b in batches for row in zip(*(c.to_pylist() for c in b.columns), strict=True)):
                if n in holding[file]:
                    if value is None:
                        values[n].pop(key, None)
                    else:
                        values[n][key] = value
        return values, {n: chain[-1].state_version for n, chain in kept.items()}

    def highest(self, files: Sequence[File], epoch: int) -> EventTimes:
        """Highest event times before `epoch`: each file has those of all earlier epochs, and those of its partition in its own epoch."""
        seen: list[EventTimes] = []
        covered: set[int] = set()
        with ThreadPoolExecutor(READERS) as pool:
            for at in sorted({f.epoch for f in files if f.epoch < epoch}, reverse=True):
                newest = set(newest_at(files, at).values())
                seen += pool.map(lambda f: self._highest(f, epoch), newest)
                covered.update(*(f.groups for f in newest))
                if len(covered) == self.stored.key_groups:
                    break
        return combined(seen)

    def _highest(self, file: File, epoch: int) -> EventTimes:
        with self._opened(file, epoch) as (about, _):
            found: EventTimes = about.get("highest_us_of") or {}
            return found if about["highest_us"] is None else {ONLY: about["highest_us"]}

    def prune(self, epoch: int) -> None:
        """Remove the files that no state after `epoch` - 2 or later needs; best effort, since the next call tries again."""
        with contextlib.suppress(OSError, Unavailable):
            for old in superseded(self.files(), epoch - 1):
                self._files.delete_dir(f"{self.directory}/{old}")

    def _read(self, file: File, epoch: int) -> list[pa.RecordBatch]:
        with self._opened(file, epoch) as (about, reader):
            batches = [body.validated(reader.get_batch(i)) for i in range(reader.num_record_batches)]
            if _checksum(batches) != about["checksum"]:
                raise pa.ArrowInvalid("its checksum is wrong")
            return batches

    @contextlib.contextmanager
    def _opened(self, file: File, epoch: int) -> Iterator[tuple[dict[str, Any], Any]]:
        path = f"{self.directory}/{file.name}"
        held = f"It holds what epoch {file.epoch} did, and the query continues with epoch {epoch}"
        try:
            source = self._files.open_input_file(path)
        except FileNotFoundError as e:
            raise StateLost(f"{path} cannot be read: {e}. {held}") from e
        except OSError as e:
            raise self._away(f"{path} cannot be opened", e, held) from e
        try:
            with source, body.read_file(source) as reader:
                about = json.loads((reader.schema.metadata or {}).get(_META, b"null"))
                if about is None or not reader.schema.equals(ROWS):
                    raise pa.ArrowInvalid("it is not a file of a state store")
                if about["format"] != FORMAT:
                    raise pa.ArrowInvalid(f"it has format {about['format']}, this version reads {FORMAT}")
                if (key := tuple(map(tuple, about["key"]))) != self.stored.key:
                    raise pa.ArrowInvalid(f"its state is kept by {key}, the operator's by {self.stored.key}")
                if (groups := about.get("key_groups", KEY_GROUPS)) != self.stored.key_groups:
                    raise pa.ArrowInvalid(
                        f"its state is in {groups} key groups, the deployment has {self.stored.key_groups}: deploy the operator with "
                        f"--key-groups {groups}"
                    )
                yield about, reader
        except (OSError, pa.ArrowException, ValueError, KeyError) as e:
            if isinstance(e, OSError):  # a truncated file, or a store that went away meanwhile: then listing raises
                self.files(file.epoch)
            raise StateLost(f"{path} cannot be read: {e}. {held}") from e

    def _away(self, what: str, e: OSError, then: str = "") -> Unavailable:
        return Unavailable(
            f"{what}: {first_line(e)}. {then + '. ' if then else ''}Nothing is lost: the query continues from its checkpoint once this "
            f"machine can reach the store{hint(self.stored.location)}"
        )
