"""The OCI documents of an operator version: image config (with the operator's manifest as a label) and image manifest.

Pure functions: the same manifest, layers and base give the same bytes. Provenance is attached afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from udo_cli.packing.layers import Layer
from udo_protocol.formats.manifest import Manifest
from udo_protocol.formats.media_types import OCI_CONFIG, OCI_MANIFEST
from udo_protocol.registry.content import digest_of

MANIFEST_LABEL = "dev.udo.manifest"
LAYER_ANNOTATION = "dev.udo.layer"
BASE_NAME, BASE_DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"
PATHS = "/opt/udo/code:/opt/udo/deps"
# OCI's names of the machines in platform tags.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_EPOCH = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class BaseImage:
    """A base image in the registry; an operator's image adds its own layers and config to the base's."""

    repository: str
    tag: str
    digest: str
    config: Mapping[str, Any]
    layers: tuple[Mapping[str, Any], ...]  # descriptors

    @property
    def reference(self) -> str:
        """`repository:tag`."""
        return f"{self.repository}:{self.tag}"


@dataclass(frozen=True)
class BuiltImage:
    """The bytes of config and manifest, and the layers to upload; those of the base are in the registry already."""

    config: bytes
    manifest: bytes
    layers: tuple[Layer, ...]
    base: BaseImage | None = None

    @property
    def digest(self) -> str:
        """sha256 of the manifest's bytes: the version's digest."""
        return digest_of(self.manifest)


def platform_of(config: Mapping[str, Any]) -> str:
    """The platform of an image config, such as linux_x86_64 for linux and amd64."""
    machine = str(config.get("architecture", ""))
    return f"{config.get('os', '')}_{_MACHINES.get(machine, machine)}"


def assemble(manifest: Manifest, layers: Sequence[Layer], base: BaseImage | None = None) -> BuiltImage:
    """The image of these layers on `base`. It does not depend on the time, place or author of the build."""
    machine = manifest.platform.partition("_")[2]
    config: dict[str, Any] = dict(base.config) if base else {"architecture": _ARCHITECTURES.get(machine, machine), "os": "linux"}
    run = dict(config.get("config") or {})
    environment = dict(e.partition("=")[::2] for e in run.get("Env") or ())
    inherited = environment.get("UDO_PYTHONPATH", "")
    environment["UDO_PYTHONPATH"] = f"{PATHS}:{inherited}" if inherited else PATHS
    run |= {"Env": [f"{k}={v}" for k, v in environment.items()], "WorkingDir": "/opt/udo/code"}
    return _image(manifest, config | {"config": run}, layers, base)


def label(manifest: Manifest, config: Mapping[str, Any], layers: Sequence[Layer]) -> BuiltImage:
    """A whole image as an operator version: unchanged except for the operator's manifest as a label."""
    return _image(manifest, config, layers, None)


def plain(config: Mapping[str, Any], layers: Sequence[Layer]) -> BuiltImage:
    """A whole image, unchanged, such as a base."""
    data = _canonical(config)
    return BuiltImage(data, _document(data, [_descriptor(la) for la in layers], {}), tuple(layers))


def _image(manifest: Manifest, config: Mapping[str, Any], layers: Sequence[Layer], base: BaseImage | None) -> BuiltImage:
    run = dict(config.get("config") or {})
    run["Labels"] = {**(run.get("Labels") or {}), MANIFEST_LABEL: manifest.model_dump_json()}
    changed = {**config, "config": run}
    diff_ids = [*(config["rootfs"]["diff_ids"] if base else ()), *(la.diff_id for la in layers)]
    changed["rootfs"] = {"type": "layers", "diff_ids": diff_ids}
    if base and config.get("history"):
        changed["history"] = [*config["history"], *({"created": _EPOCH, "created_by": f"udo push: {la.kind}"} for la in layers)]
    data = _canonical(changed)
    annotations = {"org.opencontainers.image.title": manifest.name, "org.opencontainers.image.version": manifest.version}
    if base:
        annotations |= {BASE_NAME: base.reference, BASE_DIGEST: base.digest}
    below = [{k: la[k] for k in ("mediaType", "digest", "size")} for la in base.layers] if base else []
    return BuiltImage(data, _document(data, [*below, *map(_descriptor, layers)], annotations), tuple(layers), base)


def _descriptor(layer: Layer) -> dict[str, Any]:
    found: dict[str, Any] = {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size_bytes}
    return found if layer.kind == "base" else {**found, "annotations": {LAYER_ANNOTATION: layer.kind}}


def _document(config: bytes, layers: Sequence[Mapping[str, Any]], annotations: Mapping[str, str]) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": digest_of(config), "size": len(config)},
        "layers": list(layers),
    }
    return _canonical(document | ({"annotations": dict(annotations)} if annotations else {}))


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
