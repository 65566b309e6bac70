"""The OCI distribution API under /v2: routes that check, call one function of the domain, and answer. Reads are open."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, request, send_file, url_for

from registry.content import repositories
from registry.content.uploads import Upload
from registry.domain import images
from registry.http import auth, body
from registry.http.web import caller, on_error, reply, services
from registry.oci_errors import DigestInvalid, PaginationInvalid, RangeInvalid, SizeInvalid, UploadInvalid
from registry.store.blobs import check_digest
from udo_protocol.formats.media_types import OCI_INDEX

routes = Blueprint("oci", __name__, url_prefix="/v2")
PAGE = 1000


@routes.url_value_preprocessor
def _check(_endpoint: str | None, values: dict[str, Any] | None) -> None:
    if values and "name" in values:
        repositories.check_name(values["name"])


def mark(response: Response) -> Response:
    """Add the header that Docker's clients look for in every answer."""
    if request.path.startswith("/v2/"):
        response.headers["Docker-Distribution-API-Version"] = "registry/2.0"
    return response


@routes.get("/")
def base() -> Response:
    """Answer that this is a registry, and tell a request without credentials how to authenticate (reads do not need it)."""
    given = request.authorization
    if given is not None and given.token == auth.ANONYMOUS:
        return reply({})
    auth.check(given, services().tokens)
    return reply({})


@routes.get("/token")
def token() -> Response:
    """The token service of the Bearer challenge: the write token in exchange for it as password, else a token that only reads."""
    given, said = request.authorization, auth.ANONYMOUS
    if given is not None:
        auth.check(given, services().tokens)
        said = (given.password if given.type == "basic" else given.token) or ""
    response = reply({"token": said, "access_token": said, "expires_in": 3600})
    response.headers["Cache-Control"] = "no-store"
    return response


@routes.get("/_catalog")
def catalog() -> Response:
    """All repositories, in order."""
    last, most = _page()
    with services().store.read() as session:
        found = repositories.names(session, last, most + 1)
    return _paged({"repositories": found[:most]}, found[:most], len(found) > most, {})


@routes.get("/<path:name>/tags/list")
def tags(name: str) -> Response:
    """The tags of a repository, in order."""
    last, most = _page()
    with services().store.read() as session:
        found = repositories.tags(session, name, last, most + 1)
    return _paged({"name": name, "tags": found[:most]}, found[:most], len(found) > most, {})


@routes.get("/<path:name>/referrers/<digest>")
def referrers(name: str, digest: str) -> Response:
    """An index of the manifests attached to this one, of one artifact type only if given."""
    last, most = _page()
    with services().store.read() as session:
        found = repositories.referrers(session, services().blobs, name, digest, last, most + 1)
    wished = request.args.get("artifactType")
    shown = [d for d in found[:most] if wished in (None, d.get("artifactType"))]
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": shown}
    keep = {"artifactType": wished} if wished is not None else {}
    response = _paged(index, [d["digest"] for d in found[:most]], len(found) > most, keep)
    response.mimetype = OCI_INDEX
    if wished is not None:
        response.headers["OCI-Filters-Applied"] = "artifactType"
    return response


@routes.get("/<path:name>/manifests/<ref>")
def get_manifest(name: str, ref: str) -> Response:
    """The manifest, byte for byte as it was pushed."""
    s = services()
    with s.store.read() as session:
        found = repositories.resolve(session, name, ref)
    response = Response(s.blobs.require(found.digest).read_bytes(), content_type=found.media_type)
    response.headers["Docker-Content-Digest"] = found.digest
    return response


@routes.put("/<path:name>/manifests/<ref>")
def put_manifest(name: str, ref: str) -> Response:
    """Store a manifest whose blobs are pushed; it may make an operator version."""
    s = services()
    request.max_content_length = s.config.manifest_bytes
    document = request.get_data()
    image = images.read(document, request.content_type or "")
    pushed = repositories.PushedManifest(name, ref, document, image)
    with s.store.write(durable=True) as session:
        digest = repositories.put(session, s.blobs, caller(), pushed, s.config.trusted_keys)
    response = _created(url_for("oci.get_manifest", name=name, ref=digest), digest)
    if image.subject:
        response.headers["OCI-Subject"] = image.subject
    return response


@routes.delete("/<path:name>/manifests/<ref>")
def delete_manifest(name: str, ref: str) -> Response:
    """Forget a tag, or a manifest with all its tags."""
    with services().store.write(durable=True) as session:
        repositories.delete_manifest(session, caller(), name, ref)
    return Response(b"", 202)


@routes.get("/<path:name>/blobs/<digest>")
def get_blob(name: str, digest: str) -> Response:
    """The blob, or only its size (HEAD), or a range of it."""
    s = services()
    with s.store.read() as session:
        touched_at = repositories.holding(session, name, digest).touched_at
    if request.method == "HEAD" and s.clock() - touched_at > s.config.unused_kept_s / 4:
        # A client pushes and relies on it from now on: garbage collection must know.
        with s.store.write(durable=True) as session:
            repositories.holding(session, name, digest).touched_at = s.clock()
    path = s.blobs.require(digest)
    response = send_file(path, mimetype="application/octet-stream", conditional=True, etag=digest, max_age=31536000)
    response.headers["Docker-Content-Digest"] = digest
    return response


@routes.delete("/<path:name>/blobs/<digest>")
def delete_blob(name: str, digest: str) -> Response:
    """Forget a blob that no manifest of this repository needs."""
    with services().store.write(durable=True) as session:
        repositories.delete_blob(session, name, digest)
    return Response(b"", 202)


@routes.post("/<path:name>/blobs/uploads/")
def begin_upload(name: str) -> Response:
    """Mount a blob of another repository (`mount`, `from`), take a whole one (`digest`), or begin an upload."""
    s = services()
    wished, digest = request.args.get("mount"), request.args.get("digest")
    if wished is not None:
        with s.store.write(durable=True) as session:
            if repositories.mount(session, name, wished, request.args.get("from"), s.clock()):
                return _created(url_for("oci.get_blob", name=name, digest=wished), wished)
    if digest is not None and wished is None:
        check_digest(digest)
    upload = s.uploads.begin(name, s.clock())
    if digest is None or wished is not None:
        return _standing(name, upload, 202)
    with upload.taken():
        try:
            _append(upload)
            return _finish(name, upload, digest)
        except BaseException:  # the client does not know the upload's name yet, so it cannot resume it
            upload.cancel()
            raise


@routes.get("/<path:name>/blobs/uploads/<upload_id>")
def upload_status(name: str, upload_id: str) -> Response:
    """The status of an upload."""
    return _standing(name, services().uploads.find(name, upload_id), 204)


@routes.patch("/<path:name>/blobs/uploads/<upload_id>")
def append(name: str, upload_id: str) -> Response:
    """Append the next chunk, or all the rest."""
    upload = services().uploads.find(name, upload_id)
    with upload.taken():
        try:
            _append(upload)
        except RangeInvalid as e:
            return _misplaced(name, upload, e)
        return _standing(name, upload, 202)


@routes.put("/<path:name>/blobs/uploads/<upload_id>")
def finish(name: str, upload_id: str) -> Response:
    """Append the last chunk, if there is one, and make the upload a blob if it has the digest."""
    upload, digest = services().uploads.find(name, upload_id), request.args.get("digest")
    if digest is None:
        raise DigestInvalid("expected the digest of the whole blob: PUT ...?digest=sha256:...")
    check_digest(digest)
    with upload.taken():
        try:
            _append(upload)
        except RangeInvalid as e:
            return _misplaced(name, upload, e)
        return _finish(name, upload, digest)


@routes.delete("/<path:name>/blobs/uploads/<upload_id>")
def cancel(name: str, upload_id: str) -> Response:
    """Forget an upload."""
    upload = services().uploads.find(name, upload_id)
    with upload.taken():
        upload.cancel()
    return Response(b"", 204)


def _append(upload: Upload) -> None:
    """Append the request's body, at the place in its Content-Range if it has one."""
    length = request.content_length
    if given := request.headers.get("Content-Range"):
        first, _, last = given.removeprefix("bytes ").partition("/")[0].partition("-")
        if not (first.isdecimal() and last.isdecimal() and len(given) < 100):
            raise UploadInvalid(f"Content-Range {given!r:.50}: expected <first byte>-<last byte>")
        upload.must_begin_at(int(first))
        if int(last) + 1 - int(first) != (length if length is not None else int(last) + 1 - int(first)):
            raise UploadInvalid(f"Content-Range {given!r} does not fit Content-Length {length}")
    try:
        upload.append(body.filler(request.environ), length, services().config.blob_bytes)
    except SizeInvalid:
        upload.cancel()
        raise


def _finish(name: str, upload: Upload, digest: str) -> Response:
    s = services()
    upload.verify(digest)
    with s.store.write(durable=True) as session:
        repositories.finish(session, upload, name, digest, s.clock())
    return _created(url_for("oci.get_blob", name=name, digest=digest), digest)


def _standing(name: str, upload: Upload, status: int) -> Response:
    headers = {
        "Location": url_for("oci.upload_status", name=name, upload_id=upload.id),
        "Range": f"0-{max(upload.offset - 1, 0)}",
        "Docker-Upload-UUID": upload.id,
    }
    return Response(b"", status, headers=headers)


def _misplaced(name: str, upload: Upload, e: RangeInvalid) -> Response:
    response, standing = on_error(e), _standing(name, upload, 416)
    for header in ("Location", "Range", "Docker-Upload-UUID"):
        response.headers[header] = standing.headers[header]
    return response


def _created(location: str, digest: str) -> Response:
    return Response(b"", 201, headers={"Location": location, "Docker-Content-Digest": digest})


def _page() -> tuple[str, int]:
    """(last, n) of the query string, n bounded."""
    n = request.args.get("n", str(PAGE))
    if not n.isdecimal():
        raise PaginationInvalid(f"?n=: expected a number of entries, got {n!r:.50}")
    return request.args.get("last", ""), min(int(n), PAGE)


def _paged(data: dict[str, Any], shown: list[str], more: bool, keep: dict[str, str]) -> Response:
    response = reply(data)
    if more and shown:
        query = urlencode({"n": len(shown), "last": shown[-1], **keep})
        response.headers["Link"] = f'<{request.path}?{query}>; rel="next"'
    return response
