"""The OCI distribution API under /v2: blobs in one request, manifests by tag or digest. Reads are open."""

from __future__ import annotations

from flask import Blueprint, Response, request, send_file

from registry import catalogue
from registry.web import caller, reply, services
from udo_protocol.errors import UsageError

routes = Blueprint("oci", __name__, url_prefix="/v2")


@routes.get("/")
def base() -> Response:
    """Says that this is a registry."""
    return reply({})


@routes.post("/<name>/blobs/uploads/")
def push_blob(name: str) -> Response:
    """The whole blob in one request; refused and forgotten unless its bytes have the digest."""
    s = services()
    digest = request.args.get("digest")
    if digest is None:
        raise UsageError("expected the whole blob in this request: POST .../blobs/uploads/?digest=sha256:...")
    request.max_content_length = s.config.blob_bytes
    s.blobs.write(digest, request.stream, request.content_length)
    return _created(f"/v2/{name}/blobs/{digest}", digest)


@routes.get("/<name>/blobs/<digest>")
def get_blob(name: str, digest: str) -> Response:
    """The blob, or only its size (HEAD), or a range of it."""
    path = services().blobs.require(digest)
    response = send_file(path, mimetype="application/octet-stream", conditional=True, etag=digest, max_age=31536000)
    response.headers["Docker-Content-Digest"] = digest
    return response


@routes.put("/<name>/manifests/<ref>")
def put_manifest(name: str, ref: str) -> Response:
    """Make a version."""
    s = services()
    request.max_content_length = s.config.manifest_bytes
    with s.store.write() as session:
        digest, created = catalogue.put_manifest(session, s.blobs, caller(), name, ref, request.get_data())
    return _created(f"/v2/{name}/manifests/{digest}", digest, 201 if created else 200)


@routes.get("/<name>/manifests/<ref>")
def get_manifest(name: str, ref: str) -> Response:
    """The OCI manifest, byte for byte as it was pushed."""
    s = services()
    with s.store.read() as session:
        version = catalogue.find(session, name, ref)
    response = Response(s.blobs.require(version.digest).read_bytes(), mimetype=catalogue.OCI_MANIFEST)
    response.headers["Docker-Content-Digest"] = version.digest
    return response


def _created(location: str, digest: str, status: int = 201) -> Response:
    return Response(b"", status, headers={"Location": location, "Docker-Content-Digest": digest})
