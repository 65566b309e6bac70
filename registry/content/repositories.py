"""The content of each repository: blobs, manifests, tags, referrers; and its garbage collection. All writes under the store's lock.

A manifest is stored only once its repository holds all that it needs, and content that a manifest needs is never removed, so a
stored manifest is always whole. Blobs are the repository's own (their files are shared), so deleting one harms no other repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from registry.content.uploads import Upload
from registry.domain import catalogue, images
from registry.domain.audit import Caller, record
from registry.domain.images import ImageManifest
from registry.oci_errors import (
    BlobUnknown,
    DigestInvalid,
    InUse,
    ManifestBlobUnknown,
    ManifestInvalid,
    ManifestUnknown,
    NameInvalid,
    NameUnknown,
    Unsigned,
)
from registry.store.blobs import Blobs, check_digest, digest_of
from registry.store.models import Holding, StoredManifest, Tag, Version
from udo_protocol.errors import Conflict, ManifestError
from udo_protocol.formats.manifest import LATEST
from udo_protocol.registry import signing

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
# Annotation in an index for a manifest that is no image but describes one (BuildKit).
ATTESTED = "vnd.docker.reference.type"
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")


def check_name(name: str) -> str:
    """The repository name itself, or NameInvalid."""
    if len(name) > 255 or not _NAME.fullmatch(name):
        raise NameInvalid(f"repository {name!r:.100}: expected lower-case letters, digits and single . _ - / between them, at most 255")
    return name


def hold(session: Session, repository: str, digest: str, now: float) -> None:
    """Record that the repository holds this stored blob; garbage collection spares it for a while."""
    session.merge(Holding(repository=repository, digest=digest, touched_at=now))


def holding(session: Session, repository: str, digest: str) -> Holding:
    """The repository's record of this blob; BlobUnknown unless it holds it."""
    if held := session.get(Holding, (repository, check_digest(digest))):
        return held
    raise BlobUnknown(f"repository {repository!r} has no blob {digest}")


def finish(session: Session, upload: Upload, repository: str, digest: str, now: float) -> None:
    """Make a verified upload a blob of the repository."""
    upload.keep(digest)
    hold(session, repository, digest, now)


def mount(session: Session, repository: str, digest: str, source: str | None, now: float) -> bool:
    """Take over a blob that another repository (any, without `source`) holds. Returns whether there was one."""
    query = select(Holding).where(Holding.digest == check_digest(digest)).limit(1)
    if session.scalar(query if source is None else query.where(Holding.repository == source)) is None:
        return False
    hold(session, repository, digest, now)
    return True


def resolve(session: Session, repository: str, ref: str) -> StoredManifest:
    """The manifest under a digest or tag; `latest` of an operator is the version pushed last."""
    digest = check_digest(ref) if ":" in ref else None
    if ref == LATEST:
        digest = session.scalar(select(Version.digest).where(Version.name == repository).order_by(Version.id.desc()).limit(1))
    if digest is None and (tag := session.get(Tag, (repository, ref))):
        digest = tag.digest
    if digest and (found := session.get(StoredManifest, (repository, digest))):
        return found
    known = list(session.scalars(select(Tag.name).where(Tag.repository == repository).limit(1000)))
    raise ManifestUnknown(f"repository {repository!r} has no manifest {ref!r:.150}{catalogue.near(ref, known)}")


@dataclass(frozen=True)
class PushedManifest:
    """A manifest as it was pushed under a tag or its digest, and what it says."""

    repository: str
    ref: str
    body: bytes
    image: ImageManifest


def put(session: Session, blobs: Blobs, caller: Caller, pushed: PushedManifest, trusted: Path | None = None) -> str:
    """Store a manifest; returns its digest. A labelled image under a tag becomes an operator version, with `trusted` keys only if one of
    them has signed it."""
    repository, ref, body, image = pushed.repository, pushed.ref, pushed.body, pushed.image
    tag = None if ":" in ref else _tag(ref)
    digest = digest_of(body, "sha256" if tag else check_digest(ref).partition(":")[0])
    if not tag and digest != ref:
        raise DigestInvalid(f"the manifest was pushed as {ref}, its digest is {digest}: truncated or garbled, refused; push again")
    _require_all(session, blobs, repository, image)
    if tag:
        named, whole = _child(session, blobs, repository, digest, image)
        _keep_versions(session, repository, tag, named)
        if version := catalogue.admit(session, blobs, caller, repository, tag, named, whole):
            if trusted is not None:
                _require_signature(session, blobs, version, trusted)
            session.add(version)
    blobs.write(digest, body)
    if session.get(StoredManifest, (repository, digest)) is None:
        needs = list(dict.fromkeys(d.digest for d in image.needs))
        row = {"media_type": image.media_type, "subject": image.subject, "needs": needs}
        session.add(StoredManifest(repository=repository, digest=digest, **row, pushed_at=caller.now, pushed_by=caller.who))
    if tag:
        before = session.get(Tag, (repository, tag))
        if before is None or before.digest != digest:
            record(session, caller, "push", before=before.digest if before else "", after=digest, detail=f"{repository}@{tag}")
        session.merge(Tag(repository=repository, name=tag, digest=digest))
    return digest


def _child(session: Session, blobs: Blobs, repository: str, digest: str, image: ImageManifest) -> tuple[str, ImageManifest]:
    """The image itself, or an index's only image beside attestations about it. ManifestError for an operator with several images."""
    if not image.children or "/" in repository:
        return digest, image
    found = [d for d in image.children if ATTESTED not in d.annotations]
    read = {d.digest: images.read(blobs.require(d.digest).read_bytes(), d.media_type) for d in found}
    if not any(catalogue.label_of(blobs, child) is not None for child in read.values()):
        return digest, image
    if len(read) == 1:
        return next(iter(read.items()))
    raise ManifestError(
        f"the index has {len(read)} images ({', '.join(read)}), and an operator's version is one image: build it for the nodes' platform "
        "(docker buildx build --platform linux/amd64), and push each platform under a version of its own"
    )


def _require_signature(session: Session, blobs: Blobs, version: Version, trusted: Path) -> None:
    """Unsigned unless a signature by a trusted key is attached to the image."""
    keys, seen = signing.load_trusted(trusted), []
    query = select(StoredManifest.digest, StoredManifest.media_type).where(
        StoredManifest.repository == version.name, StoredManifest.subject == version.digest
    )
    for digest, media_type in session.execute(query):
        attached = images.read(blobs.require(digest).read_bytes(), media_type)
        if attached.artifact_type != signing.ARTIFACT_TYPE:
            continue
        if signing.signer(keys, attached.annotations, version.name, version.version, version.digest):
            return
        seen.append(str(attached.annotations.get(signing.KEY))[:19])
    signed = f"its signatures ({', '.join(seen[:5])}) are by none of them or do not fit" if seen else "it has no signature"
    raise Unsigned(
        f"{version.name}@{version.version} does not become a version: this registry takes what is signed by one of "
        f"{len(keys)} trusted keys ({', '.join(signing.key_id(k)[:19] for k in keys[:5])}), {signed}; push with --sign KEY"
    )


def _tag(text: str) -> str:
    if not _TAG.fullmatch(text):
        raise NameInvalid(f"tag {text!r:.100}: expected letters, digits, '.', '_' or '-', at most 128, or a digest")
    return text


def _keep_versions(session: Session, repository: str, tag: str, digest: str) -> None:
    if tag == LATEST and session.scalar(select(Version.id).where(Version.name == repository).limit(1)):
        raise Conflict(f"{repository}:{LATEST} is the version of operator {repository} that was pushed last; push this under another tag")
    there = session.scalar(select(Version).where(Version.name == repository, Version.version == tag))
    if there and there.digest != digest:
        raise Conflict(
            f"{repository}@{tag} exists with other content ({there.digest}, this is {digest}); versions never change: "
            "raise the version in operator.toml"
        )


def _require_all(session: Session, blobs: Blobs, repository: str, image: ImageManifest) -> None:
    """ManifestBlobUnknown unless the repository holds all that the image needs; ManifestInvalid unless all have the stated sizes."""
    for need in image.needs:
        row = session.get(Holding, (repository, need.digest)) or (image.children and session.get(StoredManifest, (repository, need.digest)))
        stored = blobs.size(need.digest) if row else None
        if stored is None:
            what = "the manifest" if image.children else "the blob"
            raise ManifestBlobUnknown(
                f"{what} {need.digest} has not been uploaded to {repository!r}; push it first, then what refers to it"
            )
        if stored != need.size:
            raise ManifestInvalid(f"{need.digest} has {stored} bytes, the manifest says {need.size}")


def tags(session: Session, repository: str, last: str, most: int) -> list[str]:
    """Up to `most` tags after `last`, in order; NameUnknown if the repository holds no manifest."""
    query = select(Tag.name).where(Tag.repository == repository, Tag.name > last).order_by(Tag.name).limit(most)
    found = list(session.scalars(query))
    if not found and session.scalar(select(StoredManifest.digest).where(StoredManifest.repository == repository).limit(1)) is None:
        raise NameUnknown(f"no repository {repository!r}{catalogue.near(repository, names(session, '', 1000))}")
    return found


def names(session: Session, last: str, most: int) -> list[str]:
    """Up to `most` repositories after `last`, in order."""
    return list(
        session.scalars(
            select(StoredManifest.repository)
            .where(StoredManifest.repository > last)
            .distinct()
            .order_by(StoredManifest.repository)
            .limit(most)
        )
    )


def referrers(session: Session, blobs: Blobs, repository: str, subject: str, last: str, most: int) -> list[dict[str, Any]]:
    """Descriptors of up to `most` manifests attached to `subject`, in order of their digests after `last`."""
    query = select(StoredManifest).where(
        StoredManifest.repository == repository, StoredManifest.subject == check_digest(subject), StoredManifest.digest > last
    )
    found = []
    for row in session.scalars(query.order_by(StoredManifest.digest).limit(most)):
        body = blobs.require(row.digest).read_bytes()
        image = images.read(body, row.media_type)
        optional = {"artifactType": image.artifact_type, "annotations": image.annotations}
        found.append({"mediaType": row.media_type, "digest": row.digest, "size": len(body), **{k: v for k, v in optional.items() if v}})
    return found


def delete_manifest(session: Session, caller: Caller, repository: str, ref: str, *, force: bool = False) -> None:
    """Forget a tag, or, given a digest, the manifest and all its tags. Conflict while a deployment uses the version, or an index needs it.

    `force`: even a version that a deployment would roll back to.
    """
    row = resolve(session, repository, ref)
    by_digest = ":" in ref
    named = select(Tag).where(Tag.repository == repository, Tag.digest == row.digest)
    doomed = session.scalars(named if by_digest else named.where(Tag.name == ref)).all()
    if not by_digest and not doomed:
        raise ManifestUnknown(f"repository {repository!r} has no tag {ref!r:.150}")
    if by_digest and (users := [u.digest for u in _in(session, repository) if row.digest in u.needs]):
        raise InUse(f"{repository}@{row.digest} is part of {', '.join(users[:3])}; delete that first")
    gone: list[ColumnElement[bool]] = [Version.version.in_([tag.name for tag in doomed])]  # also of an index that holds the version's image
    gone += [Version.digest == row.digest] if by_digest else []
    for version in session.scalars(select(Version).where(Version.name == repository, or_(*gone))).all():
        catalogue.retire(session, version, force=force)
    for tag in doomed:
        session.delete(tag)
    if by_digest:
        session.delete(row)
    record(session, caller, "delete", before=row.digest, detail=f"{repository}@{ref}")


def delete_version(session: Session, caller: Caller, version: Version, *, force: bool = False) -> None:
    """Forget an operator version, with the signatures and provenance that are attached to its image. `force`: as in delete_manifest."""
    name, digest = version.name, version.digest
    tag = session.get(Tag, (name, version.version))
    if tag is not None and tag.digest != digest:  # an index
        delete_manifest(session, caller, name, tag.digest, force=force)
        session.flush()
    delete_manifest(session, caller, name, digest, force=force)
    for attached in session.scalars(
        select(StoredManifest).where(StoredManifest.repository == name, StoredManifest.subject == digest)
    ).all():
        delete_manifest(session, caller, name, attached.digest)


def delete_blob(session: Session, repository: str, digest: str) -> None:
    """Forget a blob of this repository; InUse while a manifest needs it. Its file goes with the next garbage collection."""
    held = holding(session, repository, digest)
    if users := [u.digest for u in _in(session, repository) if digest in u.needs]:
        raise InUse(f"blob {digest} of {repository!r} is part of {', '.join(users[:3])}; delete the manifest first")
    session.delete(held)


def forget_unused(session: Session, before: float, *, untagged: bool = False) -> None:
    """Forget blobs that no manifest needs and no push has touched since `before`; their files may go after the commit (`not_held`).

    `untagged`: also manifests older than `before` that have no tag, belong to no index and are attached to nothing.
    """
    if untagged:
        _forget_untagged(session, before)
    rows = session.execute(select(StoredManifest.repository, StoredManifest.needs)).all()
    needed = {(r.repository, digest) for r in rows for digest in r.needs}
    for held in session.scalars(select(Holding).where(Holding.touched_at < before)).all():
        if (held.repository, held.digest) not in needed:
            session.delete(held)


def not_held(session: Session, digests: Iterable[str]) -> list[str]:
    """The digests that are neither a manifest nor held by a repository."""
    kept = set(session.scalars(select(StoredManifest.digest))) | set(session.scalars(select(Holding.digest)))
    return [digest for digest in digests if digest not in kept]


def _forget_untagged(session: Session, before: float) -> None:
    """Forget untagged manifests, repeatedly: an index may hold the last reference to another one."""
    while True:
        rows = session.scalars(select(StoredManifest)).all()
        used = {(t.repository, t.digest) for t in session.scalars(select(Tag))} | {(r.repository, d) for r in rows for d in r.needs}
        there = {(r.repository, r.digest) for r in rows}
        doomed = [
            r for r in rows if (r.repository, r.digest) not in used and (r.repository, r.subject) not in there and r.pushed_at < before
        ]
        if not doomed:
            return
        for row in doomed:
            session.delete(row)
        session.flush()


def _in(session: Session, repository: str) -> Iterable[StoredManifest]:
    return session.scalars(select(StoredManifest).where(StoredManifest.repository == repository))
