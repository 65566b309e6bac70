"""The requirements of the OCI distribution specification for a registry, row by row: pull, push, content discovery, content management."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from tests.registry.conftest import Running, fresh, sha

MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
EMPTY, LAYER = b"{}", b"0123456789"
ABSENT = sha(b"absent")


class Repository:
    """A repository with the tag `1`, called over plain HTTP. Every call returns the reply."""

    def __init__(self, client: httpx.Client) -> None:
        self.client, self.name = client, fresh("conform")
        for blob in (EMPTY, LAYER):
            self("POST", "blobs/uploads/", params={"digest": sha(blob)}, content=blob)
        self.body = self.manifest()
        self.digest = sha(self.body)
        self.put("1", self.body)

    def __call__(self, method: str, path: str, **options: object) -> httpx.Response:
        where = path if path.startswith("/") else f"/v2/{self.name}/{path}"
        return self.client.request(method, where, **options)  # type: ignore[arg-type]

    def manifest(self, **fields: object) -> bytes:
        config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": sha(EMPTY), "size": 2}
        layer = {"mediaType": "application/octet-stream", "digest": sha(LAYER), "size": len(LAYER)}
        return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer], **fields}).encode()

    def put(self, ref: str, body: bytes, kind: str = MANIFEST) -> httpx.Response:
        return self("PUT", f"manifests/{ref}", content=body, headers={"Content-Type": kind})

    def begun(self) -> str:
        return str(self("POST", "blobs/uploads/").headers["Location"])

    def attached(self, subject: str, kind: str) -> httpx.Response:
        about = {"mediaType": MANIFEST, "digest": subject, "size": len(self.body)}
        body = self.manifest(subject=about, artifactType=kind, annotations={"kind": kind})
        return self.put(sha(body), body)


def chunked(r: Repository) -> httpx.Response:
    """Upload two chunks in order, then the end; return the reply to the end."""
    where = r.begun()
    for first, chunk in ((0, b"fir"), (3, b"st")):
        headers = {"Content-Range": f"{first}-{first + len(chunk) - 1}", "Content-Type": "application/octet-stream"}
        reply = r("PATCH", where, content=chunk, headers=headers)
        assert (reply.status_code, reply.headers["Range"]) == (202, f"0-{first + len(chunk) - 1}")
        where = reply.headers["Location"]
    return r("PUT", where, params={"digest": sha(b"first")})


def out_of_order(r: Repository) -> httpx.Response:
    where = r.begun()
    r("PATCH", where, content=b"abc", headers={"Content-Range": "0-2"})
    return r("PATCH", where, content=b"ghi", headers={"Content-Range": "6-8"})


def streamed(r: Repository) -> httpx.Response:
    where = r("PATCH", r.begun(), content=iter([b"one", b"two"])).headers["Location"]
    return r("PUT", where, params={"digest": sha(b"onetwo")})


def after_delete(r: Repository, path: str) -> httpx.Response:
    assert r("DELETE", path).status_code == 202
    return r("GET", path)


def mounted(r: Repository, digest: str, source: str | None) -> httpx.Response:
    return r("POST", f"/v2/{fresh('into')}/blobs/uploads/", params={"mount": digest} | ({"from": source} if source else {}))


# (part of the specification, request, expected status, condition on the reply)
Row = tuple[str, Callable[[Repository], httpx.Response], int, Callable[[Repository, httpx.Response], object]]
true: Callable[[Repository, httpx.Response], object] = lambda r, a: True  # noqa: E731
is_error: Callable[[Repository, httpx.Response], object] = lambda r, a: a.json()["errors"][0]["code"].isupper()  # noqa: E731
ROWS: list[Row] = [
    ("end-1 version check", lambda r: r("GET", "/v2/"), 200, true),
    ("end-2 HEAD blob", lambda r: r("HEAD", f"blobs/{sha(LAYER)}"), 200, lambda r, a: a.headers["Content-Length"] == "10"),
    ("end-2 GET blob", lambda r: r("GET", f"blobs/{sha(LAYER)}"), 200, lambda r, a: a.content == LAYER),
    ("end-2 HEAD absent blob", lambda r: r("HEAD", f"blobs/{ABSENT}"), 404, true),
    ("end-2 GET absent blob", lambda r: r("GET", f"blobs/{ABSENT}"), 404, is_error),
    ("end-2 range", lambda r: r("GET", f"blobs/{sha(LAYER)}", headers={"Range": "bytes=2-4"}), 206, lambda r, a: a.content == b"234"),
    ("end-2 impossible range", lambda r: r("GET", f"blobs/{sha(LAYER)}", headers={"Range": "bytes=99-"}), 416, true),
    ("end-3 HEAD manifest by tag", lambda r: r("HEAD", "manifests/1"), 200, lambda r, a: a.headers["Docker-Content-Digest"] == r.digest),
    ("end-3 GET manifest by tag", lambda r: r("GET", "manifests/1"), 200, lambda r, a: a.content == r.body),
    ("end-3 GET by digest", lambda r: r("GET", f"manifests/{r.digest}"), 200, lambda r, a: a.headers["Content-Type"] == MANIFEST),
    ("end-3 GET absent manifest", lambda r: r("GET", "manifests/none"), 404, is_error),
    ("end-3 HEAD absent manifest", lambda r: r("HEAD", f"manifests/{ABSENT}"), 404, true),
    (
        "end-4a POST then PUT",
        lambda r: r("PUT", r.begun(), params={"digest": sha(b"x")}, content=b"x"),
        201,
        lambda r, a: a.headers["Location"],
    ),
    ("end-4b POST only", lambda r: r("POST", "blobs/uploads/", params={"digest": sha(b"y")}, content=b"y"), 201, true),
    ("end-5 streamed", streamed, 201, lambda r, a: r("GET", a.headers["Location"]).content == b"onetwo"),
    ("end-5 chunked", chunked, 201, lambda r, a: r("GET", a.headers["Location"]).content == b"first"),
    ("end-5 out of order", out_of_order, 416, lambda r, a: a.headers["Range"] == "0-2"),
    ("end-4a no smallest chunk", lambda r: r("POST", "blobs/uploads/"), 202, lambda r, a: "OCI-Chunk-Min-Length" not in a.headers),
    ("end-6 wrong digest", lambda r: r("PUT", r.begun(), params={"digest": ABSENT}, content=b"x"), 400, is_error),
    ("end-7 PUT manifest", lambda r: r.put("2", r.body), 201, lambda r, a: r("GET", a.headers["Location"]).content == r.body),
    ("end-7 manifest without layers", lambda r: r.put("3", r.manifest(layers=[])), 201, true),
    ("end-7 blobs missing", lambda r: r.put("4", r.manifest().replace(sha(LAYER).encode(), ABSENT.encode())), 404, is_error),
    ("end-7 with a subject", lambda r: r.attached(r.digest, "a/b"), 201, lambda r, a: a.headers["OCI-Subject"] == r.digest),
    ("end-7 before its subject", lambda r: r.attached(ABSENT, "a/b"), 201, lambda r, a: a.headers["OCI-Subject"] == ABSENT),
    ("end-8a tags", lambda r: r("GET", "tags/list"), 200, lambda r, a: a.json() == {"name": r.name, "tags": ["1"]}),
    (
        "end-8b pages",
        lambda r: (r.put("2", r.body), r("GET", "tags/list?n=1"))[1],
        200,
        lambda r, a: r("GET", a.links["next"]["url"]).json()["tags"] == ["2"],
    ),
    ("end-8b none", lambda r: r("GET", "tags/list?n=0"), 200, lambda r, a: a.json()["tags"] == []),
    ("end-8b behind the last", lambda r: r("GET", "tags/list?last=1"), 200, lambda r, a: a.json()["tags"] == []),
    ("end-9 DELETE tag", lambda r: after_delete(r, "manifests/1"), 404, lambda r, a: r("GET", f"manifests/{r.digest}").status_code == 200),
    (
        "end-9 DELETE manifest",
        lambda r: after_delete(r, f"manifests/{r.digest}"),
        404,
        lambda r, a: r("GET", "manifests/1").status_code == 404,
    ),
    ("end-9 DELETE absent", lambda r: r("DELETE", f"manifests/{ABSENT}"), 404, is_error),
    ("end-10 DELETE needed blob", lambda r: r("DELETE", f"blobs/{sha(LAYER)}"), 405, is_error),
    ("end-10 DELETE blob", lambda r: (r("DELETE", f"manifests/{r.digest}"), after_delete(r, f"blobs/{sha(LAYER)}"))[1], 404, is_error),
    ("end-11 mount", lambda r: mounted(r, sha(LAYER), r.name), 201, lambda r, a: r("GET", a.headers["Location"]).content == LAYER),
    ("end-11 mount from anywhere", lambda r: mounted(r, sha(LAYER), None), 201, true),
    ("end-11 mount what is absent", lambda r: mounted(r, ABSENT, r.name), 202, lambda r, a: a.headers["Location"]),
    ("end-12a no referrers", lambda r: r("GET", f"referrers/{ABSENT}"), 200, lambda r, a: a.json()["manifests"] == []),
    (
        "end-12a referrers",
        lambda r: (r.attached(r.digest, "a/b"), r("GET", f"referrers/{r.digest}"))[1],
        200,
        lambda r, a: a.headers["Content-Type"] == INDEX and a.json()["manifests"][0]["annotations"] == {"kind": "a/b"},
    ),
    (
        "end-12a referrers of what came later",
        lambda r: (r.attached(ABSENT, "a/b"), r("GET", f"referrers/{ABSENT}"))[1],
        200,
        lambda r, a: len(a.json()["manifests"]) == 1,
    ),
    (
        "end-12b filter",
        lambda r: (r.attached(r.digest, "a/b"), r("GET", f"referrers/{r.digest}?artifactType=c/d"))[1],
        200,
        lambda r, a: a.headers["OCI-Filters-Applied"] == "artifactType" and a.json()["manifests"] == [],
    ),
    ("end-13 upload status", lambda r: r("GET", r.begun()), 204, lambda r, a: a.headers["Range"] == "0-0"),
    ("end-14 cancel", lambda r: r("DELETE", r.begun()), 204, true),
]


@pytest.fixture(scope="module")
def client(registry: Running) -> httpx.Client:
    return registry.http()


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_registry_does_as_the_specification_says(client: httpx.Client, row: Row) -> None:
    _, act, status, holds = row
    repository = Repository(client)
    answer = act(repository)
    assert answer.status_code == status, answer.text
    assert holds(repository, answer), answer.headers
