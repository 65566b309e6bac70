"""Content-addressed files: a file under a digest has that digest. Knows no repository and no operator.

`keep` and `write` return once the file and its directory entry are on the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from registry.oci_errors import BlobUnknown, DigestInvalid

# Digest algorithm -> its hexadecimal digits.
ALGORITHMS = {"sha256": 64, "sha512": 128}
# Folder of incomplete files.
INCOMING = "incoming"
_HEX = re.compile(r"[0-9a-f]+")


def check_digest(digest: str) -> str:
    """Return the digest, or raise DigestInvalid if it is not one."""
    algorithm, _, hexadecimal = digest.partition(":")
    if ALGORITHMS.get(algorithm) != len(hexadecimal) or not _HEX.fullmatch(hexadecimal):
        raise DigestInvalid(f"expected a digest 'sha256:' with 64 or 'sha512:' with 128 hexadecimal digits, got {digest!r:.100}")
    return digest


def digest_of(data: bytes, algorithm: str = "sha256") -> str:
    """The digest of these bytes."""
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


class Blobs:
    """`<root>/<algorithm>/<hex>`; a file appears there whole or not at all. `<root>/incoming` holds incomplete files."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.incoming = root / INCOMING
        for name in (INCOMING, *ALGORITHMS):
            (root / name).mkdir(parents=True, exist_ok=True)
        _sync(root)

    def path(self, digest: str) -> Path:
        """Path of the blob of that digest, whether or not it is stored."""
        algorithm, _, hexadecimal = check_digest(digest).partition(":")
        return self._root / algorithm / hexadecimal

    def size(self, digest: str) -> int | None:
        """Bytes of the blob, None if it is not stored."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def require(self, digest: str) -> Path:
        """Path of a stored blob; BlobUnknown otherwise."""
        if self.size(digest) is None:
            raise BlobUnknown(f"no blob {digest} is stored")
        return self.path(digest)

    def keep(self, file: Path, digest: str) -> None:
        """Take over a file that has this digest and is on the disk already."""
        path = self.path(digest)
        os.replace(file, path)
        _sync(path.parent)

    def write(self, digest: str, data: bytes) -> None:
        """Store a small blob, such as a manifest, whose digest has been checked."""
        if self.size(digest) == len(data):
            return
        with tempfile.NamedTemporaryFile(dir=self.incoming, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                self.keep(Path(file.name), digest)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    def everything(self) -> Iterator[str]:
        """The digests of all stored blobs."""
        for algorithm in ALGORITHMS:
            for entry in os.scandir(self._root / algorithm):
                yield f"{algorithm}:{entry.name}"

    def remove(self, digest: str) -> None:
        """Forget a blob that nothing refers to any more."""
        self.path(digest).unlink(missing_ok=True)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
