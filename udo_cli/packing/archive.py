"""Reads whole images that other tools have made: docker-archive, oci-archive, OCI layout, or by name from a Docker daemon.

Docker daemons are given image names only, never paths of files. The content of an archive is not trusted: names cannot refer to files
outside of the archive, and the registry checks every digest.
"""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from udo_cli.packing.image import LAYER_ANNOTATION
from udo_cli.packing.layers import Layer, compress, copy, plain
from udo_protocol.errors import NotFound, ProtocolError, Unavailable, UsageError
from udo_protocol.formats.media_types import DOCKER_TAR, DOCKER_TAR_GZIP, OCI_TAR, OCI_TAR_GZIP
from udo_protocol.formats.strict_tar import FILE, HARD_LINK, LINK, Reader, TarRefused
from udo_protocol.registry.content import parse_json

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from docker.models.images import Image

# Docker's media types -> OCI's.
_LAYER_TYPES = {
    DOCKER_TAR_GZIP: OCI_TAR_GZIP,
    DOCKER_TAR: OCI_TAR,
}
_GZIP = b"\x1f\x8b"
# Bounds of an archive: images have a few dozen layers; old ones contain chains of links from layer to layer.
_UNPACKED_BYTES, _ENTRIES, _HOPS = 64 << 30, 10_000, 10
# Configs and manifests are read into memory; a large one has about 100 KiB.
_JSON_BYTES = 16 << 20
_KINDS = "a docker-archive (docker save), an oci-archive, an OCI layout, or an image of the local Docker daemon"


@dataclass(frozen=True)
class Archive:
    """One image: its config, and its layers as files in the work directory."""

    config: Mapping[str, Any]
    layers: tuple[Layer, ...]


def read(source: str, work: Path, *, packed: bool = True, kinds: bool = False) -> Archive:
    """The image in the file or folder `source`, or else the image of that name in the local Docker daemon. Its layers are copied to `work`.

    With `packed`, uncompressed layers of a docker-archive are compressed, which takes longest and is not needed on a single machine.
    With `kinds`, layers that `udo push` has made keep the kind that it gave them; otherwise all are layers of a whole image.
    Raises NotFound, Unavailable (no Docker daemon), or UsageError if the archive is damaged or holds several images.
    """
    path = Path(source)
    if not path.exists():
        if source.startswith(("/", "./", "../")) or source.endswith((".tar", ".tar.gz", ".tgz")):
            raise NotFound(f"there is no file {source}; expected {_KINDS}")
        path = _saved(source, work / "saved.tar")
    with ExitStack() as stack:
        box: _Box = _Folder(path) if path.is_dir() else _Tar(path, stack)
        try:
            if box.has("manifest.json"):
                return _docker(box, source, work, pack=packed)
            if box.has("index.json"):
                return _oci(box, source, work, kinds=kinds)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise UsageError(f"{source} is damaged: {type(e).__name__}: {e}; expected {_KINDS}") from e
    raise UsageError(f"{source} holds neither manifest.json nor index.json; expected {_KINDS}")


class _Folder:
    """An OCI layout."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    def open(self, name: str) -> BinaryIO:
        path = (self._path / name).resolve()
        if not path.is_relative_to(self._path.resolve()) or not path.is_file():
            raise UsageError(f"{self._path} has no file {name}, which it refers to")
        return path.open("rb")


class _Tar:
    """An archive; `stack` closes it."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        try:
            raw = stack.enter_context(path.open("rb"))
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            self._file = cast(BinaryIO, stack.enter_context(gzip.open(raw))) if packed else raw  # noqa: SIM115 - the stack closes it
            most = _UNPACKED_BYTES if packed else path.stat().st_size
            self._members = {"/".join(m.path): m for m in Reader(self._file, most, _ENTRIES, foreign=True)}
        except (TarRefused, EOFError, OSError, zlib.error) as e:
            raise UsageError(f"{path} is not a readable archive: {e}; expected {_KINDS}") from e

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> BinaryIO:
        member = self._members.get(name)
        for _ in range(_HOPS):
            if member is None or member.kind not in (LINK, HARD_LINK):
                break
            begin = "/" + "/".join(member.path[:-1]) if member.kind == LINK else "/"
            member = self._members.get(posixpath.normpath(posixpath.join(begin, member.target)).lstrip("/"))
        if member is None or member.kind != FILE:
            raise UsageError(f"{self._path} has no file {name}, which it refers to")
        return cast(BinaryIO, io.BufferedReader(_Part(self._file, member.at, member.size)))


class _Part(io.RawIOBase):
    """A file that is a part of another file, from `begin`, of `size` bytes."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(self._begin + self._at)
        data = self._file.read(max(min(len(view), self._size - self._at), 0))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


_Box = _Folder | _Tar


def _json(box: _Box, name: str) -> dict[str, Any]:
    return _parse(_small(box, name), name)


def _small(box: _Box, name: str) -> bytes:
    with box.open(name) as file:
        data = file.read(_JSON_BYTES + 1)
    if len(data) > _JSON_BYTES:
        raise UsageError(f"{name} has more than {_JSON_BYTES >> 20} MiB; expected a JSON document of an image")
    return data


def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        return parse_json(data, name)
    except ProtocolError as e:
        raise UsageError(str(e)) from e


def _docker(box: _Box, source: str, work: Path, *, pack: bool) -> Archive:
    images = _parse(b'{"images":' + _small(box, "manifest.json") + b"}", "manifest.json")["images"]
    if len(images) != 1:
        raise UsageError(f"{source} holds {len(images)} images, expected one: docker save IMAGE -o FILE.tar")
    (entry,) = images
    config = _json(box, entry["Config"])
    layers: list[Layer] = []
    for name, diff_id in zip(entry["Layers"], _diff_ids(config, source), strict=True):
        with box.open(name) as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            target = work / f"layer-{len(layers)}"
            make = compress if pack else plain
            layer = replace(copy(file, target), diff_id=diff_id) if packed else make(file, target)
        if layer.diff_id != diff_id:
            raise UsageError(f"{source}: layer {name} has digest {layer.diff_id}, its config says {diff_id}: the archive is damaged")
        layers.append(layer)
    return Archive(config, tuple(layers))


def _oci(box: _Box, source: str, work: Path, *, kinds: bool) -> Archive:
    document = _json(box, "index.json")
    for _ in range(_HOPS):
        if "manifests" not in document:
            break
        images = [m for m in document["manifests"] if (m.get("platform") or {}).get("os", "linux") == "linux"]
        if len(images) != 1:
            shown = ", ".join(f"{(m.get('platform') or {}).get('architecture', '?')} {m['digest'][:19]}" for m in images) or "none"
            raise UsageError(f"{source}: expected one Linux image, there are: {shown}; copy one of them out: skopeo copy --override-arch")
        document = _json(box, _place(images[0]["digest"]))
    config = _json(box, _place(document["config"]["digest"]))
    layers: list[Layer] = []
    for descriptor, diff_id in zip(document["layers"], _diff_ids(config, source), strict=True):
        kind = _LAYER_TYPES.get(descriptor["mediaType"], descriptor["mediaType"])
        if not kind.startswith(OCI_TAR):
            raise UsageError(f"{source}: layer {descriptor['digest']} is of type {kind}, expected a tar that lies in the archive")
        with box.open(_place(descriptor["digest"])) as file:
            layer = replace(copy(file, work / f"layer-{len(layers)}"), diff_id=diff_id, media_type=kind)
        if layer.digest != descriptor["digest"]:
            raise UsageError(f"{source}: layer {descriptor['digest']} has digest {layer.digest}: the archive is damaged")
        made_by_push = (descriptor.get("annotations") or {}).get(LAYER_ANNOTATION)
        layers.append(replace(layer, kind=str(made_by_push)) if kinds and made_by_push else layer)
    return Archive(config, tuple(layers))


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _diff_ids(config: Mapping[str, Any], source: str) -> list[str]:
    found = (config.get("rootfs") or {}).get("diff_ids")
    if not isinstance(found, list):
        raise UsageError(f"{source}: the image config has no rootfs.diff_ids; expected {_KINDS}")
    return found


@contextmanager
def of_daemon(reference: str) -> Iterator[Image]:
    """The image of this name in the local Docker daemon, valid within the block. NotFound, or Unavailable (no daemon)."""
    import docker
    from docker.errors import DockerException, ImageNotFound

    try:
        client = docker.from_env()
    except DockerException as e:
        raise Unavailable(f"{reference} is not a file, and the Docker daemon does not answer ({e}); start it, or give {_KINDS}") from e
    try:
        yield client.images.get(reference)
    except ImageNotFound as e:
        raise NotFound(f"{reference} is neither a file nor an image of the local Docker daemon (docker images)") from e
    except DockerException as e:
        raise Unavailable(f"the Docker daemon does not hand out {reference}: {e}") from e
    finally:
        client.close()


def _saved(reference: str, target: Path) -> Path:
    """Save the image of this name from the local Docker daemon to `target`, as a docker-archive."""
    with of_daemon(reference) as image, target.open("wb") as file:
        for piece in image.save():
            file.write(piece)
    return target
