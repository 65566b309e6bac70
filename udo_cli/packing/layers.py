"""Reproducible OCI layers: the same files give the same bytes, whoever packs them, wherever and whenever.

Every entry has a fixed time, owner and mode and the entries are sorted; the gzip header carries no name and no time.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from udo_protocol.errors import UsageError

TAR_TYPE = "application/vnd.oci.image.layer.v1.tar"
MEDIA_TYPE = f"{TAR_TYPE}+gzip"
# Never part of an operator: version control, caches, environments, hidden files.
SKIPPED_NAMES = frozenset({"__pycache__", "build", "dist", "node_modules", "venv"})
SKIPPED_SUFFIXES = (".pyc", ".pyo", ".egg-info")
# Of these, what Python makes by itself wherever a module is imported: nobody misses it.
_CACHES = ("__pycache__", ".pyc", ".pyo")
_PIECE = 1 << 20
CODE_ROOT = "opt/udo/code"
DEPENDENCIES_ROOT = "opt/udo/deps"


@dataclass(frozen=True)
class Layer:
    """One packed layer on disk. `digest` is of the compressed bytes, `diff_id` of the tar, `size_bytes` compressed."""

    path: Path
    kind: str  # "dependencies", "code", or "base" for a layer of somebody else's image
    digest: str
    diff_id: str
    size_bytes: int
    media_type: str = MEDIA_TYPE


class _Digesting:
    """A write-only file that hashes and counts what passes through it."""

    def __init__(self, sink: BinaryIO | gzip.GzipFile) -> None:
        self._sink, self.hash, self.size_bytes = sink, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Hash, count, pass on."""
        self.hash.update(data)
        self.size_bytes += len(data)
        return self._sink.write(data)

    def flush(self) -> None:
        """GzipFile asks for it."""
        self._sink.flush()


def files_of(directory: Path) -> Iterator[tuple[str, Path]]:
    """The files an operator's folder contributes, as sorted (path inside, path on disk); links that leave it are refused."""
    return ((inside, path) for inside, path, kept in _walk(directory) if kept)


def left_out(directory: Path) -> list[str]:
    """What of an operator's folder stays out of its package, folders with a slash behind; without the caches that Python makes."""
    return [inside for inside, path, kept in _walk(directory) if not kept and not path.name.endswith(_CACHES)]


def _walk(directory: Path) -> Iterator[tuple[str, Path, bool]]:
    """(path inside, path on disk, whether it is packed) of each file, and of each folder that is left out as a whole."""
    root = directory.resolve()

    def walk(folder: Path, inside: str) -> Iterator[tuple[str, Path, bool]]:
        for entry in sorted(folder.iterdir(), key=lambda p: p.name):
            if entry.name.startswith(".") or entry.name in SKIPPED_NAMES or entry.name.endswith(SKIPPED_SUFFIXES):
                yield f"{inside}{entry.name}{'/' * entry.is_dir()}", entry, False
                continue
            if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                raise UsageError(f"{entry} points outside of {directory}: copy the file into the operator's folder")
            if entry.is_symlink() and entry.is_dir():
                raise UsageError(f"{entry} is a link to a folder: move the folder itself into the operator's folder")
            if entry.is_dir():
                yield from walk(entry, f"{inside}{entry.name}/")
            else:  # a link to nowhere, a socket or a pipe cannot be packed
                yield f"{inside}{entry.name}", entry, entry.is_file()

    return walk(root, "")


def compress(tar: BinaryIO, target: Path) -> Layer:
    """A layer of a tar that somebody else made, as it stands."""
    with target.open("wb") as raw:
        packed = _Digesting(raw)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as zipped:
            plain = _Digesting(zipped)
            shutil.copyfileobj(tar, plain, _PIECE)
    return Layer(target, "base", f"sha256:{packed.hash.hexdigest()}", f"sha256:{plain.hash.hexdigest()}", packed.size_bytes)


def copy(layer: BinaryIO, target: Path) -> Layer:
    """A layer that somebody else has packed; what is in it (`diff_id`, `media_type`) its image knows."""
    with target.open("wb") as raw:
        packed = _Digesting(raw)
        shutil.copyfileobj(layer, packed, _PIECE)
    return Layer(target, "base", f"sha256:{packed.hash.hexdigest()}", "", packed.size_bytes)


def plain(tar: BinaryIO, target: Path) -> Layer:
    """The same, not compressed."""
    made = copy(tar, target)
    return replace(made, diff_id=made.digest, media_type=TAR_TYPE)


def pack(kind: str, root: str, files: Iterator[tuple[str, Path]], target: Path) -> Layer:
    """Write the layer of `files` below `root` to `target`."""
    with target.open("wb") as raw:
        packed = _Digesting(raw)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as zipped:
            plain = _Digesting(zipped)
            with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
                for folder in _parents(root):
                    tar.addfile(_folder(folder))
                _add_all(tar, root, files)
    return Layer(target, kind, f"sha256:{packed.hash.hexdigest()}", f"sha256:{plain.hash.hexdigest()}", packed.size_bytes)


def _add_all(tar: tarfile.TarFile, root: str, files: Iterator[tuple[str, Path]]) -> None:
    seen: set[str] = set()
    for inside, path in files:
        for folder in _parents(inside.rpartition("/")[0]):
            if folder not in seen:
                seen.add(folder)
                tar.addfile(_folder(f"{root}/{folder}"))
        info = tarfile.TarInfo(f"{root}/{inside}")
        info.size = path.stat().st_size
        info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
        with path.open("rb") as data:
            tar.addfile(info, data)


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def _parents(path: str) -> list[str]:
    parts = [p for p in path.split("/") if p]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]
