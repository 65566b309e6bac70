"""Blobs and versions: stored whole or not at all, never changed, not deleted while in use."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import wait_until
from tests.registry.conftest import FakeNode, Image, Running, fresh, image, sha
from udo_protocol import errors
from udo_protocol.formats.media_types import OCI_MANIFEST
from udo_protocol.registry.api import Registry


def test_a_pushed_version_can_be_read_back_by_tag_digest_and_latest(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(user="ada"), fresh("op")
    pushed = image(name, "1")

    digest = pushed.push(client, tmp_path)

    assert digest == sha(pushed.manifest)
    for ref in ("1", digest, "latest"):
        version = client.version(name, ref)
        assert (version["version"], version["digest"], version["pushed_by"]) == ("1", digest, "ada")
    assert version["manifest"]["input"] == {"amount": "double", "card": "int64"}
    assert version["layers"] == [{"digest": sha(pushed.blobs[1]), "size": len(pushed.blobs[1]), "kind": "code"}]
    assert client.manifest(name, "1") == pushed.manifest
    client.fetch_blob(name, sha(pushed.blobs[1]), tmp_path / "layer")
    assert (tmp_path / "layer").read_bytes() == pushed.blobs[1]
    assert name in [o["name"] for o in client.operators()]


def test_a_blob_that_is_fetched_is_whole_when_it_gets_its_name(registry: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, name = registry.client(), fresh("op")
    pushed, renamed, replace = image(name, "1"), list[bytes](), os.replace
    pushed.push(client, tmp_path)

    def noted(source: str, target: Path) -> None:
        renamed.append(Path(source).read_bytes())
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    client.fetch_blob(name, sha(pushed.blobs[1]), tmp_path / "layer")
    assert renamed == [pushed.blobs[1]]


def test_a_registry_on_another_host_gives_and_takes_the_same(start_registry: Callable[..., Running], tmp_path: Path) -> None:
    running = start_registry("--listen", "127.0.0.2:0")
    one = image("op", "1", code="x = 1\n" * 100_000)
    with Registry(running.url, token=running.token) as client:  # not known as this machine's own: all calls go through httpx
        one.push(client, tmp_path)
        client.fetch_blob("op", sha(one.blobs[1]), tmp_path / "layer")
        assert (tmp_path / "layer").read_bytes() == one.blobs[1]
        assert client.blob("op", sha(one.blobs[0])) == one.blobs[0]
        stored = running.data / "blobs" / "sha256" / sha(one.blobs[1]).removeprefix("sha256:")
        stored.write_bytes(b"rotten")
        with pytest.raises(errors.ProtocolError, match="fetch it again"):
            client.fetch_blob("op", sha(one.blobs[1]), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_latest_is_the_version_pushed_last_and_the_list_shows_all(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("op")
    for version in ("9", "10"):
        image(name, version, code=f"v = {version}").push(client, tmp_path)

    assert client.version(name)["version"] == "10"
    (listed,) = [o for o in client.operators() if o["name"] == name]
    assert listed["latest"] == "10" and [v["version"] for v in listed["versions"]] == ["10", "9"]


def test_no_version_is_called_latest_and_no_other_image_of_an_operator_is(registry: Running, tmp_path: Path) -> None:
    client, name, http = registry.client(), fresh("op"), registry.http()
    with pytest.raises(errors.ManifestError, match="'latest': that is what the version pushed last is called"):
        image(name, "latest").push(client, tmp_path)
    digest = image(name, "1").push(client, tmp_path)
    plain = _plain(http, name)
    refused = http.put(f"/v2/{name}/manifests/latest", content=plain, headers={"Content-Type": OCI_MANIFEST})
    assert refused.status_code == 409 and "pushed last" in refused.text
    assert http.get(f"/v2/{name}/manifests/latest").headers["Docker-Content-Digest"] == digest == client.version(name, "latest")["digest"]


def test_an_image_called_latest_makes_way_for_the_versions_of_its_name(registry: Running, tmp_path: Path) -> None:
    client, name, http = registry.client(), fresh("op"), registry.http()
    plain = _plain(http, name)
    assert http.put(f"/v2/{name}/manifests/latest", content=plain, headers={"Content-Type": OCI_MANIFEST}).status_code == 201
    assert http.get(f"/v2/{name}/manifests/latest").headers["Docker-Content-Digest"] == sha(plain)
    digest = image(name, "1").push(client, tmp_path)
    assert http.get(f"/v2/{name}/manifests/latest").headers["Docker-Content-Digest"] == digest == client.version(name, "latest")["digest"]


def _plain(http: httpx.Client, repository: str) -> bytes:
    """A manifest that is not an operator's, whose blobs are in the repository."""
    config = b'{"architecture": "amd64", "os": "linux"}'
    assert http.post(f"/v2/{repository}/blobs/uploads/?digest={sha(config)}", content=config).status_code == 201
    described = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha(config), "size": len(config)}
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described, "layers": []}).encode()


INDEX = "application/vnd.oci.image.index.v1+json"


def _index(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()


def _pushed(http: httpx.Client, registry: Running, tmp_path: Path, one: Image) -> dict[str, Any]:
    """Push the image by its digest, as builders push the images of an index; return its descriptor in the index."""
    with registry.client() as client:
        for blob in one.blobs:
            (tmp_path / "blob").write_bytes(blob)
            client.push_blob(one.name, sha(blob), tmp_path / "blob")
    put = http.put(f"/v2/{one.name}/manifests/{sha(one.manifest)}", content=one.manifest, headers={"Content-Type": OCI_MANIFEST})
    assert put.status_code == 201
    platform = {"architecture": "amd64", "os": "linux"}
    return {"mediaType": OCI_MANIFEST, "digest": sha(one.manifest), "size": len(one.manifest), "platform": platform}


def test_the_one_image_of_an_index_is_the_version_that_its_tag_names(registry: Running, tmp_path: Path) -> None:
    client, name, http = registry.client(), fresh("op"), registry.http()
    entry = _pushed(http, registry, tmp_path, image(name, "1"))
    about = _plain(http, name)
    http.put(f"/v2/{name}/manifests/{sha(about)}", content=about, headers={"Content-Type": OCI_MANIFEST})
    told = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": entry["digest"]}
    attestation = {"mediaType": OCI_MANIFEST, "digest": sha(about), "size": len(about), "annotations": told}
    index = _index(entry, attestation)
    for _ in range(2):  # pushing the same index again changes nothing
        assert http.put(f"/v2/{name}/manifests/1", content=index, headers={"Content-Type": INDEX}).status_code == 201
    assert client.version(name, "1")["digest"] == client.version(name)["digest"] == entry["digest"]
    assert http.get(f"/v2/{name}/manifests/1").content == index
    other = _index(_pushed(http, registry, tmp_path, image(name, "1", code="x = 2")))
    assert "exists with other content" in http.put(f"/v2/{name}/manifests/1", content=other, headers={"Content-Type": INDEX}).text

    client.deploy(name, name, "1")
    for ref in ("1", sha(index)):
        assert "in use by" in http.delete(f"/v2/{name}/manifests/{ref}").text
    client.undeploy(name)
    client.delete_version(name, "1")
    assert http.get(f"/v2/{name}/manifests/1").status_code == http.get(f"/v2/{name}/manifests/{entry['digest']}").status_code == 404


def test_an_index_of_several_operators_is_refused_with_the_reason_and_one_of_none_is_an_image(registry: Running, tmp_path: Path) -> None:
    client, name, http = registry.client(), fresh("op"), registry.http()
    entries = [_pushed(http, registry, tmp_path, image(name, "1", code=code)) for code in ("x = 1", "x = 2")]
    refused = http.put(f"/v2/{name}/manifests/1", content=_index(*entries), headers={"Content-Type": INDEX})
    assert refused.status_code == 400 and "the index has 2 images" in refused.text and "--platform linux/amd64" in refused.text
    with pytest.raises(errors.NotFound):
        client.version(name, "1")
    about = _plain(http, name)
    http.put(f"/v2/{name}/manifests/{sha(about)}", content=about, headers={"Content-Type": OCI_MANIFEST})
    plain = _index({"mediaType": OCI_MANIFEST, "digest": sha(about), "size": len(about)})
    assert http.put(f"/v2/{name}/manifests/2", content=plain, headers={"Content-Type": INDEX}).status_code == 201


def test_the_same_version_with_the_same_content_is_accepted_again_but_other_content_conflicts(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("op")
    first = image(name, "1", code="a = 1").push(client, tmp_path)

    assert image(name, "1", code="a = 1").push(client, tmp_path) == first
    with pytest.raises(errors.Conflict, match=r"exists with other content.*raise the version"):
        image(name, "1", code="a = 2").push(client, tmp_path)
    assert client.version(name, "1")["digest"] == first


def test_of_many_who_push_one_version_with_different_content_one_wins(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("op")
    images = [image(name, "1", code=f"a = {i}") for i in range(6)]
    for one in images:
        for blob in one.blobs:
            (tmp_path / "blob").write_bytes(blob)
            client.push_blob(name, sha(blob), tmp_path / "blob")

    def push(one: Image) -> str | None:
        try:
            return client.put_manifest(name, "1", one.manifest)
        except errors.Conflict:
            return None

    with ThreadPoolExecutor(6) as pool:
        won = [digest for digest in pool.map(push, images) if digest]
    assert won == [client.version(name, "1")["digest"]]


@pytest.mark.parametrize("token", [None, "wrong"])
def test_writes_without_a_valid_token_are_refused_and_store_nothing(registry: Running, tmp_path: Path, token: str | None) -> None:
    stranger, name = registry.client(token=token), fresh("op")
    with pytest.raises(errors.Unauthorized, match="token"):
        image(name).push(stranger, tmp_path)
    with pytest.raises(errors.Unauthorized):
        stranger.deploy("x", name)
    with pytest.raises(errors.Unauthorized):
        stranger.wanted("node", wait_s=0)
    with pytest.raises(errors.Unauthorized):
        stranger.audit()
    assert stranger.deployments() is not None
    assert not (registry.data / "blobs" / "sha256" / sha(image(name).blobs[0]).removeprefix("sha256:")).exists()


def test_a_token_may_come_as_a_basic_password_as_docker_sends_it(registry: Running, tmp_path: Path) -> None:
    blob = b"by docker"
    url = f"{registry.url}/v2/{fresh('op')}/blobs/uploads/?digest={sha(blob)}"
    assert httpx.post(url, content=blob, auth=("any", registry.token)).status_code == 201
    refused = httpx.post(url, content=blob, auth=("any", "wrong"))
    assert refused.status_code == 401 and "Basic" in refused.headers["WWW-Authenticate"]


def test_garbled_upload_is_refused_and_nothing_is_stored(registry: Running) -> None:
    headers, digest = {"Authorization": f"Bearer {registry.token}"}, sha(b"what was meant")
    reply = httpx.post(f"{registry.url}/v2/op/blobs/uploads/?digest={digest}", content=b"what came", headers=headers)
    assert reply.status_code == 400 and reply.json()["errors"][0]["code"] == "DIGEST_INVALID"
    assert "truncated or garbled" in reply.json()["errors"][0]["message"]
    assert not registry.client().has_blob("op", digest)
    assert list((registry.data / "blobs" / "incoming").iterdir()) == []


def test_upload_that_breaks_off_is_refused_and_nothing_is_stored(registry: Running) -> None:
    whole = b"x" * 100_000
    parts = urlsplit(registry.url)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), 10) as conn:
        head = f"POST /v2/op/blobs/uploads/?digest={sha(whole)} HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {registry.token}\r\n"
        conn.sendall(f"{head}Content-Length: {len(whole)}\r\n\r\n".encode() + whole[:50_000])
        wait_until(lambda: any((registry.data / "blobs" / "incoming").iterdir()), 10, "the upload's begin")
    wait_until(lambda: not any((registry.data / "blobs" / "incoming").iterdir()), 10, "the broken upload's removal")
    assert not registry.client().has_blob("op", sha(whole))


@pytest.mark.parametrize("kept", [0, 1, 50_000])
def test_a_push_that_breaks_off_goes_on_with_what_was_kept_also_while_the_registry_is_away_and_the_broken_request_is_not(
    registry: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    client, http, blob, parts = registry.client(), registry.http(), os.urandom(100_000), urlsplit(registry.url)
    (tmp_path / "blob").write_bytes(blob)
    send, seen = client._send, list[str]()
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), 10) as broken:

        def breaking(method: str, path: str, **more: Any) -> httpx.Response:
            seen.append(method)
            if method == "PUT" and seen.count("PUT") == 1:
                where = urlsplit(path).path
                if kept > 1:  # the registry waits for the rest
                    head = f"PATCH {where} HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {registry.token}\r\nContent-Length: 60000\r\n\r\n"
                    broken.sendall(head.encode() + blob[:kept])
                    file = registry.data / "blobs" / "incoming" / where.rpartition("/")[2]
                    wait_until(lambda: file.stat().st_size > 0, 10, "the first bytes")
                else:
                    assert http.patch(where, content=blob[:kept]).status_code == 202
                raise errors.Unavailable("the connection broke")
            if method == "HEAD" and seen.count("HEAD") == 2:
                raise errors.Unavailable("the registry is away")
            try:
                return send(method, path, **more)
            except errors.Unavailable:
                broken.close()
                raise

        monkeypatch.setattr(client, "_send", breaking)
        client.push_blob(name := fresh("op"), sha(blob), tmp_path / "blob")
    assert client.blob(name, sha(blob)) == blob and seen.count("PUT") >= (3 if kept > 1 else 2)


def test_a_push_that_breaks_off_and_whose_broken_request_finishes_after_all_is_done(
    registry: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, http, blob, name = registry.client(), registry.http(), os.urandom(1000), fresh("op")
    (tmp_path / "blob").write_bytes(blob)
    send, seen = client._send, list[str]()

    def breaking(method: str, path: str, **more: Any) -> httpx.Response:
        seen.append(method)
        if method == "PUT":
            raise errors.Unavailable("the connection broke")
        if method == "GET":  # it was not there yet when the registry was asked for the blob
            assert http.put(urlsplit(path).path, params={"digest": sha(blob)}, content=blob).status_code == 201
        return send(method, path, **more)

    monkeypatch.setattr(client, "_send", breaking)
    client.push_blob(name, sha(blob), tmp_path / "blob")
    assert seen == ["HEAD", "POST", "PUT", "HEAD", "GET", "HEAD"]
    assert registry.client().blob(name, sha(blob)) == blob


@pytest.mark.parametrize("digest", ["sha256:abc", "md5:" + "0" * 32, "../../etc/passwd", "sha256:" + "G" * 64])
def test_names_that_are_no_digests_are_refused(registry: Running, digest: str) -> None:
    headers = {"Authorization": f"Bearer {registry.token}"}
    reply = httpx.post(f"{registry.url}/v2/op/blobs/uploads/", params={"digest": digest}, content=b"", headers=headers)
    assert reply.status_code == 400 and "sha256:" in reply.json()["errors"][0]["message"]


def _with(manifest: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(manifest), **changes}).encode()


def test_malformed_images_are_refused_with_the_reason(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("op")
    good = image(name)
    good.push(client, tmp_path)
    other = fresh("op")
    descriptor = {"mediaType": "x", "digest": sha(b"absent"), "size": 6}
    code = json.loads(good.manifest)["layers"][0]

    for ref, body, why in [
        ("2", b"{", "not JSON"),
        ("2", b"[]", "expected a JSON object, got list"),
        ("2", _with(good.manifest, config=descriptor), "has not been uploaded"),
        ("2", _with(good.manifest, layers=[{**code, "size": 1}]), "the manifest says 1"),
        ("2", _with(good.manifest, layers=[{**code, "annotations": {"dev.udo.layer": "dependencies"}}]), "no operator code"),
        ("2", _with(good.manifest, config={**code, "mediaType": "application/vnd.oci.image.config.v1+json"}), "is not JSON"),
        ("2", good.manifest, "pushed as '2'"),
    ]:
        with pytest.raises(errors.ManifestError, match=why):
            client.put_manifest(name, ref, body)
    with pytest.raises(errors.ManifestError, match="pushed as"):
        Image(other, "1", good.manifest, good.blobs).push(client, tmp_path)
    with pytest.raises(errors.ManifestError, match="unknown column type 'int63'"):
        image(other, input={"a": "int63"}).push(client, tmp_path)
    assert [v["version"] for o in client.operators() if o["name"] == name for v in o["versions"]] == ["1"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (b"{}" + b" " * (5 << 20), r"image config has 52\d+ bytes"),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "is not JSON"),
        (json.dumps({"config": {"Labels": {"dev.udo.manifest": "[" * 200_000}}}).encode(), "is not JSON"),
        (json.dumps({"config": {"Labels": {"dev.udo.manifest": " " * 300_000}}}).encode(), "has 300000 characters"),
    ],
)
def test_a_giant_or_deeply_nested_image_config_is_refused(registry: Running, tmp_path: Path, config: bytes, why: str) -> None:
    good = image(fresh("op"))
    manifest = json.loads(good.manifest)
    manifest["config"] |= {"digest": sha(config), "size": len(config)}
    with pytest.raises(errors.ManifestError, match=why):
        Image(good.name, "1", json.dumps(manifest).encode(), (config, good.blobs[1])).push(registry.client(), tmp_path)


def test_deep_types_and_too_many_layers_are_refused(registry: Running, tmp_path: Path) -> None:
    client, good = registry.client(), image(fresh("op"))
    code = json.loads(good.manifest)["layers"][0]
    with pytest.raises(errors.ManifestError, match="nested deeper than 60 types"):
        image(good.name, input={"a": "list<" * 5000 + "int64" + ">" * 5000}).push(client, tmp_path)
    for layers, why in (([code, code], "2 of them annotated .* at most one"), ([*[{**code, "annotations": {}}] * 127, code], "128 layers")):
        with pytest.raises(errors.ManifestError, match=why):
            Image(good.name, "1", _with(good.manifest, layers=layers), good.blobs).push(client, tmp_path)


def test_oversized_manifest_is_refused(registry: Running) -> None:
    headers = {"Authorization": f"Bearer {registry.token}", "Content-Type": OCI_MANIFEST}
    reply = httpx.put(f"{registry.url}/v2/op/manifests/1", content=b" " * (5 << 20), headers=headers)
    assert reply.status_code == 413


def test_unknown_names_list_the_near_ones(registry: Running, tmp_path: Path) -> None:
    client, name = registry.client(), fresh("velocity")
    image(name).push(client, tmp_path)
    with pytest.raises(errors.NotFound, match=name):
        client.version(name.replace("velo", "vello"))
    with pytest.raises(errors.NotFound, match="no version '7'; there are: 1"):
        client.version(name, "7")
    with pytest.raises(errors.NotFound):
        client.fetch_blob(name, sha(b"absent"), tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_a_version_in_use_is_not_deleted_and_an_unused_one_takes_its_own_blobs_along(
    deployed: tuple[Registry, str], tmp_path: Path
) -> None:
    client, name = deployed
    with pytest.raises(errors.Conflict, match=f"in use by {name}"):
        client.delete_version(name, "1")
    second = client.version(name, "2")
    kept = client.version(name, "1")

    client.delete_version(name, "2")

    with pytest.raises(errors.NotFound):
        client.version(name, "2")
    client.collect_garbage()
    assert client.has_blob(name, second["layers"][0]["digest"])  # a client may be about to push a version that needs it
    client.collect_garbage(unused_s=0)
    assert not client.has_blob(name, second["layers"][0]["digest"])
    assert client.has_blob(name, kept["layers"][0]["digest"])


def test_the_version_that_a_deployment_would_go_back_to_is_deleted_by_force_only(deployed: tuple[Registry, str], tmp_path: Path) -> None:
    client, name = deployed
    image(name, "3", "def f(batch): return 3\n").push(client, tmp_path)
    with FakeNode(client, "n"):
        for version in ("2", "3"):
            assert list(client.update(name, version))[-1]["phase"] == "done"
        with pytest.raises(errors.Conflict, match=f"is what a rollback of {name} would lead to; with --force"):
            client.delete_version(name, "2")
        client.delete_version(name, "2", force=True)
        assert [p["version"] for p in client.deployment(name)["previous"]] == ["1"]
        assert list(client.rollback(name))[-1]["phase"] == "done"
    assert client.deployment(name)["version"] == "1"


def test_without_a_token_only_what_is_described_as_open_can_be_read(registry: Running) -> None:
    described = httpx.get(f"{registry.url}/openapi.json").json()["paths"]
    names = {"{name}": "none", "{ref}": "1", "{digest}": sha(b"none"), "{upload_id}": "0" * 48, "{update_id}": "0" * 16, "{node}": "n"}
    closed = set()
    for template, methods in described.items():
        path = template
        for name, value in names.items():
            path = path.replace(name, value)
        for method, operation in methods.items():
            refused = httpx.request(method.upper(), registry.url + path, params={"wait_s": 0}).status_code == 401
            assert refused == bool(operation["security"]), (method, template)
            closed |= {template} if refused and method == "get" else set()
    assert closed == {
        "/v2/",
        "/v2/{name}/blobs/uploads/{upload_id}",
        "/api/v1/nodes/{node}/wanted",
        "/api/v1/audit",
        "/api/v1/backup",
    }
