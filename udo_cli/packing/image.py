"""The OCI documents of an operator version: image config (with the operator manifest as a label) and image manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from udo_cli.packing.layers import MEDIA_TYPE, Layer
from udo_protocol.manifest import Manifest

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_LABEL = "dev.udo.manifest"
LAYER_ANNOTATION = "dev.udo.layer"
# OCI's names of the machines in platform tags.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class Image:
    """Canonical bytes of config and manifest, and the layers they name."""

    config: bytes
    manifest: bytes
    layers: tuple[Layer, ...]

    @property
    def config_digest(self) -> str:
        """sha256 of the config's bytes."""
        return digest_of(self.config)

    @property
    def digest(self) -> str:
        """sha256 of the manifest's bytes: the version's digest."""
        return digest_of(self.manifest)


def digest_of(data: bytes) -> str:
    """OCI's way of writing a sha256."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def assemble(manifest: Manifest, layers: Sequence[Layer]) -> Image:
    """The image of these layers: nothing in it depends on when or where it is made."""
    machine = manifest.platform.partition("_")[2]
    config = _canonical(
        {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {
                "Env": ["UDO_PYTHONPATH=/opt/udo/code:/opt/udo/deps"],
                "Labels": {MANIFEST_LABEL: manifest.model_dump_json()},
                "WorkingDir": "/opt/udo/code",
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
    )
    document = _canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": digest_of(config), "size": len(config)},
            "layers": [
                {"mediaType": MEDIA_TYPE, "digest": la.digest, "size": la.size_bytes, "annotations": {LAYER_ANNOTATION: la.kind}}
                for la in layers
            ],
        }
    )
    return Image(config, document, tuple(layers))


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
