"""The OCI distribution API as specified, called over plain HTTP at a real registry."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.conftest import bound, wait_until
from tests.registry.conftest import Image, Running, fresh, image, sha
from udo_protocol import errors

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = b"{}"
Start = Callable[..., Running]


def push(client: httpx.Client, repository: str, blob: bytes) -> dict[str, Any]:
    """Upload a blob in one request, and return its descriptor."""
    assert client.post(f"/v2/{repository}/blobs/uploads/", params={"digest": sha(blob)}, content=blob).status_code == 201
    return {"mediaType": "application/octet-stream", "digest": sha(blob), "size": len(blob)}


def artifact(client: httpx.Client, repository: str, ref: str | None = None, layer: bytes = b"layer", **fields: Any) -> tuple[str, bytes]:
    """Push an image that is not an operator, under a tag or else its digest: (digest, manifest)."""
    config = {**push(client, repository, EMPTY), "mediaType": "application/vnd.oci.empty.v1+json"}
    table = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [push(client, repository, layer)], **fields}
    body = json.dumps(table).encode()
    reply = client.put(f"/v2/{repository}/manifests/{ref or sha(body)}", content=body, headers={"Content-Type": OCI_MANIFEST})
    assert reply.status_code == 201, reply.text
    return sha(body), body


def code(reply: httpx.Response) -> str:
    """The status and code of an error reply, after a check of its form."""
    (error,) = reply.json()["errors"]
    assert error["message"] and reply.headers["Docker-Distribution-API-Version"] == "registry/2.0"
    return f"{reply.status_code} {error['code']}"


def test_a_blob_comes_in_chunks_and_a_misplaced_chunk_is_told_where_the_upload_stands(registry: Running) -> None:
    client, blob = registry.http(), b"abcdefghij"
    begun = client.post("/v2/team/chunks/blobs/uploads/")
    assert begun.status_code == 202
    where = begun.headers["Location"]

    first = client.patch(where, content=blob[:4], headers={"Content-Range": "0-3"})
    assert (first.status_code, first.headers["Range"]) == (202, "0-3")
    again = client.patch(where, content=blob[:4], headers={"Content-Range": "0-3"})
    assert code(again) == "416 BLOB_UPLOAD_INVALID"
    assert again.headers["Range"] == "0-3" and again.headers["Location"] == where
    assert client.get(where).headers["Range"] == "0-3"
    assert client.patch(where, content=blob[4:8]).headers["Range"] == "0-7"
    done = client.put(where, params={"digest": sha(blob)}, content=blob[8:], headers={"Content-Range": "8-9"})
    assert done.status_code == 201
    assert client.get(done.headers["Location"]).content == blob
    assert code(client.get(where)) == "404 BLOB_UPLOAD_UNKNOWN"


def test_an_upload_survives_a_killed_registry_and_goes_on_where_it_stood(start_registry: Start) -> None:
    running, blob = start_registry(), os.urandom(300_000)
    where = running.http().post("/v2/a/blobs/uploads/").headers["Location"]
    running.http().patch(where, content=blob[:100_000])
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait(bound(10))

    client = start_registry().http()

    assert client.get(where).headers["Range"] == "0-99999"
    client.patch(where, content=blob[100_000:200_000])
    assert client.put(where, params={"digest": sha(blob)}, content=blob[200_000:]).status_code == 201
    assert client.get(f"/v2/a/blobs/{sha(blob)}").content == blob


def test_a_registry_killed_in_the_middle_of_an_upload_keeps_a_true_beginning_and_no_blob(start_registry: Start) -> None:
    running, blob, sent = start_registry(), os.urandom(3_000_000), 2_000_000
    where = running.http().post("/v2/a/blobs/uploads/").headers["Location"]
    (worker,) = psutil.Process(running.process.pid).children()
    parts = urlsplit(running.url)
    with contextlib.ExitStack() as stack:
        for target in (f"PUT {where}", "POST /v2/a/blobs/uploads/"):
            conn = stack.enter_context(socket.create_connection((str(parts.hostname), int(parts.port or 0)), 10))
            head = f"{target}?digest={sha(blob)} HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {running.token}\r\n"
            conn.sendall(f"{head}Content-Length: {len(blob)}\r\n\r\n".encode() + blob[:sent])
        incoming = running.data / "blobs" / "incoming"
        wait_until(lambda: [p.stat().st_size for p in incoming.iterdir()] == [sent, sent], 10, "what was sent")
        for process in (running.process, worker):  # kill -9, while both requests wait for the rest
            process.kill()
        running.process.wait(bound(10))

    client = start_registry().http()

    assert code(client.get(f"/v2/a/blobs/{sha(blob)}")) == "404 BLOB_UNKNOWN"
    assert client.get(where).headers["Range"] == f"0-{sent - 1}"
    assert client.put(where, params={"digest": sha(blob)}, content=blob[sent:]).status_code == 201
    assert client.get(f"/v2/a/blobs/{sha(blob)}").content == blob
    assert client.post("/api/v1/gc", json={"unused_s": 0}).json()["uploads"] == 1  # the one whose location no client knows


def test_an_upload_whose_connection_breaks_keeps_what_came_and_is_resumed(registry: Running) -> None:
    client, blob = registry.http(), os.urandom(100_000)
    where = client.post("/v2/a/blobs/uploads/").headers["Location"]
    parts = urlsplit(registry.url)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), 10) as conn:
        head = f"PUT {where}?digest={sha(blob)} HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {registry.token}\r\n"
        conn.sendall(f"{head}Content-Length: {len(blob)}\r\n\r\n".encode() + blob[:60_000])
    wait_until(lambda: client.get(where).headers["Range"] == "0-59999", 10, "the broken upload's rest")

    wait_until(lambda: client.patch(where, content=blob[60_000:]).status_code == 202, 10, "the broken request's end")
    assert client.put(where, params={"digest": sha(blob)}).status_code == 201


def test_an_upload_belongs_to_its_repository_can_be_cancelled_and_vanishes_after_a_time(registry: Running) -> None:
    client = registry.http()
    client.post("/api/v1/gc", json={"unused_s": 0})  # other tests leave uploads that they have only begun
    where = client.post("/v2/a/blobs/uploads/").headers["Location"]
    assert code(client.patch(where.replace("/a/", "/b/"), content=b"x")) == "404 BLOB_UPLOAD_UNKNOWN"
    assert httpx.get(registry.url + where).status_code == 401
    assert client.delete(where).status_code == 204
    assert code(client.get(where)) == "404 BLOB_UPLOAD_UNKNOWN"
    idle = client.post("/v2/a/blobs/uploads/").headers["Location"]
    assert client.post("/api/v1/gc", json={}).json()["uploads"] == 0
    assert client.post("/api/v1/gc", json={"unused_s": 0}).json()["uploads"] == 1
    assert code(client.get(idle)) == "404 BLOB_UPLOAD_UNKNOWN"


def test_a_blob_is_mounted_from_another_repository_or_from_wherever_it_is(registry: Running) -> None:
    client, one, two = registry.http(), fresh("mount"), fresh("mount")
    digest = push(client, one, b"shared")["digest"]
    assert code(client.get(f"/v2/{two}/blobs/{digest}")) == "404 BLOB_UNKNOWN"

    for target, query in ((two, {"from": one}), (fresh("mount"), {})):
        assert client.post(f"/v2/{target}/blobs/uploads/", params={"mount": digest, **query}).status_code == 201
        assert client.get(f"/v2/{target}/blobs/{digest}").content == b"shared"
    for query in ({"mount": sha(b"nowhere"), "from": one}, {"mount": digest, "from": "no/such"}):
        refused = client.post(f"/v2/{fresh('mount')}/blobs/uploads/", params=query)
        assert refused.status_code == 202 and refused.headers["Location"]  # the client is told to upload it


def test_a_layer_that_one_operator_has_is_not_sent_again_for_another(registry: Running, tmp_path: Path) -> None:
    client, base = registry.client(), os.urandom(5000)
    (tmp_path / "base").write_bytes(base)
    client.push_blob("first", sha(base), tmp_path / "base")
    (tmp_path / "base").write_bytes(b"not even the same any more")
    client.push_blob("second", sha(base), tmp_path / "base")
    client.fetch_blob("second", sha(base), tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == base


def test_tags_and_repositories_come_in_order_and_in_pages(registry: Running) -> None:
    client, name = registry.http(), fresh("paged/deep/name")
    for tag in ("b", "a", "d", "c", "B"):
        artifact(client, name, tag)
    assert client.get(f"/v2/{name}/tags/list").json() == {"name": name, "tags": ["B", "a", "b", "c", "d"]}
    seen, path = [], f"/v2/{name}/tags/list?n=2"
    while path:
        page = client.get(path)
        assert len(page.json()["tags"]) <= 2
        seen += page.json()["tags"]
        path = page.links["next"]["url"] if "next" in page.links else ""
    assert seen == ["B", "a", "b", "c", "d"]
    assert client.get(f"/v2/{name}/tags/list", params={"n": 0}).json()["tags"] == []
    assert name in client.get("/v2/_catalog").json()["repositories"]
    assert code(client.get(f"/v2/{name}/tags/list?n=many")) == "400 PAGINATION_NUMBER_INVALID"
    assert code(client.get("/v2/no/such/tags/list")) == "404 NAME_UNKNOWN"


def test_referrers_are_found_filtered_and_gone_with_their_deletion(registry: Running) -> None:
    client, name = registry.http(), fresh("ref")
    digest, body = artifact(client, name, "1")
    assert client.get(f"/v2/{name}/referrers/{sha(b'unknown')}").json()["manifests"] == []
    subject = {"mediaType": OCI_MANIFEST, "digest": digest, "size": len(body)}
    made = {}
    for kind in ("application/x-signature", "application/x-sbom"):
        config = {**push(client, name, EMPTY), "mediaType": "application/vnd.oci.empty.v1+json"}
        fields = {"artifactType": kind, "subject": subject, "annotations": {"k": kind}}
        table = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [], **fields}
        text = json.dumps(table).encode()
        reply = client.put(f"/v2/{name}/manifests/{sha(text)}", content=text, headers={"Content-Type": OCI_MANIFEST})
        assert reply.headers["OCI-Subject"] == digest
        made[kind] = sha(text)

    found = client.get(f"/v2/{name}/referrers/{digest}")
    assert found.headers["Content-Type"] == OCI_INDEX
    assert {m["artifactType"]: m["digest"] for m in found.json()["manifests"]} == made
    only = client.get(f"/v2/{name}/referrers/{digest}", params={"artifactType": "application/x-sbom"})
    assert only.headers["OCI-Filters-Applied"] == "artifactType"
    (one,) = only.json()["manifests"]
    assert one["annotations"] == {"k": "application/x-sbom"} and one["digest"] == made["application/x-sbom"]
    first = client.get(f"/v2/{name}/referrers/{digest}", params={"n": 1})
    assert len(client.get(first.links["next"]["url"]).json()["manifests"]) == 1
    assert client.delete(f"/v2/{name}/manifests/{made['application/x-sbom']}").status_code == 202
    assert len(client.get(f"/v2/{name}/referrers/{digest}").json()["manifests"]) == 1


def test_tags_move_and_are_deleted_apart_from_what_they_name(registry: Running) -> None:
    client, name = registry.http(), fresh("del")
    old, _ = artifact(client, name, "latest", b"old")
    new, body = artifact(client, name, "latest", b"new")
    artifact(client, name, "also", b"new")
    assert client.get(f"/v2/{name}/manifests/latest").headers["Docker-Content-Digest"] == new
    assert client.head(f"/v2/{name}/manifests/{old}").status_code == 200

    assert client.delete(f"/v2/{name}/manifests/latest").status_code == 202
    assert code(client.get(f"/v2/{name}/manifests/latest")) == "404 MANIFEST_UNKNOWN"
    assert client.get(f"/v2/{name}/manifests/also").content == body
    assert client.delete(f"/v2/{name}/manifests/{new}").status_code == 202
    assert code(client.get(f"/v2/{name}/manifests/also")) == "404 MANIFEST_UNKNOWN"
    assert client.get(f"/v2/{name}/tags/list").json()["tags"] == []
    assert code(client.delete(f"/v2/{name}/manifests/{new}")) == "404 MANIFEST_UNKNOWN"


def test_a_blob_is_not_deleted_while_a_manifest_needs_it_nor_taken_from_another_repository(registry: Running) -> None:
    client, name, other = registry.http(), fresh("del"), fresh("del")
    digest, _ = artifact(client, name, "1", b"needed")
    push(client, other, b"needed")
    layer = f"/v2/{name}/blobs/{sha(b'needed')}"
    assert code(client.delete(layer)) == "405 DENIED"
    assert client.delete(f"/v2/{name}/manifests/{digest}").status_code == 202
    assert client.delete(layer).status_code == 202
    assert code(client.delete(layer)) == "404 BLOB_UNKNOWN"
    client.post("/api/v1/gc", json={})
    assert client.get(f"/v2/{other}/blobs/{sha(b'needed')}").content == b"needed"


def test_an_index_needs_its_images_and_keeps_them(registry: Running) -> None:
    client, name = registry.http(), fresh("multi")
    child, body = artifact(client, name, layer=b"for amd64")
    entry = {"mediaType": OCI_MANIFEST, "digest": child, "size": len(body), "platform": {"architecture": "amd64", "os": "linux"}}
    missing = {**entry, "digest": sha(b"no")}

    def put(ref: str, *children: dict[str, Any], kind: str = OCI_INDEX) -> httpx.Response:
        text = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": children}).encode()
        return client.put(f"/v2/{name}/manifests/{ref}", content=text, headers={"Content-Type": kind})

    assert code(put("1", entry, missing)) == "404 MANIFEST_BLOB_UNKNOWN"
    whole = put("1", entry)
    assert whole.status_code == 201
    assert put("docker", entry, kind="application/vnd.docker.distribution.manifest.list.v2+json").status_code == 201
    assert client.get(f"/v2/{name}/manifests/1").headers["Content-Type"] == OCI_INDEX
    assert code(client.delete(f"/v2/{name}/manifests/{child}")) == "405 DENIED"
    loose, _ = artifact(client, name, layer=b"nobody's")
    client.post("/api/v1/gc", json={"unused_s": 0})
    assert client.head(f"/v2/{name}/manifests/{loose}").status_code == 200
    client.post("/api/v1/gc", json={"unused_s": 0, "untagged": True})
    assert client.head(f"/v2/{name}/manifests/{loose}").status_code == 404
    assert client.get(f"/v2/{name}/manifests/{child}").content == body
    assert client.get(f"/v2/{name}/blobs/{sha(b'for amd64')}").content == b"for amd64"


def test_blobs_and_manifests_may_have_sha512_digests_and_wrong_ones_are_refused(registry: Running) -> None:
    client, name, blob = registry.http(), fresh("long"), b"content"
    digest = f"sha512:{hashlib.sha512(blob).hexdigest()}"
    assert client.post(f"/v2/{name}/blobs/uploads/", params={"digest": digest}, content=blob).status_code == 201
    assert client.get(f"/v2/{name}/blobs/{digest}").content == blob
    _, body = artifact(client, name, "1")
    long = f"sha512:{hashlib.sha512(body).hexdigest()}"
    assert client.put(f"/v2/{name}/manifests/{long}", content=body).headers["Docker-Content-Digest"] == long
    assert client.get(f"/v2/{name}/manifests/{long}").content == body
    assert code(client.put(f"/v2/{name}/manifests/{sha(b'other')}", content=body)) == "400 DIGEST_INVALID"
    assert code(client.put(f"/v2/{name}/manifests/{'sha512:' + '0' * 128}", content=body)) == "400 DIGEST_INVALID"


def test_ranges_of_a_blob_are_served(registry: Running) -> None:
    client, name = registry.http(), fresh("range")
    where = f"/v2/{name}/blobs/{push(client, name, b'0123456789')['digest']}"
    for asked, got, said in (
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
    ):
        reply = client.get(where, headers={"Range": asked})
        assert (reply.status_code, reply.content, reply.headers["Content-Range"]) == (206, got, said)
    assert client.get(where, headers={"Range": "bytes=10-"}).status_code == 416
    assert client.head(where).headers["Content-Length"] == "10" and client.head(where).headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v2/UPPER/tags/list", "400 NAME_INVALID"),
        ("GET", "/v2/a..b/manifests/1", "400 NAME_INVALID"),
        ("GET", f"/v2/{'a' * 256}/manifests/1", "400 NAME_INVALID"),
        ("GET", "/v2/a/manifests/nope", "404 MANIFEST_UNKNOWN"),
        ("GET", "/v2/a/manifests/sha256:12", "400 DIGEST_INVALID"),
        ("PUT", "/v2/a/manifests/-bad-", "400 MANIFEST_INVALID"),
        ("GET", f"/v2/a/blobs/{sha(b'none')}", "404 BLOB_UNKNOWN"),
        ("POST", "/v2/a/blobs/uploads/?digest=md5:12", "400 DIGEST_INVALID"),
        ("PATCH", f"/v2/a/blobs/uploads/{'0' * 48}", "404 BLOB_UPLOAD_UNKNOWN"),
        ("GET", "/v2/a/nothing/here", "404 NAME_UNKNOWN"),
        ("POST", "/v2/a/tags/list", "405 UNSUPPORTED"),
        ("GET", f"/v2/a/referrers/{'0' * 64}", "400 DIGEST_INVALID"),
    ],
)
def test_errors_have_the_form_of_the_specification(registry: Running, method: str, path: str, expected: str) -> None:
    assert code(registry.http().request(method, path)) == expected


def test_a_push_without_the_token_is_told_how_to_authenticate_and_reads_stay_open(registry: Running) -> None:
    refused = httpx.post(f"{registry.url}/v2/a/blobs/uploads/")
    assert code(refused) == "401 UNAUTHORIZED" and "Basic realm=" in refused.headers["WWW-Authenticate"]
    base = httpx.get(f"{registry.url}/v2/")
    assert base.status_code == 401 and base.headers["WWW-Authenticate"] == f'Bearer realm="{registry.url}/v2/token",service="udo registry"'
    for auth, status in ((("any", registry.token), 200), (("any", "wrong"), 401)):
        assert httpx.get(f"{registry.url}/v2/", auth=auth).status_code == status
        assert httpx.get(f"{registry.url}/v2/token", auth=auth).status_code == status
    given = httpx.get(f"{registry.url}/v2/token").json()["token"]
    bearer = {"Authorization": f"Bearer {given}"}
    assert httpx.get(f"{registry.url}/v2/", headers=bearer).status_code == 200
    assert httpx.post(f"{registry.url}/v2/a/blobs/uploads/", headers=bearer).status_code == 401


def test_only_a_labelled_image_in_the_operators_own_repository_becomes_a_version(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("op")
    operator = image(name, "1")
    Image(f"mirror/{name}", "copy", operator.manifest, operator.blobs).push(client, tmp_path)
    artifact(registry.http(), fresh("plain"), "1")
    assert name not in [o["name"] for o in client.operators()]
    assert client.manifest(f"mirror/{name}", "copy") == operator.manifest
    operator.push(client, tmp_path)
    assert client.version(name, "1")["digest"] == sha(operator.manifest)


def test_the_tag_of_a_version_never_moves_whatever_is_pushed(registry: Running, tmp_path: Path) -> None:
    client, name, plain = registry.client(), fresh("op"), registry.http()
    artifact(plain, name, "1", b"was here before")  # a plain image's tag may move
    image(name, "1").push(client, tmp_path)
    _, body = artifact(plain, name, "2")
    refused = plain.put(f"/v2/{name}/manifests/1", content=body, headers={"Content-Type": OCI_MANIFEST})
    assert code(refused) == "409 DENIED"
    client.deploy(name, name, "1")
    for ref in ("1", client.version(name)["digest"]):
        assert code(plain.delete(f"/v2/{name}/manifests/{ref}")) == "409 DENIED"
    client.undeploy(name)
    assert plain.delete(f"/v2/{name}/manifests/1").status_code == 202
    with pytest.raises(errors.NotFound):
        client.version(name, "1")


def test_a_large_layer_never_sits_in_memory(start_registry: Start) -> None:
    running, size = start_registry(), 256 << 20
    (worker,) = psutil.Process(running.process.pid).children()
    sha256 = hashlib.sha256()
    piece = bytes(1 << 20)
    for _ in range(size >> 20):
        sha256.update(piece)
    digest = f"sha256:{sha256.hexdigest()}"
    client = running.http()
    client.get("/v2/_catalog")
    before = _peak_kb(worker.pid)
    where = client.post("/v2/large/blobs/uploads/").headers["Location"]
    body = (piece for _ in range(size >> 20))  # sent with chunked encoding, as docker does
    assert client.patch(where, content=body).headers["Range"] == f"0-{size - 1}"
    assert client.put(where, params={"digest": digest}).status_code == 201
    with client.stream("GET", f"/v2/large/blobs/{digest}") as reply:
        assert sum(len(part) for part in reply.iter_raw()) == size
    assert _peak_kb(worker.pid) - before < 32 << 10


def _peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
