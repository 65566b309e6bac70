"""Images in the registry, by the OCI distribution API: blobs, manifests, attached artifacts. Large blobs never sit in memory."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from udo_protocol import errors
from udo_protocol.errors import ProtocolError
from udo_protocol.formats.media_types import OCI_EMPTY, OCI_MANIFEST
from udo_protocol.registry.http import BRIEFLY_S, RESTART_S, HttpClient, Json, retrying

_EMPTY = b"{}"
_CHUNK = 1 << 20


class ContentClient(HttpClient):
    """The content of one registry. A `repository` is an operator's name, or any other OCI repository."""

    def has_blob(self, repository: str, digest: str) -> bool:
        """Whether the repository has this blob."""
        try:
            self._send("HEAD", f"{_at(repository)}/blobs/{quote(digest, safe=':')}")
        except errors.NotFound:
            return False
        return True

    def push_blob(self, repository: str, digest: str, path: Path) -> None:
        """Upload the file at `path` as `digest`, unless the registry has it; an interrupted upload is resumed where it broke off."""
        if self.has_blob(repository, digest):
            return
        # Without `from` the registry searches all its repositories: a blob that any operator has is not sent again.
        begun = self._mount(repository, digest)
        if begun is None:
            return
        location, first = begun, True

        def upload() -> None:
            try:
                attempt()
            except errors.NotFound:  # the request that broke may have finished the upload meanwhile
                if not self.has_blob(repository, digest):
                    raise

        def attempt() -> None:
            nonlocal location, first
            begin = 0
            if not first:
                if self.has_blob(repository, digest):
                    return
                if last := int(self._send("GET", location).headers["Range"].partition("-")[2]):
                    begin = last + 1
                else:  # 0-0 stands for one byte, and for none: a new upload has none
                    anew = self._mount(repository, digest)
                    if anew is None:
                        return
                    location = anew
            first = False
            with path.open("rb") as file:
                rest = os.fstat(file.fileno()).st_size - file.seek(begin)
                headers = {"Content-Length": str(rest), "Content-Type": "application/octet-stream"}
                if begin and rest:  # a broken request may have stored more since the registry was asked
                    headers["Content-Range"] = f"{begin}-{begin + rest - 1}"
                content = iter(lambda: file.read(_CHUNK), b"")
                self._send("PUT", f"{location}?digest={quote_plus(digest)}", content=content, headers=headers)

        retrying(upload, RESTART_S)

    def push_bytes(self, repository: str, data: bytes) -> str:
        """Upload a small blob, unless the registry has it; returns its digest."""
        digest = digest_of(data)
        if not self.has_blob(repository, digest):
            self._send("POST", f"{_at(repository)}/blobs/uploads/?digest={quote_plus(digest)}", content=data, retry_s=BRIEFLY_S)
        return digest

    def mount_blob(self, repository: str, digest: str, source: str) -> bool:
        """Add a blob of the repository `source` to `repository` without sending it; returns whether `repository` has it now."""
        return self.has_blob(repository, digest) or self._mount(repository, digest, source) is None

    def _mount(self, repository: str, digest: str, source: str = "") -> str | None:
        """Mount a blob from another repository: None if one has it, else the location for its upload."""
        chosen = f"&from={quote_plus(source)}" if source else ""
        begun = self._send("POST", f"{_at(repository)}/blobs/uploads/?mount={quote_plus(digest)}{chosen}", retry_s=BRIEFLY_S)
        return None if begun.status_code == 201 else str(begun.headers["Location"])

    def put_manifest(self, repository: str, ref: str, manifest: bytes) -> str:
        """Store an OCI manifest whose blobs are pushed, under a tag or its digest; returns its digest.

        A manifest under a tag in the repository of an operator becomes a version: Conflict if that version has other content,
        SignatureError if the registry requires a signature that is not attached yet.
        """
        path, headers = f"{_at(repository)}/manifests/{quote(ref, safe=':')}", {"Content-Type": OCI_MANIFEST}
        response = self._send("PUT", path, content=manifest, headers=headers, retry_s=BRIEFLY_S)
        return str(response.headers["Docker-Content-Digest"])

    def manifest(self, repository: str, ref: str) -> bytes:
        """The manifest under a tag, a digest or `latest`."""
        return bytes(self._send("GET", f"{_at(repository)}/manifests/{quote(ref, safe=':')}").content)

    def blob(self, repository: str, digest: str) -> bytes:
        """A small blob, such as an image config; ProtocolError if the content received does not have that digest."""
        data = bytes(self._send("GET", f"{_at(repository)}/blobs/{quote(digest, safe=':')}").content)
        if digest_of(data) != digest:
            raise ProtocolError(f"blob {digest} from {self.url}: received content with digest {digest_of(data)}; fetch it again")
        return data

    def fetch_blob(self, repository: str, digest: str, path: Path) -> None:
        """Download a blob to `path`, completely and with that digest, or not at all (ProtocolError)."""

        def download() -> None:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
                try:
                    sha = hashlib.sha256()
                    self._download(f"{_at(repository)}/blobs/{quote(digest, safe=':')}", file.write, sha.update)
                    if f"sha256:{sha.hexdigest()}" != digest:
                        raise ProtocolError(
                            f"blob {digest} from {self.url}: received content with digest sha256:{sha.hexdigest()}; fetch it again"
                        )
                    file.flush()
                    os.replace(file.name, path)
                except BaseException:
                    os.unlink(file.name)
                    raise

        retrying(download)

    def attach(
        self, repository: str, digest: str, size: int, artifact_type: str, annotations: Mapping[str, str], payload: bytes, payload_type: str
    ) -> str:
        """Attach an artifact to the manifest `digest` of `size` bytes, for `referrers` to find; returns the artifact's digest."""
        empty = {"mediaType": OCI_EMPTY, "digest": self.push_bytes(repository, _EMPTY), "size": len(_EMPTY)}
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": artifact_type,
            "config": empty,
            "layers": [{"mediaType": payload_type, "digest": self.push_bytes(repository, payload), "size": len(payload)}],
            "subject": {"mediaType": OCI_MANIFEST, "digest": digest, "size": size},
            "annotations": dict(annotations),
        }
        body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        return self.put_manifest(repository, digest_of(body), body)

    def referrers(self, repository: str, digest: str, artifact_type: str = "") -> list[Json]:
        """Descriptors {digest, artifactType, annotations, ...} of the artifacts attached to a manifest, of one type if given."""
        chosen = f"?artifactType={quote_plus(artifact_type)}" if artifact_type else ""
        found: list[Json] = self._json("GET", f"{_at(repository)}/referrers/{digest}{chosen}")["manifests"]
        # A registry may ignore the filter.
        return [d for d in found if artifact_type in ("", d.get("artifactType"))]


def digest_of(data: bytes) -> str:
    """The sha256 of `data` in OCI's notation."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `data`; ProtocolError names `what` was expected."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise ProtocolError(f"{what} is not JSON: {e}") from e
    if not isinstance(found, dict):
        raise ProtocolError(f"{what}: expected a JSON object, got {type(found).__name__}")
    return found


def _at(repository: str) -> str:
    return f"/v2/{quote(repository)}"
