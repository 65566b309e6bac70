"""Small container images as files, in the formats that other tools write."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

TAR = "application/vnd.oci.image.layer.v1.tar"
MACHINE = "amd64"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar(**files: str) -> bytes:
    """Return a layer with these files; `__` in a name stands for a slash."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as out:
        for name, text in files.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(text.encode())
            out.addfile(info, io.BytesIO(text.encode()))
    return made.getvalue()


def config(*layers: bytes, **run: Any) -> dict[str, Any]:
    """Return the config of an image with these layers (uncompressed)."""
    diff_ids = [digest(la) for la in layers]
    history = [{"created_by": f"layer {i}"} for i, _ in enumerate(layers)]
    run = {"Entrypoint": ["/bin/run"], "Env": ["PATH=/bin", "UDO_PYTHONPATH=/opt/udo/runtime"], **run}
    return {"architecture": MACHINE, "os": "linux", "config": run, "rootfs": {"type": "layers", "diff_ids": diff_ids}, "history": history}


def docker_archive(path: Path, *layers: bytes, **run: Any) -> Path:
    """Write an image as `docker save` does."""
    described = json.dumps(config(*layers, **run)).encode()
    files = {f"{digest(described)[7:]}.json": described, **{f"{digest(la)[7:]}/layer.tar": la for la in layers}}
    entry = {"Config": f"{digest(described)[7:]}.json", "RepoTags": ["x:1"], "Layers": [f"{digest(la)[7:]}/layer.tar" for la in layers]}
    return tar_of(path, files | {"manifest.json": json.dumps([entry]).encode()})


def oci_layout(path: Path, *layers: bytes, more: list[dict[str, Any]] | None = None, **run: Any) -> Path:
    """Write an OCI layout folder with one image, whose layers are gzipped; its index has the entries `more`, too."""
    for name, data in _oci_files(layers, more or [], run).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def oci_archive(path: Path, *layers: bytes, **run: Any) -> Path:
    """Write the same as one file."""
    return tar_of(path, _oci_files(layers, [], run))


def _oci_files(layers: tuple[bytes, ...], more: list[dict[str, Any]], run: dict[str, Any]) -> dict[str, bytes]:
    described, packed = json.dumps(config(*layers, **run)).encode(), [gzip.compress(la, mtime=0) for la in layers]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(described), "size": len(described)},
            "layers": [{"mediaType": f"{TAR}+gzip", "digest": digest(la), "size": len(la)} for la in packed],
        }
    ).encode()
    entry = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(manifest), "size": len(manifest)}
    index = json.dumps({"schemaVersion": 2, "manifests": [*more, entry]}).encode()
    blobs = {f"blobs/sha256/{digest(data)[7:]}": data for data in (described, manifest, *packed)}
    return {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index, **blobs}


def tar_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as out:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path
