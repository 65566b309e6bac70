"""Operator images on this node: pulled by digest from the registry, checked, unpacked once, never changed.

`images/<digest>/` holds `manifest.json`, `layers.json`, `code/` and `deps/`; it appears whole or not at all. Layers are not trusted: a
process of its own unpacks each, and no lock is held meanwhile. Whole images are pulled by the driver.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import structlog

from node_manager.drivers.base import OWN_PYTHON_TAG
from node_manager.images import listing
from node_manager.images.unpack import PREFIXES, require_space, unpack
from udo_protocol.errors import OperatorError, ProtocolError, Refused, UdoError, Unavailable, UsageError
from udo_protocol.formats.manifest import Manifest, parse

# This many of the latest images are kept for a rollback, even if nothing here uses them.
KEPT = 20
# Reasons of refusals that are kept, one per version refused since this node manager started.
REFUSALS_KEPT = 1000
# The prefix of an image that is being pulled, or removed: never used as an image, and gone with the next start.
_DRAFT = ".pull-"
_log = structlog.get_logger()
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")


class Source(Protocol):
    """The source of images: udo_protocol.registry.api.Registry."""

    def version(self, name: str, ref: str) -> Mapping[str, Any]:
        """`{name, version, digest, manifest, layers: [{digest, size, kind}]}`."""

    def fetch_blob(self, name: str, digest: str, path: Path) -> Any:
        """Write the blob to `path`."""


@dataclass(frozen=True)
class OperatorImage:
    """One operator version, its code unpacked. `layers`: {digest, size, kind} with kind base, dependencies or code."""

    digest: str
    manifest: Manifest
    directory: Path
    layers: tuple[Mapping[str, Any], ...] = ()

    @property
    def reference(self) -> str:
        """`name@sha256:…`, by which the registry gives the whole image."""
        return f"{self.manifest.name}@{self.digest}"

    @property
    def has_code(self) -> bool:
        """Whether `udo push` has packed code into it, which can run outside of the image too."""
        return self.code.is_dir() or any(layer["kind"] == "code" for layer in self.layers)

    @property
    def has_base(self) -> bool:
        """Whether it brings a root file system, so that it can run as a container."""
        return any(layer["kind"] == "base" for layer in self.layers)

    @property
    def code(self) -> Path:
        """The operator's own modules."""
        return self.directory / "code"

    @property
    def dependencies(self) -> Path:
        """The operator's dependencies; may be empty."""
        return self.directory / "deps"


def require_match(manifest: Manifest, mine: str = OWN_PYTHON_TAG, *, interpreter: bool = True) -> None:
    """OperatorError if its dependencies were resolved for another platform than this node's, or with `interpreter` for another Python."""
    tag, where = manifest.python_tag if interpreter else "", manifest.platform
    os_name, machine = platform.system().lower(), platform.machine().lower()
    fits_python = tag in ("", mine) or tag.startswith("py3")
    fits_platform = where in ("", "any") or (
        where.endswith(f"_{machine}") and where.startswith((os_name, f"many{os_name}", f"musl{os_name}"))
    )
    if not (fits_python and fits_platform):
        here = f"{os_name}_{machine}"
        raise OperatorError(
            f"operator {manifest.reference} was packaged for {tag or 'any Python'} on {where or 'any platform'}, this node runs {mine} "
            f"on {here}: push a version for it (udo push --python {mine[2]}.{mine[3:]} --platform {here})"
        )


def _require_digest(path: Path, digest: str) -> None:
    with path.open("rb") as f:
        actual = "sha256:" + hashlib.file_digest(f, "sha256").hexdigest()
    if actual != digest:
        raise ProtocolError(f"the registry sent different content than requested: expected {digest}, got {actual}")


class Images:
    """The images of one node. `whole`: its driver runs whole images, so an image needs no code layer."""

    def __init__(self, directory: Path, source: Source | None = None, *, whole: bool = False, python_tag: str = OWN_PYTHON_TAG) -> None:
        self._directory, self._source, self._whole, self._python_tag = directory, source, whole, python_tag
        self._known: dict[str, OperatorImage] = {}
        self._pulls: dict[str, Future[OperatorImage]] = {}  # digest -> the result that all its callers wait for
        self._refused: dict[str, str] = {}  # digest -> reason
        self._read: set[str] = set()  # digests of images whose files have been read and compared
        self._lock = Lock()
        self._mending: dict[str, Lock] = {}  # digest -> held while the image is checked

    def clean(self) -> None:
        """Remove what a killed node manager left unfinished. For the manager that holds the home, before its first `get`."""
        for draft in self._directory.glob(f"{_DRAFT}*"):
            shutil.rmtree(draft, ignore_errors=True)

    def get(self, operator: str, version: str = "", digest: str = "", *, again: bool = True) -> OperatorImage:
        """The image, pulled if needed; checked against this node. NotFound, Unavailable, OperatorError or Refused if it cannot be had.

        Another operator's image is treated as absent. `again=False`: for requests that repeat by themselves; a version that was
        refused once stays refused for them.
        """
        with self._lock:
            there = self._local(digest) if digest else self._by_version(operator, version)
        # Another operator's image would run with this one's variables, secrets and files.
        image = there if there and there.manifest.name == operator else self._pulled(operator, digest or version, again)
        self._require_runnable(image)
        return image

    def mend(self, image: OperatorImage) -> None:
        """Check the image before it is used, and fetch it again if it is damaged on disk. OperatorError if it cannot be."""
        with self._lock:
            alone = self._mending.setdefault(image.digest, Lock())
        with alone:
            if not (why := listing.damage(image.directory, contents=image.digest not in self._read)):
                self._read.add(image.digest)
                return
            _log.warning("image damaged; fetching it again", image=image.reference, why=why)
            there = f"the image {image.reference} is damaged on this node ({image.directory / why})"
            if self._source is None:
                raise OperatorError(f"{there}, which has no registry to fetch it again from; start it with --registry URL")
            try:
                self._pull(image.manifest.name, image.digest, self._source.version(image.manifest.name, image.digest))
            except UdoError as e:
                raise OperatorError(f"{there}, and it cannot be fetched again: {e}") from e

    def _pulled(self, operator: str, ref: str, again: bool) -> OperatorImage:
        """Pull the image for the first caller; concurrent callers for the same one share the result, and other callers do not wait."""
        if self._source is None:
            raise Unavailable(f"operator {operator}@{ref} is not on this node, which has no registry; start it with --registry URL")
        found = self._source.version(operator, ref)
        digest = found["digest"]
        with self._lock:
            if (image := self._local(digest)) is not None:
                return image
            if not again and digest in self._refused:
                raise Refused(self._refused[digest])
            pull, mine = self._pulls.get(digest), Future[OperatorImage]()
            if pull is None:
                self._pulls[digest] = mine
        if pull is not None:
            return pull.result()
        try:
            mine.set_result(self._pull(operator, digest, found))
        except BaseException as e:
            mine.set_exception(e)
        with self._lock:
            del self._pulls[digest]
            self._refused.pop(digest, None)
            if isinstance(why := mine.exception(), Refused):
                self._refused[digest] = str(why)
                if len(self._refused) > REFUSALS_KEPT:
                    del self._refused[next(iter(self._refused))]
        return mine.result()

    def _require_runnable(self, image: OperatorImage) -> None:
        """OperatorError unless this node's driver can run it."""
        brings_interpreter = self._whole and image.has_base
        require_match(image.manifest, self._python_tag, interpreter=not brings_interpreter)
        if not image.has_code and not self._whole:
            raise OperatorError(
                f"operator {image.manifest.reference} is a whole image without a code layer of udo push: only the Docker driver runs it. "
                "Start this node with --driver docker, or push the operator's folder: udo push DIRECTORY"
            )

    def prune(self, used: set[str], kept: int = KEPT) -> list[str]:
        """Remove all but the `used` images and the `kept` latest ones; return references of those removed."""
        removed, gone = [], []
        with self._lock:
            found = sorted(self._directory.glob("sha256-*"), key=lambda p: p.stat().st_mtime, reverse=True)
            for path in [p for p in found[kept:] if p.name.replace("-", ":") not in used]:
                if (image := self._local(path.name.replace("-", ":", 1))) is not None:
                    removed.append(image.reference)
                    del self._known[image.digest]
                with suppress(OSError):
                    gone.append(path.rename(path.with_name(f"{_DRAFT}{path.name}")))
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
        return removed

    def _path(self, digest: str) -> Path:
        if not _DIGEST.match(digest):
            raise UsageError(f"expected a digest like sha256:<64 hex digits>, got {digest!r}")
        return self._directory / digest.replace(":", "-")

    def _local(self, digest: str) -> OperatorImage | None:
        if digest not in self._known:
            path = self._path(digest)
            manifest = path / "manifest.json"
            if not manifest.exists():
                return None
            layers = path / "layers.json"
            try:
                known = json.loads(layers.read_bytes()) if layers.exists() else ()
                self._known[digest] = OperatorImage(digest, Manifest.model_validate_json(manifest.read_bytes()), path, tuple(known))
            except ValueError as e:
                _log.warning("image damaged; as if it were not here", image=digest, why=str(e))
                return None
        return self._known[digest]

    def _by_version(self, operator: str, version: str) -> OperatorImage | None:
        for path in self._directory.glob("sha256-*/manifest.json"):
            image = self._local(path.parent.name.replace("-", ":"))
            if image and (image.manifest.name, image.manifest.version) == (operator, version):
                return image
        return None

    def _pull(self, operator: str, digest: str, found: Mapping[str, Any]) -> OperatorImage:
        assert self._source is not None
        manifest = parse(dict(found["manifest"]), f"manifest of {operator}@{digest}")
        layers: Sequence[Mapping[str, Any]] = found["layers"]
        kinds, path = [layer["kind"] for layer in layers], self._path(digest)
        image = OperatorImage(digest, manifest, path, tuple(layers))
        self._require_runnable(image)  # before anything is fetched
        if twice := [kind for kind in PREFIXES if kinds.count(kind) > 1]:
            raise Refused(f"refused: the image has {kinds.count(twice[0])} layers of kind {twice[0]}, expected at most one")
        with tempfile.TemporaryDirectory(prefix=_DRAFT, dir=self._directory, ignore_cleanup_errors=True) as name:
            new = Path(name) / "image"
            new.mkdir()
            for kind in PREFIXES if "code" in kinds else ():
                (new / Path(PREFIXES[kind]).name).mkdir()
            for layer in layers:
                if layer["kind"] not in PREFIXES:
                    continue  # a runtime base: for drivers that run whole images
                blob = Path(name) / "layer"
                require_space(self._directory, layer["size"])
                self._source.fetch_blob(operator, layer["digest"], blob)
                _require_digest(blob, layer["digest"])
                unpack(blob, layer["kind"], new / Path(PREFIXES[layer["kind"]]).name)
            listing.write(new, [Path(PREFIXES[kind]).name for kind in PREFIXES])
            (new / "layers.json").write_text(json.dumps(list(layers)), "utf-8")
            (new / "manifest.json").write_text(manifest.model_dump_json(), "utf-8")
            if path.exists():  # damaged, or without its manifest: replaced
                path.rename(Path(name) / "former")
            new.rename(path)
            self._read.add(digest)
        return image
