"""Uploads under way: bytes are appended to a file as they arrive, and become a blob only if they have the announced digest.

An upload that breaks off keeps its bytes, also across a restart, so that it can be resumed; it is removed after a time
without a byte, or earlier if there are too many. No more than a few pieces of a layer are in memory at a time.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from registry.oci_errors import DigestInvalid, RangeInvalid, SizeInvalid, TooManyUploads, UploadBusy, UploadInvalid, UploadUnknown
from registry.store.blobs import INCOMING, Blobs, check_digest
from udo_protocol.files import lock_within
from udo_protocol.pouring import pour

# Puts the next bytes of an upload into a buffer and returns their number; 0: the end; OSError if it is cut off.
Fill = Callable[[memoryview], int]
_ID = re.compile(r"[0-9a-f]{48}")


def tidy(root: Path) -> None:
    """Remove incomplete small blobs and restores that a killed registry left in the blobs' folder; only while no other process uses it."""
    for path in (root / INCOMING).glob("*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif not _ID.fullmatch(path.name):
            path.unlink(missing_ok=True)


class Upload:
    """One upload. Requests for it are refused while another one is being served, by this process or another."""

    def __init__(self, path: Path, blobs: Blobs) -> None:
        self.id, self._path, self._blobs = path.name, path, blobs
        self._busy = threading.Lock()
        self._sha, self._hashed = hashlib.sha256(), 0

    @property
    def offset(self) -> int:
        """The number of bytes received."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            raise UploadUnknown(f"upload {self.id} has ended") from None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the upload for one request alone; UploadBusy while another one has it."""
        if not self._busy.acquire(blocking=False):
            raise self._is_busy()
        try:
            with self._opened() as file:
                if not lock_within(file.fileno(), 0.0):
                    raise self._is_busy()
                yield
        finally:
            self._busy.release()

    def _opened(self) -> IO[bytes]:
        try:
            return self._path.open("rb+")
        except FileNotFoundError:
            raise UploadUnknown(f"upload {self.id} has ended") from None

    def _is_busy(self) -> UploadBusy:
        return UploadBusy(f"upload {self.id} is served to another request at this moment; ask for its status and continue from there")

    def append(self, fill: Fill, length: int | None, most: int) -> None:
        """Append the bytes that `fill` puts into buffers: `length` of them if known, up to `most` in the whole upload."""
        begin = at = self.offset
        if length is not None and at + length > most:
            raise SizeInvalid(f"a blob may have {most} bytes; this would be {at + length}")
        with self._path.open("ab") as file:

            def take(piece: memoryview) -> None:
                nonlocal at
                at += len(piece)
                if at > most:
                    raise SizeInvalid(f"a blob may have {most} bytes; this has more")
                file.write(piece)

            hashing = self._hashing(begin)
            came = pour(lambda buffer: self._filled(fill, buffer), take, hashing)
        if length is not None and came < length:
            raise UploadInvalid(f"{came} bytes came of {length} announced: truncated; resume from byte {at}")

    def _hashing(self, begin: int) -> Callable[[memoryview], None]:
        """A function that continues the hash, unless the registry was restarted meanwhile: then `verify` reads the whole file."""

        def hash_on(piece: memoryview) -> None:
            nonlocal begin
            if self._hashed == begin:
                self._sha.update(piece)
                self._hashed += len(piece)
            begin += len(piece)

        return hash_on

    def _filled(self, fill: Fill, buffer: memoryview) -> int:
        try:
            return fill(buffer)
        except OSError as e:
            raise UploadInvalid(f"the connection broke: {e}; resume the upload from its last byte") from e

    def must_begin_at(self, begin: int) -> None:
        """RangeInvalid unless the upload has exactly `begin` bytes."""
        if begin != self.offset:
            raise RangeInvalid(f"upload {self.id} stands at byte {self.offset}, the chunk begins at {begin}", self.offset)

    def verify(self, digest: str) -> int:
        """Sync the file to the disk; returns its size. DigestInvalid, and the upload is removed, if its bytes have another digest."""
        algorithm = check_digest(digest).partition(":")[0]
        size = self.offset
        with self._path.open("rb") as file:
            known = algorithm == "sha256" and self._hashed == size
            came = f"{algorithm}:{(self._sha if known else hashlib.file_digest(file, algorithm)).hexdigest()}"
            if came != digest:
                self.cancel()
                raise DigestInvalid(f"expected blob {digest}, got {came} from {size} bytes: truncated or garbled, refused; push again")
            os.fsync(file.fileno())
        return size

    def keep(self, digest: str) -> None:
        """Make it a blob under the digest that has been verified."""
        self._blobs.keep(self._path, digest)

    def cancel(self) -> None:
        """Remove the upload and its bytes."""
        self._path.unlink(missing_ok=True)


class Uploads:
    """All uploads under way, at most `most`. An upload's name ends with a mark of its repository, so that no other repository finishes it.

    `silence_s`: when there are too many, uploads that have received nothing for longer than this are removed.
    """

    def __init__(self, blobs: Blobs, most: int, silence_s: float) -> None:
        self._blobs, self._most, self._silence_s = blobs, most, silence_s
        self._known: dict[str, Upload] = {}
        self._lock = threading.Lock()

    def begin(self, repository: str, now: float) -> Upload:
        """A new, empty upload; TooManyUploads if there is no room for it."""
        path = self._blobs.incoming / (secrets.token_hex(16) + _mark(repository))
        with self._lock:
            there = self._by_age()
            for silent_since, oldest in there[: len(there) - self._most + 1]:
                if silent_since > now - self._silence_s or not self._forget(oldest):
                    raise TooManyUploads(
                        f"{len(there)} uploads are under way, the registry's limit; finish or cancel some, or try again later"
                    )
            path.touch(mode=0o600, exist_ok=False)
        return self.find(repository, path.name)

    def find(self, repository: str, name: str) -> Upload:
        """The upload of that name; UploadUnknown if this repository has none."""
        path = self._blobs.incoming / name
        with self._lock:
            if not _ID.fullmatch(name) or not name.endswith(_mark(repository)) or not path.exists():
                self._known.pop(name, None)
                raise UploadUnknown(f"{repository!r} has no upload {name!r:.100}: it has ended or expired; start a new one")
            return self._known.setdefault(name, Upload(path, self._blobs))

    def expire(self, before: float) -> int:
        """Remove uploads that have received nothing since `before` (seconds since the epoch); returns their number."""
        with self._lock:
            gone = sum(self._forget(path) for last_byte, path in self._by_age() if last_byte < before)
            self._known = {n: u for n, u in self._known.items() if (self._blobs.incoming / n).exists()}
        return gone

    def _by_age(self) -> list[tuple[float, Path]]:
        """(time of the last byte, file) of every upload, the longest silent one first."""
        return sorted((_last_byte(path), path) for path in self._blobs.incoming.iterdir() if _ID.fullmatch(path.name))

    def _forget(self, path: Path) -> bool:
        """Remove the upload; False while a request uses it: none can take it between this check and the removal of its file."""
        upload = self._known.setdefault(path.name, Upload(path, self._blobs))
        try:
            with upload.taken():
                upload.cancel()
        except UploadBusy:
            return False
        except UploadUnknown:  # another process has removed or finished it
            pass
        return True


def _last_byte(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _mark(repository: str) -> str:
    return hashlib.sha256(repository.encode()).hexdigest()[:16]
