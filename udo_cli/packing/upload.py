"""Brings an image into the registry: layers, config, then the manifest that makes them a version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from udo_cli.output import short, size
from udo_cli.packing.image import Image
from udo_protocol.errors import ProtocolError
from udo_protocol.manifest import Manifest
from udo_protocol.registry_api import Registry


def upload(api: Registry, manifest: Manifest, image: Image, work: Path, say: Callable[[str], None]) -> None:
    """Send what the registry lacks. Conflict when the version exists with other content, Unauthorized without a token."""
    config = work / "config.json"
    config.write_bytes(image.config)
    for layer in image.layers:
        if api.has_blob(manifest.name, layer.digest):
            say(f"{layer.kind}: {short(layer.digest)} is there already")
            continue
        say(f"{layer.kind}: sending {short(layer.digest)} ({size(layer.size_bytes)})")
        api.push_blob(manifest.name, layer.digest, layer.path)
    api.push_blob(manifest.name, image.config_digest, config)
    said = api.put_manifest(manifest.name, manifest.version, image.manifest)
    if said != image.digest:
        raise ProtocolError(f"the registry stored {manifest.reference} as {said}, expected {image.digest}; push again")
