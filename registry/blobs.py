"""Content-addressed files: what stands under a digest has that digest, or is not there. Knows nothing of operators."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import IO

from udo_protocol.errors import NotFound, UsageError

_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_CHUNK = 1 << 20


def check_digest(digest: str) -> str:
    """The digest itself, or UsageError if it is not one."""
    if not _DIGEST.match(digest):
        raise UsageError(f"expected a digest 'sha256:' with 64 hexadecimal digits, got {digest!r:.100}")
    return digest


class Blobs:
    """`<root>/sha256/<hex>`; a file appears there whole or not at all."""

    def __init__(self, root: Path) -> None:
        self._dir = root / "sha256"
        self._incoming = root / "incoming"
        self._dir.mkdir(parents=True, exist_ok=True)
        self._incoming.mkdir(exist_ok=True)
        for left_over in self._incoming.iterdir():  # of a registry that was killed during an upload
            left_over.unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        """Where the blob of that digest stands or would stand."""
        return self._dir / check_digest(digest).removeprefix("sha256:")

    def size(self, digest: str) -> int | None:
        """Bytes of the blob, None if it is not stored."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def require(self, digest: str) -> Path:
        """Path of a stored blob; NotFound otherwise."""
        if self.size(digest) is None:
            raise NotFound(f"no blob {digest} is stored")
        return self.path(digest)

    def write(self, digest: str, source: IO[bytes], expected_bytes: int | None = None) -> int:
        """Store what `source` yields, if it has that digest; bytes stored. UsageError stores nothing."""
        path = self.path(digest)
        with tempfile.NamedTemporaryFile(dir=self._incoming, delete=False) as file:
            try:
                sha, size = hashlib.sha256(), 0
                while chunk := source.read(_CHUNK):
                    sha.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
                came = f"sha256:{sha.hexdigest()}"
                if came != digest:
                    of = "" if expected_bytes is None else f" of {expected_bytes} announced"
                    raise UsageError(f"expected blob {digest}, got {came} from {size} bytes{of}: truncated or garbled, refused; push again")
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        _sync_directory(self._dir)
        return size

    def remove(self, digest: str) -> None:
        """Forget a blob that nothing refers to any more."""
        self.path(digest).unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
