"""The file of `udo record`: a zip that any tool opens, written and read in one pass. Its format: docs/record.md, "The file".

Standard library only, since an operator's own interpreter reads it too.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Any

from udo_protocol.errors import UsageError
from udo_protocol.files import new_beside

FORMAT, FORMAT_VERSION = "udo-recording", 2
# Of one slot, whose entries have no folder, and whose frames are one entry.
_FIRST_VERSION = 1
_HEADER, _END, _FRAMES = "recording.json", "end.json", "frames"
_FRAME = struct.Struct("<QQ")  # sequence number, length
_LENGTH = struct.Struct("<Q")
# Frames of a slot are gathered in memory up to this size, since an archive takes one entry at a time.
_BLOCK_BYTES = 1 << 18
Json = dict[str, Any]
# The stored state of one key group: meta, base (None: there is none yet), deltas.
Stored = tuple[bytes, bytes | None, list[bytes]]


class Writer:
    """Writes to a file beside `path`, for its owner only, which `close` renames to `path` once complete. Leaving the context without
    `close` removes it."""

    def __init__(self, path: Path) -> None:
        self._path, self._new = path, new_beside(path)
        # Stored, not compressed: Arrow data shrinks little at the speed at which frames come.
        self._zip = zipfile.ZipFile(self._new, "w", zipfile.ZIP_STORED, allowZip64=True)
        self._lock = Lock()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            with self._lock:
                self._zip.close()
        finally:
            self._new.unlink(missing_ok=True)

    def slot(self, place: int, header: Mapping[str, Any]) -> SlotWriter:
        """Begin the recording of one slot, as `header` describes it. `place`: its place among the slots of the file, which are replayed in
        this order."""
        return SlotWriter(self.entry, f"slots/{place}/", header)

    def entry(self, name: str, data: bytes | Mapping[str, Any]) -> None:
        """Write an entry of the archive, a mapping as JSON. Any thread."""
        with self._lock:
            self._zip.writestr(name, data if isinstance(data, bytes) else json.dumps(data, indent=2))

    def close(self, header: Mapping[str, Any]) -> None:
        """Describe the recording, and complete the file."""
        self.entry(_HEADER, {"format": FORMAT, "format_version": FORMAT_VERSION, **header})
        self._zip.close()
        self._new.replace(self._path)


class SlotWriter:
    """Writes the recording of one slot, by one thread."""

    def __init__(self, entry: Callable[[str, bytes | Mapping[str, Any]], None], folder: str, header: Mapping[str, Any]) -> None:
        self._entry, self._folder = entry, folder
        self._sessions, self._blocks = -1, 0
        self._schemas: set[bytes] = set()
        self._frames, self._size = list[bytes](), 0
        entry(folder + _HEADER, header)

    def session(self, name: str, record: Mapping[str, Any]) -> None:
        """Write a session's record; its groups follow."""
        self._sessions += 1
        self._entry(f"{self._folder}state/{self._sessions}/session.json", {"session": name, "record": record})

    def group(self, number: int, stored: Stored) -> None:
        """Write one key group of the session written last."""
        meta, base, deltas = stored
        data = b"".join(_LENGTH.pack(len(v)) + v for v in (meta, base or b"", *deltas))
        self._entry(f"{self._folder}state/{self._sessions}/{number}", data)

    def schema(self, identity: bytes, ipc: bytes) -> None:
        """Write a schema that frames refer to."""
        if identity not in self._schemas:
            self._schemas.add(identity)
            self._entry(f"{self._folder}schemas/{identity.hex()}", ipc)

    def frame(self, seq: int, frame: bytes) -> None:
        """Write the next frame."""
        self._frames += [_FRAME.pack(seq, len(frame)), frame]
        self._size += len(frame)
        if self._size >= _BLOCK_BYTES:
            self._flush()

    def end(self, end: Mapping[str, Any]) -> None:
        """Write how the recording of the slot ended."""
        self._flush()
        self._entry(self._folder + _END, end)

    def _flush(self) -> None:
        if self._frames:
            self._entry(f"{self._folder}{_FRAMES}/{self._blocks}", b"".join(self._frames))
            self._frames, self._size, self._blocks = [], 0, self._blocks + 1


class Recording:
    """An opened file, and the recordings of its slots. UsageError for one that is missing, damaged, cut off, or of another format or
    version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError:
            raise UsageError(f"there is no file {path}") from None
        except (zipfile.BadZipFile, OSError) as e:
            raise UsageError(f"{path} is truncated or not a file of `udo record`: {e}") from None
        try:
            self._require_plain()
            header = _json(self._zip, path, _HEADER)
            if header.get("format") != FORMAT:
                raise UsageError(f"{path} is not a file of `udo record`")
            if header["format_version"] not in (_FIRST_VERSION, FORMAT_VERSION):
                raise UsageError(
                    f"{path} has format version {header['format_version']}; this udo reads {_FIRST_VERSION} and {FORMAT_VERSION}"
                )
            self.slots = [SlotRecording(self._zip, path, folder) for folder in self._folders(header["format_version"])]
            if not self.slots:
                raise UsageError(f"{path} is damaged or not a file of `udo record`: it has no slots")
        except BaseException:
            self._zip.close()
            raise

    def _folders(self, version: int) -> list[str]:
        """The slots' folders, in the order of their places."""
        if version == _FIRST_VERSION:
            return [""]
        found = {n.split("/")[1] for n in self._zip.namelist() if n.startswith("slots/")}
        if not all(map(str.isdecimal, found)):
            raise UsageError(f"{self.path} is damaged: the folder of a slot has no number")
        return [f"slots/{n}/" for n in sorted(found, key=int)]

    def _require_plain(self) -> None:
        """Check that nothing unpacks to more than the file's size: `udo record` does not compress, and no two entries share bytes."""
        entries = self._zip.infolist()
        if any(e.compress_type != zipfile.ZIP_STORED for e in entries) or sum(e.file_size for e in entries) > self.path.stat().st_size:
            raise UsageError(
                f"{self.path} is damaged or not a file of `udo record`: it has compressed entries, or ones larger than the file"
            )

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._zip.close()


class SlotRecording:
    """The recording of one slot in an opened file: `header` describes it, `end` how it ended."""

    def __init__(self, archive: zipfile.ZipFile, path: Path, folder: str) -> None:
        self._zip, self._path, self._folder = archive, path, folder
        self.header: Json = _json(archive, path, folder + _HEADER)
        self.end: Json = _json(archive, path, folder + _END)

    @property
    def name(self) -> str:
        """NODE:SLOT."""
        return f"{self.header['node']}:{self.header['slot']}"

    def schemas(self) -> dict[bytes, bytes]:
        """Arrow IPC schemas by id."""
        return {bytes.fromhex(n.rpartition("/")[2]): self._read(n) for n in self._names("schemas/")}

    def sessions(self) -> dict[str, tuple[Json, str]]:
        """Record and folder (for `groups`) of each session, by name."""
        names = [n for n in self._names("state/") if n.endswith("/session.json")]
        found = [(_json(self._zip, self._path, n), n.removesuffix("session.json")) for n in names]
        return {known["session"]: (known["record"], folder) for known, folder in found}

    def groups(self, folder: str) -> dict[int, Stored]:
        """The key groups of one session."""
        names = [n for n in self._zip.namelist() if n.startswith(folder) and not n.endswith(".json")]
        return {int(n.removeprefix(folder)): self._stored(self._read(n)) for n in names}

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield (sequence number, frame) in order."""
        blocks = self._names(f"{_FRAMES}/")
        if not all(n.rpartition("/")[2].isdecimal() for n in blocks):
            raise UsageError(f"{self._path} is damaged: an entry of frames has no number")
        for name in sorted(blocks, key=lambda n: int(n.rpartition("/")[2])) or self._names(_FRAMES):
            with self._zip.open(name) as file:
                while head := self._take(file, _FRAME.size):
                    seq, size = _FRAME.unpack(head)
                    yield seq, self._take(file, size)

    def _names(self, beginning: str) -> list[str]:
        return [n for n in self._zip.namelist() if n.startswith(self._folder + beginning)]

    def _take(self, file: IO[bytes], size: int) -> bytes:
        try:
            data = file.read(size)
        except (zipfile.BadZipFile, OSError, EOFError) as e:
            raise UsageError(f"{self._path} is damaged: {e}") from None
        if data and len(data) != size:
            raise UsageError(f"{self._path} is damaged: {size} bytes of a frame were announced and {len(data)} are there")
        return data

    def _stored(self, data: bytes) -> Stored:
        values: Sequence[bytes] = list(self._values(data))
        if len(values) < 2:
            raise UsageError(f"{self._path} is damaged: a key group has {len(values)} values")
        return values[0], values[1] or None, list(values[2:])

    def _values(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            try:
                (size,) = _LENGTH.unpack_from(data, at)
            except struct.error as e:
                raise UsageError(f"{self._path} is damaged: a key group breaks off: {e}") from None
            at += _LENGTH.size
            yield data[at : at + size]
            at += size

    def _read(self, name: str) -> bytes:
        return _entry(self._zip, self._path, name)


def _entry(archive: zipfile.ZipFile, path: Path, name: str) -> bytes:
    try:
        return archive.read(name)
    except KeyError:
        raise UsageError(f"{path} is not a file of `udo record`: it has no {name}") from None
    except (zipfile.BadZipFile, OSError, EOFError) as e:
        raise UsageError(f"{path} is damaged: {e}") from None


def _json(archive: zipfile.ZipFile, path: Path, name: str) -> Json:
    try:
        return dict(json.loads(_entry(archive, path, name)))
    except (ValueError, TypeError, RecursionError) as e:
        raise UsageError(f"{path} is damaged: {name} is no JSON object: {e}") from None
