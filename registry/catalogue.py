"""Operators and their immutable versions: an OCI manifest becomes a version once it is proven whole and valid."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from registry import audit
from registry.audit import Caller, iso
from registry.blobs import Blobs, check_digest
from registry.models import Deployment, Update, Version
from udo_protocol.errors import Conflict, ManifestError, NotFound
from udo_protocol.manifest import Manifest, parse

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LABEL = "dev.udo.manifest"
LAYER = "dev.udo.layer"


def near(name: str, names: list[str]) -> str:
    """A sentence with the names closest to `name`, or all of a few."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:5]
    return f"; there are: {', '.join(close)}" if close else "; there are none yet"


def find(session: Session, name: str, ref: str = "latest") -> Version:
    """The version under a tag, a digest or `latest` (the one pushed last); NotFound lists near ones."""
    query = select(Version).where(Version.name == name).order_by(Version.id.desc()).limit(1)
    if ref != "latest":
        query = query.where(or_(Version.version == ref, Version.digest == ref))
    if version := session.scalar(query):
        return version
    versions = list(session.scalars(select(Version.version).where(Version.name == name).order_by(Version.id.desc()).limit(50)))
    if versions:
        raise NotFound(f"operator {name!r} has no version {ref!r}{near(ref, versions)}")
    raise NotFound(f"no operator {name!r}{near(name, list(session.scalars(select(Version.name).distinct().limit(1000))))}")


def describe(version: Version) -> dict[str, Any]:
    """A version as the API shows it."""
    return {
        "name": version.name,
        "version": version.version,
        "digest": version.digest,
        "manifest": version.manifest,
        "layers": version.layers,
        "created_at": iso(version.created_at),
        "pushed_by": version.pushed_by,
    }


def operators(session: Session) -> list[dict[str, Any]]:
    """Every operator with its versions, the latest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for v in session.scalars(select(Version).order_by(Version.name, Version.id.desc())):
        short = {"version": v.version, "digest": v.digest, "created_at": iso(v.created_at), "pushed_by": v.pushed_by}
        found.setdefault(v.name, []).append(short)
    return [{"name": name, "latest": versions[0]["version"], "versions": versions} for name, versions in found.items()]


def _blob_json(blobs: Blobs, digest: str, what: str) -> dict[str, Any]:
    try:
        data = json.loads(blobs.require(digest).read_bytes())
    except ValueError as e:
        raise ManifestError(f"{what} {digest} is not JSON: {e}") from e
    if not isinstance(data, dict):
        raise ManifestError(f"{what} {digest}: expected a JSON object, got {type(data).__name__}")
    return data


def _descriptor(blobs: Blobs, entry: Any, where: str) -> dict[str, Any]:
    """A descriptor whose blob is stored with the announced size; ManifestError names what is wrong."""
    if not isinstance(entry, dict) or not isinstance(entry.get("digest"), str) or not isinstance(entry.get("size"), int):
        raise ManifestError(f"{where}: expected an OCI descriptor with mediaType, digest and size")
    stored = blobs.size(check_digest(entry["digest"]))
    if stored is None:
        raise ManifestError(f"{where}: blob {entry['digest']} has not been uploaded; push the blobs first, then the manifest")
    if stored != entry["size"]:
        raise ManifestError(f"{where}: blob {entry['digest']} has {stored} bytes, the manifest says {entry['size']}")
    return entry


def _read(blobs: Blobs, body: bytes) -> tuple[Manifest, list[dict[str, Any]], list[str]]:
    """(operator manifest, layers, digests) of an OCI manifest whose blobs are all there."""
    try:
        image = json.loads(body)
    except ValueError as e:
        raise ManifestError(f"the OCI manifest is not JSON: {e}") from e
    if not isinstance(image, dict) or image.get("mediaType", OCI_MANIFEST) != OCI_MANIFEST or not isinstance(image.get("layers"), list):
        raise ManifestError(f"expected an OCI image manifest ({OCI_MANIFEST}) with config and layers")
    config = _descriptor(blobs, image.get("config"), "config")
    layers = [_descriptor(blobs, entry, f"layer {i}") for i, entry in enumerate(image["layers"])]
    labels = (_blob_json(blobs, config["digest"], "image config").get("config") or {}).get("Labels") or {}
    try:
        table = json.loads(labels[LABEL])
    except KeyError:
        raise ManifestError(f"the image config has no label {LABEL}: this image is no operator; make one with: udo push") from None
    except (TypeError, ValueError) as e:
        raise ManifestError(f"label {LABEL} of the image config is not JSON: {e}") from e
    if not isinstance(table, dict):
        raise ManifestError(f"label {LABEL} of the image config: expected a JSON object, got {type(table).__name__}")
    kinds = [{"digest": e["digest"], "size": e["size"], "kind": (e.get("annotations") or {}).get(LAYER, "base")} for e in layers]
    if "code" not in [k["kind"] for k in kinds]:
        raise ManifestError(f"no layer is annotated {LAYER}=code: the image carries no operator code")
    return parse(table, f"label {LABEL}"), kinds, [config["digest"], *(e["digest"] for e in layers)]


def put_manifest(session: Session, blobs: Blobs, caller: Caller, name: str, ref: str, body: bytes) -> tuple[str, bool]:
    """Make a version (digest, whether it is new). The same content again is fine, other content under its name a Conflict."""
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    manifest, layers, digests = _read(blobs, body)
    if manifest.name != name:
        raise ManifestError(f"the operator's manifest says name {manifest.name!r}, but it was pushed as {name!r}")
    if ref not in (manifest.version, digest):
        raise ManifestError(f"the operator's manifest says version {manifest.version!r}, but it was pushed as {ref!r} (digest {digest})")
    there = session.scalar(select(Version).where(Version.name == name, Version.version == manifest.version))
    if there and there.digest != digest:
        raise Conflict(
            f"{name}@{manifest.version} exists with other content ({there.digest}, this is {digest}); versions never change: "
            "raise the version in operator.toml"
        )
    blobs.write(digest, io.BytesIO(body))
    if there:
        return digest, False
    session.add(
        Version(
            name=name,
            version=manifest.version,
            digest=digest,
            manifest=manifest.model_dump(mode="json"),
            layers=layers,
            blobs=[digest, *digests],
            created_at=caller.now,
            pushed_by=caller.who,
        )
    )
    audit.record(session, caller, "push", after=digest, detail=manifest.reference)
    return digest, True


def delete(session: Session, blobs: Blobs, caller: Caller, name: str, ref: str) -> list[str]:
    """Forget a version; Conflict while a deployment or a running update uses it. Digests nobody refers to any more."""
    version = find(session, name, ref)
    users = list(session.scalars(select(Deployment.name).where(Deployment.version_id == version.id)))
    open_update = select(Update.deployment).where(
        Update.state.in_(("preparing", "promoting")), or_(Update.to_digest == version.digest, Update.from_digest == version.digest)
    )
    if users := sorted({*users, *session.scalars(open_update)}):
        raise Conflict(f"{name}@{version.version} is in use by {', '.join(users)}; update or undeploy first")
    session.delete(version)
    session.flush()
    kept = {digest for used in session.scalars(select(Version.blobs)) for digest in used}
    audit.record(session, caller, "delete", before=version.digest, detail=f"{name}@{version.version}")
    return [digest for digest in version.blobs if digest not in kept]
