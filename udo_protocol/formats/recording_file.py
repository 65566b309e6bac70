"""The file of `udo record`: a zip that any tool opens, written and read in one pass. Its format: docs/record.md, "The file".

Standard library only, since an operator's own interpreter reads it too.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from udo_protocol.errors import UsageError
from udo_protocol.files import new_beside

FORMAT, FORMAT_VERSION = "udo-recording", 1
_FRAME = struct.Struct("<QQ")  # sequence number, length
_LENGTH = struct.Struct("<Q")
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
        self._frames: IO[bytes] | None = None
        self._schemas: dict[bytes, bytes] = {}
        self._sessions = -1

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._end_frames()
            self._zip.close()
        finally:
            self._new.unlink(missing_ok=True)

    def header(self, header: Mapping[str, Any]) -> None:
        """Write the description of the recording; must come first."""
        self._json("recording.json", {"format": FORMAT, "format_version": FORMAT_VERSION, **header})

    def session(self, name: str, record: Mapping[str, Any]) -> None:
        """Write a session's record; its groups follow."""
        self._sessions += 1
        self._json(f"state/{self._sessions}/session.json", {"session": name, "record": record})

    def group(self, number: int, stored: Stored) -> None:
        """Write one key group of the session written last."""
        meta, base, deltas = stored
        data = b"".join(_LENGTH.pack(len(v)) + v for v in (meta, base or b"", *deltas))
        self._zip.writestr(f"state/{self._sessions}/{number}", data)

    def schema(self, identity: bytes, ipc: bytes) -> None:
        """Keep a schema that frames refer to; `close` writes it."""
        self._schemas[identity] = ipc

    def frame(self, seq: int, frame: bytes) -> None:
        """Write the next frame."""
        if self._frames is None:
            self._frames = self._zip.open("frames", "w", force_zip64=True)
        self._frames.write(_FRAME.pack(seq, len(frame)))
        self._frames.write(frame)

    def close(self, end: Mapping[str, Any]) -> None:
        """Write how the recording ended, and complete the file."""
        self._end_frames()
        for identity, ipc in self._schemas.items():
            self._zip.writestr(f"schemas/{identity.hex()}", ipc)
        self._json("end.json", end)
        self._zip.close()
        self._new.replace(self._path)

    def _end_frames(self) -> None:
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def _json(self, name: str, document: Mapping[str, Any]) -> None:
        self._zip.writestr(name, json.dumps(document, indent=2))


class Recording:
    """An opened file. UsageError for one that is missing, damaged, cut off, or of another format or version."""

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
            self.header: Json = self._read_json("recording.json")
            if self.header.get("format") != FORMAT:
                raise UsageError(f"{path} is not a file of `udo record`")
            if self.header["format_version"] != FORMAT_VERSION:
                raise UsageError(f"{path} has format version {self.header['format_version']}; this udo reads {FORMAT_VERSION}")
            self.end: Json = self._read_json("end.json")
        except BaseException:
            self._zip.close()
            raise

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

    def schemas(self) -> dict[bytes, bytes]:
        """Arrow IPC schemas by id."""
        return {bytes.fromhex(n.partition("/")[2]): self._read(n) for n in self._zip.namelist() if n.startswith("schemas/")}

    def sessions(self) -> dict[str, tuple[Json, str]]:
        """Record and folder (for `groups`) of each session, by name."""
        names = [n for n in self._zip.namelist() if n.startswith("state/") and n.endswith("/session.json")]
        found = [(self._read_json(n), n.removesuffix("session.json")) for n in names]
        return {known["session"]: (known["record"], folder) for known, folder in found}

    def groups(self, folder: str) -> dict[int, Stored]:
        """The key groups of one session."""
        names = [n for n in self._zip.namelist() if n.startswith(folder) and not n.endswith(".json")]
        return {int(n.removeprefix(folder)): self._stored(self._read(n)) for n in names}

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield (sequence number, frame) in order."""
        if "frames" not in self._zip.namelist():
            return
        with self._zip.open("frames") as file:
            while head := self._take(file, _FRAME.size):
                seq, size = _FRAME.unpack(head)
                yield seq, self._take(file, size)

    def _take(self, file: IO[bytes], size: int) -> bytes:
        try:
            data = file.read(size)
        except (zipfile.BadZipFile, OSError, EOFError) as e:
            raise UsageError(f"{self.path} is damaged: {e}") from None
        if data and len(data) != size:
            raise UsageError(f"{self.path} is damaged: {size} bytes of a frame were announced and {len(data)} are there")
        return data

    def _stored(self, data: bytes) -> Stored:
        values: Sequence[bytes] = list(self._values(data))
        if len(values) < 2:
            raise UsageError(f"{self.path} is damaged: a key group has {len(values)} values")
        return values[0], values[1] or None, list(values[2:])

    def _values(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            try:
                (size,) = _LENGTH.unpack_from(data, at)
            except struct.error as e:
                raise UsageError(f"{self.path} is damaged: a key group breaks off: {e}") from None
            at += _LENGTH.size
            yield data[at : at + size]
            at += size

    def _read(self, name: str) -> bytes:
        try:
            return self._zip.read(name)
        except KeyError:
            raise UsageError(f"{self.path} is not a file of `udo record`: it has no {name}") from None
        except (zipfile.BadZipFile, OSError, EOFError) as e:
            raise UsageError(f"{self.path} is damaged: {e}") from None

    def _read_json(self, name: str) -> Json:
        try:
            return dict(json.loads(self._read(name)))
        except (ValueError, TypeError, RecursionError) as e:
            raise UsageError(f"{self.path} is damaged: {name} is no JSON object: {e}") from None
