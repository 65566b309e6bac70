"""Whatever is sent, the registry answers without an internal error and stores nothing that it did not acknowledge."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule, run_state_machine_as_test

from registry.app import create_app
from registry.config import RegistrySettings
from tests.conftest import bound, require
from tests.registry.conftest import INPUT, OUTPUT, Running, fresh, sha
from tests.support.seeds import examples, seeds

pytestmark = pytest.mark.long

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
SMALL = st.binary(min_size=0, max_size=12)
REPOSITORIES = st.sampled_from(["a", "team/b"])
REFS = st.sampled_from(["1", "2", "latest"])


@pytest.mark.short
def test_every_route_is_described_and_every_description_has_a_route(registry: Running, tmp_path: Path) -> None:
    described = {
        (m, re.sub(r"{\w+}", "*", path))
        for path, methods in httpx.get(f"{registry.url}/openapi.json").json()["paths"].items()
        for m in methods
    }
    app = create_app(RegistrySettings(tmp_path / "data", tmp_path / "token"))
    app.extensions["registry"].hub.close()
    app.extensions["registry"].store.close()
    routes = set()
    for route in (r for r in app.url_map.iter_rules() if not r.endpoint.startswith("console.")):  # pages are not part of the API
        for path in {route.rule.replace("<any(update, rollback):action>", a) for a in ("update", "rollback")}:
            routes |= {(m.lower(), re.sub(r"<[^>]+>", "*", path)) for m in route.methods or () if m not in ("OPTIONS", "HEAD")}
    assert {(m, p) for m, p in described if m != "head"} == routes


def test_no_generated_request_makes_the_registry_fail_inside(registry: Running, tmp_path: Path) -> None:
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or require(
        "schemathesis", "it is one of the dev dependencies"
    )
    blob, name = b"{}", "fuzz"
    client = registry.http()
    client.post(f"/v2/{name}/blobs/uploads/", params={"digest": sha(blob)}, content=blob)
    table = {"name": name, "version": "1", "entry": "op:f", "input": INPUT, "output": OUTPUT}
    config = json.dumps({"config": {"Labels": {"dev.udo.manifest": json.dumps(table)}}}).encode()
    client.post(f"/v2/{name}/blobs/uploads/", params={"digest": sha(config)}, content=config)
    descriptor = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha(config), "size": len(config)}
    manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": descriptor, "layers": []}
    assert client.put(f"/v2/{name}/manifests/1", content=json.dumps(manifest).encode()).status_code == 201
    assert client.post("/api/v1/deployments", json={"name": name, "operator": name}).status_code == 201
    # Names that exist, so that requests get past "not found"; a long poll is excluded: it would only wait.
    settings_file = tmp_path / "schemathesis.toml"
    settings_file.write_text(f'[parameters]\n"path.name" = "{name}"\n"path.ref" = "1"\n"path.digest" = "{sha(blob)}"\n')
    common = [
        "run",
        f"{registry.url}/openapi.json",
        "-H",
        f"Authorization: Bearer {registry.token}",
        "--exclude-path=/api/v1/nodes/{node}/wanted",
    ]
    common += [f"--seed={seeds(1)[0] + 1}", "--no-shrink", "--continue-on-failure", "--no-color", "--warnings=off"]
    common += ["--checks=not_a_server_error,response_schema_conformance,content_type_conformance"]
    command = [program, "--config-file", str(settings_file), *common, "--phases=coverage,fuzzing", "--max-examples=3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=bound(200), cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert registry.client().health()["status"] == "ok"
    assert "internal error of the registry" not in registry.log and "Traceback" not in registry.log


def test_no_path_body_or_header_makes_the_registry_fail_inside(registry: Running) -> None:
    client = registry.http()
    words = st.sampled_from(
        [
            *[
                "v2",
                "api",
                "v1",
                "token",
                "_catalog",
                "blobs",
                "uploads",
                "manifests",
                "tags",
                "list",
                "referrers",
                "nodes",
                "updates",
                "events",
                "audit",
            ],
            "a",
            sha(b""),
        ]
    )
    path = st.lists(st.one_of(words, st.text(min_size=1, max_size=8)), min_size=1, max_size=6).map(
        lambda parts: "/".join(quote(p, safe="") for p in parts)
    )
    header = st.sampled_from(["Range", "Content-Range", "Last-Event-ID", "If-None-Match", "Accept", "X-Udo-User", "Content-Type"])
    value = st.one_of(
        st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), max_size=20), st.sampled_from(["bytes=0-", "0-9", "9" * 30])
    )

    @settings(max_examples=examples(150), deadline=None)
    @given(
        st.sampled_from(["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"]),
        path,
        st.dictionaries(st.text(max_size=5), st.text(max_size=9)),
        header,
        value,
        SMALL,
    )
    def check(method: str, path: str, query: dict[str, str], header: str, value: str, body: bytes) -> None:
        answer = client.request(method, f"/{path}", params={**query, "wait_s": "0"}, headers={header: value}, content=body)
        assert answer.status_code < 500, answer.text

    check()
    assert "Traceback" not in registry.log


class Registry(RuleBasedStateMachine):
    """A model of two repositories: after every step they hold what was acknowledged, and nothing else."""

    running: Running
    uploads = Bundle("uploads")
    contents = Bundle("contents")

    @initialize()
    def begin(self) -> None:
        self.client = self.running.http()
        self.run = fresh("m")  # each run has repositories of its own
        self.blobs: dict[str, set[str]] = {}
        self.content: dict[str, bytes] = {}
        self.manifests: dict[str, dict[str, bytes]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.begun: list[str] = []

    def at(self, repository: str) -> str:
        return f"/v2/{self.run}/{repository}"

    def _have(self, repository: str, data: bytes) -> None:
        self.blobs.setdefault(repository, set()).add(sha(data))
        self.content[sha(data)] = data

    @rule(target=contents, data=SMALL)
    def some_content(self, data: bytes) -> bytes:
        return data

    @rule(repository=REPOSITORIES, data=contents, said=st.one_of(contents, st.none()))
    def push_at_once(self, repository: str, data: bytes, said: bytes | None) -> None:
        digest = sha(data if said is None else said)
        reply = self.client.post(f"{self.at(repository)}/blobs/uploads/", params={"digest": digest}, content=data)
        assert reply.status_code == (201 if digest == sha(data) else 400)
        if reply.status_code == 201:
            self._have(repository, data)

    @rule(target=uploads, repository=REPOSITORIES)
    def begin_upload(self, repository: str) -> Any:
        reply = self.client.post(f"{self.at(repository)}/blobs/uploads/")
        assert reply.status_code == 202
        self.begun.append(reply.headers["Location"])
        return repository, self.begun[-1], bytearray()

    @rule(upload=uploads, data=SMALL, shift=st.sampled_from([None, 0, 1, -1]))
    def append(self, upload: Any, data: bytes, shift: int | None) -> None:
        _, where, came = upload
        first = len(came) + (shift or 0)
        ranged = shift is not None and data and first >= 0
        reply = self.client.patch(where, content=data, headers={"Content-Range": f"{first}-{first + len(data) - 1}"} if ranged else {})
        if where not in self.begun:
            assert reply.status_code == 404
            return
        assert reply.status_code == (416 if ranged and first != len(came) else 202)
        if reply.status_code == 202:
            came += data
        assert reply.headers["Range"] == f"0-{max(len(came) - 1, 0)}"

    @rule(upload=consumes(uploads), data=SMALL, lie=st.booleans())
    def finish(self, upload: Any, data: bytes, lie: bool) -> None:
        repository, where, came = upload
        whole = bytes(came) + data
        digest = sha(whole + b"!" if lie else whole)
        reply = self.client.put(where, params={"digest": digest}, content=data)
        assert reply.status_code == (404 if where not in self.begun else 400 if lie else 201)
        if reply.status_code == 201:
            self._have(repository, whole)
        assert self.client.get(where).status_code == 404

    @rule(upload=consumes(uploads))
    def cancel(self, upload: Any) -> None:
        assert self.client.delete(upload[1]).status_code == (204 if upload[1] in self.begun else 404)

    @rule(repository=REPOSITORIES, source=REPOSITORIES, data=contents)
    def mount(self, repository: str, source: str, data: bytes) -> None:
        reply = self.client.post(f"{self.at(repository)}/blobs/uploads/", params={"mount": sha(data), "from": f"{self.run}/{source}"})
        there = sha(data) in self.blobs.get(source, ())
        assert reply.status_code == (201 if there else 202)
        if there:
            self._have(repository, data)

    @rule(
        repository=REPOSITORIES,
        ref=st.one_of(REFS, st.none()),
        config=contents,
        layers=st.lists(contents, max_size=2),
        wrong=st.integers(-1, 1),
    )
    def push_manifest(self, repository: str, ref: str | None, config: bytes, layers: list[bytes], wrong: int) -> None:
        described = [{"mediaType": "text/plain", "digest": sha(d), "size": len(d) + wrong} for d in (config, *layers)]
        body = json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described[0], "layers": described[1:]}).encode()
        reply = self.client.put(f"{self.at(repository)}/manifests/{ref or sha(body)}", content=body, headers={"Content-Type": OCI_MANIFEST})
        held = all(d["digest"] in self.blobs.get(repository, ()) for d in described)
        sizes = all(len(d) + wrong >= 0 for d in (config, *layers))
        assert reply.status_code == (400 if not sizes else 404 if not held else 400 if wrong else 201), reply.text
        if reply.status_code == 201:
            self.manifests.setdefault(repository, {})[sha(body)] = body
            if ref:
                self.tags.setdefault(repository, {})[ref] = sha(body)

    @rule(repository=REPOSITORIES, ref=REFS)
    def delete_tag(self, repository: str, ref: str) -> None:
        there = self.tags.get(repository, {}).pop(ref, None)
        assert self.client.delete(f"{self.at(repository)}/manifests/{ref}").status_code == (202 if there else 404)

    @rule(repository=REPOSITORIES, data=st.data())
    def delete_manifest(self, repository: str, data: st.DataObject) -> None:
        if known := sorted(self.manifests.get(repository, {})):
            digest = data.draw(st.sampled_from(known))
            assert self.client.delete(f"{self.at(repository)}/manifests/{digest}").status_code == 202
            del self.manifests[repository][digest]
            tags = self.tags.get(repository, {})
            self.tags[repository] = {t: d for t, d in tags.items() if d != digest}

    @rule(repository=REPOSITORIES, data=contents)
    def delete_blob(self, repository: str, data: bytes) -> None:
        held, needed = sha(data) in self.blobs.get(repository, ()), sha(data) in self._needed(repository)
        assert self.client.delete(f"{self.at(repository)}/blobs/{sha(data)}").status_code == (404 if not held else 405 if needed else 202)
        if held and not needed:
            self.blobs[repository].discard(sha(data))

    @rule()
    def collect(self) -> None:
        assert self.client.post("/api/v1/gc", json={"unused_s": 0}).status_code == 200
        self.begun.clear()
        for repository, held in self.blobs.items():
            held &= self._needed(repository)

    def _needed(self, repository: str) -> set[str]:
        tables = [json.loads(body) for body in self.manifests.get(repository, {}).values()]
        return {d["digest"] for table in tables for d in (table["config"], *table["layers"])}

    @invariant()
    def what_is_there_is_what_was_acknowledged(self) -> None:
        for repository in ("a", "team/b"):
            for digest, data in self.content.items():
                reply = self.client.get(f"{self.at(repository)}/blobs/{digest}")
                assert (reply.status_code == 200) == (digest in self.blobs.get(repository, ()))
                assert reply.status_code == 404 or reply.content == data
            for digest, body in self.manifests.get(repository, {}).items():
                assert self.client.get(f"{self.at(repository)}/manifests/{digest}").content == body
            listed = self.client.get(f"{self.at(repository)}/tags/list")
            assert listed.json().get("tags", []) == sorted(self.tags.get(repository, {}))
            for tag, digest in self.tags.get(repository, {}).items():
                assert self.client.head(f"{self.at(repository)}/manifests/{tag}").headers["Docker-Content-Digest"] == digest

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.close()


@pytest.fixture
def model(registry: Running) -> Iterator[type[Registry]]:
    """The state machine bound to this registry."""
    yield type("Model", (Registry,), {"running": registry})


def test_any_sequence_of_pushes_deletions_and_collections_leaves_exactly_what_was_acknowledged(model: type[Registry]) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        model,
        settings=settings(max_examples=examples(20), stateful_step_count=20, deadline=None, suppress_health_check=checks),
    )
