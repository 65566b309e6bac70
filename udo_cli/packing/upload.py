"""Uploads an image to the registry: layers and config first, then the manifest, then the tag, which makes it a version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from udo_cli.packing.image import BuiltImage
from udo_cli.packing.provenance import PROVENANCE_TYPE
from udo_cli.text.output import short, size
from udo_protocol.errors import NotFound, ProtocolError
from udo_protocol.formats.manifest import Manifest
from udo_protocol.formats.media_types import OCI_EMPTY
from udo_protocol.registry import signing
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    from udo_protocol.registry.signing import PrivateKey

Say = Callable[[str], None]


def upload(
    api: Registry,
    manifest: Manifest,
    image: BuiltImage,
    say: Say,
    provenance: Mapping[str, str] | None = None,
    key: PrivateKey | None = None,
) -> None:
    """Upload an image as a version of the operator. Conflict if the version exists with other content; SignatureError; Unauthorized.

    Signature and provenance are attached before the tag: a registry may require a signature, and no version is visible without them.
    """
    name = manifest.name
    send(api, name, image, say)
    if key is not None or provenance is not None:
        put(api, name, image.digest, image)
    if key is not None:
        payload, annotations = signing.sign(key, name, manifest.version, image.digest)
        _attach(api, name, image, signing.ARTIFACT_TYPE, annotations, payload, signing.PAYLOAD_TYPE)
        say(f"signed with key {short(annotations[signing.KEY])}")
    if provenance is not None and not api.referrers(name, image.digest, PROVENANCE_TYPE):
        _attach(api, name, image, PROVENANCE_TYPE, provenance, b"{}", OCI_EMPTY)
    put(api, name, manifest.version, image)


def send(api: Registry, repository: str, image: BuiltImage, say: Say) -> None:
    """Send the blobs that the registry lacks; layers of a base are mounted from the base's repository."""
    if base := image.base:
        for below in base.layers:
            if not api.mount_blob(repository, below["digest"], base.repository):
                raise NotFound(f"the base {base.reference} has lost its layer {below['digest']}; publish it again: udo registry base push")
    for layer in image.layers:
        if api.has_blob(repository, layer.digest):
            say(f"{layer.kind}: {short(layer.digest)} is there already")
            continue
        say(f"{layer.kind}: sending {short(layer.digest)} ({size(layer.size_bytes)})")
        api.push_blob(repository, layer.digest, layer.path)
    api.push_bytes(repository, image.config)


def put(api: Registry, repository: str, ref: str, image: BuiltImage) -> None:
    """Store the manifest under a tag or its digest; its blobs must have been sent before."""
    said = api.put_manifest(repository, ref, image.manifest)
    if said != image.digest:
        raise ProtocolError(f"the registry stored {repository}:{ref} as {said}, expected {image.digest}; push again")


def _attach(
    api: Registry, repository: str, image: BuiltImage, artifact_type: str, annotations: Mapping[str, str], payload: bytes, kind: str
) -> None:
    api.attach(repository, image.digest, len(image.manifest), artifact_type, annotations, payload, kind)
