"""Unmodified clients against the registry: Debian's skopeo, docker with a daemon of its own, buildah and podman."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import bound
from tests.registry.conftest import INPUT, OUTPUT, Running, fresh, image, sha
from tests.support.docker_daemon import Daemon, tool

OPEN = "--tls-verify=false"


def run(*command: str, **environment: str) -> str:
    """Run a client that must succeed, and return its standard output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=bound(60), env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
    return done.stdout


def archive(path: Path, text: str) -> Path:
    """A tiny root file system."""
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("hello")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def operator(registry: Running, tmp_path: Path) -> str:
    """The reference `host:port/name` of an operator with version 1."""
    name = fresh("sk")
    image(name, "1").push(registry.client(), tmp_path)
    return f"{host(registry)}/{name}"


def host(registry: Running) -> str:
    return registry.url.removeprefix("http://")


def test_skopeo_inspects_an_operator_and_lists_its_tags(registry: Running, operator: str) -> None:
    skopeo = tool("skopeo", "skopeo")
    seen = json.loads(run(skopeo, "inspect", OPEN, f"docker://{operator}:1"))
    name = operator.partition("/")[2]
    assert seen["Digest"] == registry.client().version(name, "1")["digest"] and seen["RepoTags"] == ["1"]
    assert json.loads(seen["Labels"]["dev.udo.manifest"])["name"] == name
    assert json.loads(run(skopeo, "list-tags", OPEN, f"docker://{operator}"))["Tags"] == ["1"]


def test_skopeo_copies_in_and_out_and_deletes(registry: Running, operator: str, tmp_path: Path) -> None:
    skopeo, creds = tool("skopeo", "skopeo"), f"any:{registry.token}"
    target = f"{host(registry)}/mirror/{fresh('copy')}"
    run(skopeo, "copy", "--src-tls-verify=false", f"docker://{operator}:1", f"oci:{tmp_path}/layout:1")
    run(skopeo, "copy", "--dest-tls-verify=false", f"--dest-creds={creds}", f"oci:{tmp_path}/layout:1", f"docker://{target}:new")
    run(
        *(skopeo, "copy", "--src-tls-verify=false", "--dest-tls-verify=false", f"--dest-creds={creds}", "--format=v2s2"),
        *(f"docker://{target}:new", f"docker://{target}:as-docker"),
    )
    assert json.loads(run(skopeo, "list-tags", OPEN, f"docker://{target}"))["Tags"] == ["as-docker", "new"]
    name, version = operator.partition("/")[2], json.loads(run(skopeo, "inspect", OPEN, f"docker://{target}:new"))
    assert version["Digest"] == registry.client().version(name, "1")["digest"]  # a copy byte for byte

    run(skopeo, "delete", OPEN, f"--creds={creds}", f"docker://{target}:new")

    assert json.loads(run(skopeo, "list-tags", OPEN, f"docker://{target}"))["Tags"] == ["as-docker"]


def test_skopeo_copies_an_index_with_all_its_images(registry: Running, tmp_path: Path) -> None:
    skopeo, creds, client = tool("skopeo", "skopeo"), f"any:{registry.token}", registry.http()
    source = fresh("multi")
    entries = []
    for machine in ("amd64", "arm64"):
        one = image(source, "1", code=f"machine = {machine!r}")
        for blob in one.blobs:
            client.post(f"/v2/team/{source}/blobs/uploads/", params={"digest": sha(blob)}, content=blob)
        put = client.put(f"/v2/team/{source}/manifests/{sha(one.manifest)}", content=one.manifest)
        platform = {"architecture": machine, "os": "linux"}
        digest = put.headers["Docker-Content-Digest"]
        entries.append(
            {"mediaType": json.loads(one.manifest)["mediaType"], "digest": digest, "size": len(one.manifest), "platform": platform}
        )
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": entries}
    kind = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
    assert client.put(f"/v2/team/{source}/manifests/all", content=json.dumps(index).encode(), headers=kind).status_code == 201
    reference = f"docker://{host(registry)}/team/{source}:all"
    run(
        *(skopeo, "copy", "--all", "--src-tls-verify=false", "--dest-tls-verify=false", f"--dest-creds={creds}"),
        *(reference, f"docker://{host(registry)}/other/{source}:all"),
    )
    assert client.get(f"/v2/other/{source}/manifests/all").content == client.get(f"/v2/team/{source}/manifests/all").content


def test_skopeo_may_not_push_without_the_token(registry: Running, operator: str, tmp_path: Path) -> None:
    skopeo = tool("skopeo", "skopeo")
    run(skopeo, "copy", "--src-tls-verify=false", f"docker://{operator}:1", f"oci:{tmp_path}/layout:1")
    for creds in ([], ["--dest-creds=any:wrong"]):
        command = [skopeo, "copy", "--dest-tls-verify=false", *creds, f"oci:{tmp_path}/layout:1", f"docker://{host(registry)}/no/way:1"]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=bound(60), check=False)
        assert refused.returncode != 0 and "unauthorized" in refused.stderr
    assert registry.http().get("/v2/no/way/tags/list").status_code == 404


@pytest.mark.long
def test_docker_logs_in_pushes_pulls_and_mounts(registry: Running, docker: Daemon, tmp_path: Path) -> None:
    name = f"{host(registry)}/team/{fresh('docker')}:1"
    docker("import", str(archive(tmp_path / "root.tar", "by docker")), name)
    assert "unauthorized" in docker.fails("push", name)
    assert "unauthorized" in docker.fails("login", "--username=any", "--password=wrong", host(registry))
    docker("login", "--username=any", f"--password={registry.token}", host(registry))
    assert "Pushed" in docker("push", name)
    elsewhere = f"{host(registry)}/{fresh('elsewhere')}:1"
    docker("tag", name, elsewhere)
    assert "Mounted from" in docker("push", elsewhere)
    docker("logout", host(registry))
    made = docker("image", "inspect", "--format={{.Id}}", name)
    docker("rmi", name, elsewhere)

    docker("pull", name)  # reads need no token

    assert docker("image", "inspect", "--format={{.Id}}", name) == made
    docker("rmi", name)


def test_an_image_that_docker_pushes_with_the_label_is_an_operator_version(registry: Running, docker: Daemon, tmp_path: Path) -> None:
    operator = fresh("byhand")
    table = {"name": operator, "version": "1", "entry": "op:f", "input": INPUT, "output": OUTPUT}
    name = f"{host(registry)}/{operator}:1"
    docker("import", "--change", f"LABEL dev.udo.manifest={json.dumps(json.dumps(table))}", str(archive(tmp_path / "r.tar", "op")), name)
    docker("login", "--username=any", f"--password={registry.token}", host(registry))
    docker("push", name)
    version = registry.client().version(operator, "1")
    assert version["manifest"]["entry"] == "op:f" and [layer["kind"] for layer in version["layers"]] == ["base"]

    docker(
        "import", "--change", f"LABEL dev.udo.manifest={json.dumps(json.dumps(table))}", str(archive(tmp_path / "r.tar", "changed")), name
    )
    assert "versions never change" in docker.fails("push", name)
    assert registry.client().version(operator, "1") == version


def test_buildah_pushes_and_pulls(registry: Running, tmp_path: Path) -> None:
    buildah = [tool("buildah", "buildah"), f"--root={tmp_path}/root", f"--runroot={tmp_path}/run", "--storage-driver=vfs"]
    name = f"docker://{host(registry)}/build/{fresh('tiny')}:1"
    container = run(*buildah, "from", "scratch").strip()
    run(*buildah, "add", container, str(archive(tmp_path / "root.tar", "by buildah")), "/")
    run(*buildah, "commit", container, "tiny:1")
    made = run(*buildah, "images", "--quiet", "--no-trunc", "tiny:1")
    run(*buildah, "push", OPEN, f"--creds=any:{registry.token}", "tiny:1", name)
    run(*buildah, "rm", container)
    run(*buildah, "rmi", "tiny:1")
    assert run(*buildah, "pull", OPEN, name).strip() in made


@pytest.fixture
def podman() -> Iterator[list[str]]:
    """The command line of podman with a storage of its own, in a short path, which podman insists on."""
    with tempfile.TemporaryDirectory(prefix="udo-pod-") as home:
        places = [f"--{option}={home}/{option}" for option in ("root", "runroot", "tmpdir")]
        yield [tool("podman", "podman"), *places, "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none"]


def test_podman_pushes_and_pulls(registry: Running, podman: list[str], tmp_path: Path) -> None:
    name = f"{host(registry)}/pods/{fresh('tiny')}:1"
    made = run(*podman, "import", "--quiet", str(archive(tmp_path / "root.tar", "by podman")), name).strip()
    run(*podman, "push", OPEN, f"--creds=any:{registry.token}", name)
    run(*podman, "rmi", name)
    assert run(*podman, "pull", "--quiet", OPEN, name).strip() == made.removeprefix("sha256:")
