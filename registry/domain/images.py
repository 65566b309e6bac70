"""Parse image manifests and indexes of OCI and Docker (schema 2): bytes in, descriptors out. No storage, no I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from registry.oci_errors import ManifestInvalid
from registry.store.blobs import check_digest
from udo_protocol.formats.media_types import DOCKER_CONFIG, DOCKER_LIST, DOCKER_MANIFEST, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST

IMAGES, INDEXES = (OCI_MANIFEST, DOCKER_MANIFEST), (OCI_INDEX, DOCKER_LIST)
IMAGE_CONFIGS = (OCI_CONFIG, DOCKER_CONFIG)
# Layers that registries do not hold; a client fetches them from the URLs that they name.
_ELSEWHERE = (".foreign.", ".nondistributable.")


@dataclass(frozen=True)
class Descriptor:
    """A reference by digest."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, Any]


@dataclass(frozen=True)
class ImageManifest:
    """A manifest: `config` and `layers` of an image, or `children` of an index; `subject` is the digest it is attached to."""

    media_type: str
    config: Descriptor | None
    layers: tuple[Descriptor, ...]
    children: tuple[Descriptor, ...]
    subject: str
    artifact_type: str
    annotations: dict[str, Any]

    @property
    def needs(self) -> list[Descriptor]:
        """The content that must be stored before it."""
        held = [d for d in self.layers if not any(mark in d.media_type for mark in _ELSEWHERE)]
        return [*([self.config] if self.config else []), *held, *self.children]


def read_json(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `data`; ManifestInvalid otherwise."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise ManifestInvalid(f"{what} is not JSON: {e}") from e
    if not isinstance(found, dict):
        raise ManifestInvalid(f"{what}: expected a JSON object, got {type(found).__name__}")
    return found


def read(body: bytes, content_type: str = "") -> ImageManifest:
    """The manifest in `body`, of the media type it names itself or else `content_type`; ManifestInvalid names what is wrong."""
    table = read_json(body, "the manifest")
    said, sent = table.get("mediaType"), content_type.partition(";")[0].strip()
    if said is None and "manifests" in table and "layers" in table:
        raise ManifestInvalid("the manifest has both manifests and layers and no mediaType: it could be read in two ways")
    media_type = said or (sent if sent in (*IMAGES, *INDEXES) else OCI_INDEX if "manifests" in table else OCI_MANIFEST)
    if sent in (*IMAGES, *INDEXES) and sent != media_type:
        raise ManifestInvalid(f"the manifest says mediaType {media_type!r:.100}, but was sent as Content-Type {sent!r}")
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    children: tuple[Descriptor, ...] = ()
    if media_type in INDEXES:
        children = _descriptors(table, "manifests")
    elif media_type in IMAGES:
        config, layers = _descriptor(table.get("config"), "config"), _descriptors(table, "layers")
    else:
        raise ManifestInvalid(f"expected an image manifest or index ({', '.join((*IMAGES, *INDEXES))}), got {media_type!r:.200}")
    subject = _descriptor(table["subject"], "subject").digest if table.get("subject") is not None else ""
    artifact_type = table.get("artifactType") or (config.media_type if config else "")
    return ImageManifest(media_type, config, layers, children, subject, str(artifact_type), _annotations(table, "the manifest"))


def _descriptors(table: dict[str, Any], field: str) -> tuple[Descriptor, ...]:
    entries = table.get(field)
    if not isinstance(entries, list):
        raise ManifestInvalid(f"{field}: expected a list of descriptors, got {type(entries).__name__}")
    return tuple(_descriptor(entry, f"{field}[{i}]") for i, entry in enumerate(entries))


def _descriptor(entry: Any, where: str) -> Descriptor:
    if not isinstance(entry, dict):
        raise ManifestInvalid(f"{where}: expected a descriptor with mediaType, digest and size, got {type(entry).__name__}")
    media_type, digest, size = entry.get("mediaType"), entry.get("digest"), entry.get("size")
    if not isinstance(media_type, str) or not isinstance(digest, str) or type(size) is not int or size < 0:
        raise ManifestInvalid(f"{where}: expected a descriptor with mediaType (text), digest (text) and size (bytes)")
    return Descriptor(media_type, check_digest(digest), size, _annotations(entry, where))


def _annotations(table: dict[str, Any], where: str) -> dict[str, Any]:
    found = table.get("annotations") or {}
    if not isinstance(found, dict):
        raise ManifestInvalid(f"{where}: annotations: expected an object, got {type(found).__name__}")
    return found
