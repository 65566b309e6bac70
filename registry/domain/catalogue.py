"""Operators and their immutable versions: an image becomes a version if a label of its config is an operator's manifest."""

from __future__ import annotations

import difflib
import json
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from registry.domain.audit import Caller, iso
from registry.domain.images import IMAGE_CONFIGS, ImageManifest, read_json
from registry.store.blobs import Blobs
from registry.store.models import Deployment, Update, Version
from udo_protocol.errors import Conflict, ManifestError, NotFound
from udo_protocol.formats.manifest import LATEST, Manifest, parse
from udo_protocol.lifecycle import UPDATE_OPEN

LABEL = "dev.udo.manifest"
LAYER = "dev.udo.layer"
# The config of an image with a thousand history entries has some 100 KiB; it is read into memory.
CONFIG_BYTES = 4 << 20
# Every node receives the operator's manifest with every change; one with a thousand columns has 50 KiB.
LABEL_BYTES = 256 << 10
# The most layers that container engines stack.
LAYERS_MOST = 127


def near(name: str, names: list[str]) -> str:
    """A clause with the names closest to `name`, or the first few if none is close."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:5]
    return f"; there are: {', '.join(close)}" if close else "; there are none yet"


def find(session: Session, name: str, ref: str = LATEST) -> Version:
    """The version under a tag, a digest or `latest` (the one pushed last); NotFound lists similar names."""
    query = select(Version).where(Version.name == name).order_by(Version.id.desc()).limit(1)
    if ref != LATEST:
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


def admit(session: Session, blobs: Blobs, caller: Caller, repository: str, tag: str, digest: str, image: ImageManifest) -> Version | None:
    """The new version of an image whose config is labelled as an operator; None for a plain image or a known version.

    An operator's own repository has its name, and a tag there its version: anything else is refused. A repository with a
    slash cannot be an operator's; images copied there stay plain images.
    """
    if "/" in repository or (label := label_of(blobs, image)) is None:
        return None
    manifest = _labelled(label)
    layers = [{"digest": d.digest, "size": d.size, "kind": str(d.annotations.get(LAYER, "base"))} for d in image.layers]
    kinds = [layer["kind"] for layer in layers if layer["kind"] != "base"]
    if kinds and "code" not in kinds:
        raise ManifestError(f"layers are annotated {LAYER}, but none as code: the image carries no operator code")
    if len(layers) > LAYERS_MOST or len(kinds) != len(set(kinds)):
        raise ManifestError(
            f"the image has {len(layers)} layers, {len(kinds)} of them annotated {LAYER}; expected at most {LAYERS_MOST}, and of each kind "
            "but base at most one"
        )
    if manifest.version == LATEST:
        raise ManifestError(f"version {LATEST!r}: that is what the version pushed last is called; give this one a name of its own")
    if manifest.name != repository:
        raise ManifestError(f"the operator's manifest says name {manifest.name!r}, but it was pushed as {repository!r}")
    if manifest.version != tag:
        raise ManifestError(f"the operator's manifest says version {manifest.version!r}, but it was pushed as {tag!r} (digest {digest})")
    if session.scalar(select(Version.id).where(Version.name == repository, Version.version == tag)):
        return None
    return Version(
        name=repository,
        version=tag,
        digest=digest,
        manifest=manifest.model_dump(mode="json"),
        layers=layers,
        created_at=caller.now,
        pushed_by=caller.who,
    )


def label_of(blobs: Blobs, image: ImageManifest) -> Any:
    """The label of the image's config for an operator's manifest; None for a plain image."""
    if image.config is None or image.config.media_type not in IMAGE_CONFIGS:
        return None
    if image.config.size > CONFIG_BYTES:
        raise ManifestError(f"the image config has {image.config.size} bytes; expected at most {CONFIG_BYTES}")
    config = read_json(blobs.require(image.config.digest).read_bytes(), f"image config {image.config.digest}").get("config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    return labels.get(LABEL) if isinstance(labels, dict) else None


def _labelled(text: Any) -> Manifest:
    if isinstance(text, str) and len(text) > LABEL_BYTES:
        raise ManifestError(f"label {LABEL} of the image config has {len(text)} characters; expected at most {LABEL_BYTES}")
    try:
        table = json.loads(text)
    except (TypeError, ValueError, RecursionError) as e:
        raise ManifestError(f"label {LABEL} of the image config is not JSON: {e}") from e
    if not isinstance(table, dict):
        raise ManifestError(f"label {LABEL} of the image config: expected a JSON object, got {type(table).__name__}")
    return parse(table, f"label {LABEL}")


def retire(session: Session, version: Version, *, force: bool = False) -> None:
    """Make it a plain image again; Conflict while a deployment or a running update uses it.

    Without `force` also while a deployment would roll back to it; with it, the deployment would roll back to an earlier version.
    """
    users = list(session.scalars(select(Deployment.name).where(Deployment.version_id == version.id)))
    open_update = select(Update.deployment).where(
        Update.state.in_(UPDATE_OPEN), or_(Update.to_digest == version.digest, Update.from_digest == version.digest)
    )
    if users := sorted({*users, *session.scalars(open_update)}):
        raise Conflict(f"{version.name}@{version.version} is in use by {', '.join(users)}; update or undeploy first")
    served_before = [d for d in session.scalars(select(Deployment)) if any(p["digest"] == version.digest for p in d.previous)]
    if not force and (users := sorted(d.name for d in served_before if d.previous[0]["digest"] == version.digest)):
        raise Conflict(
            f"{version.name}@{version.version} is what a rollback of {', '.join(users)} would lead to; with --force (?force=true) it is "
            "deleted all the same"
        )
    for deployment in served_before:
        deployment.previous = [p for p in deployment.previous if p["digest"] != version.digest]
    session.delete(version)
