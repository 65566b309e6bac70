"""Runtime bases, whole images, provenance and signatures: `udo push` against a real registry."""

from __future__ import annotations

import json
import platform as host
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import images
from tests.cli.conftest import OPERATOR, Shell
from tests.conftest import bound, require
from tests.support.docker_daemon import Daemon
from tests.support.wheels import wheel
from udo_protocol.registry.api import Registry

pytestmark = pytest.mark.long

Operators = Callable[..., Path]
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
BASE = f"udo/runtime-python:{TAG}-linux_x86_64"
ROOT, PYTHON = images.tar(bin__run="#!"), images.tar(usr__bin__python3="elf")


@pytest.fixture(autouse=True)
def amd64() -> None:
    """Require a host that can run these images."""
    if host.machine() != "x86_64":
        require("x86_64", f"the images here are for amd64, this host is {host.machine()}")


@pytest.fixture
def api(platform: Shell) -> Iterator[Registry]:
    url, token = ((platform.home / "registry" / name).read_text().strip() for name in ("address", "token"))
    with Registry(url, token) as found:
        yield found


@pytest.fixture(scope="module")
def base(platform: Shell, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a runtime base that the registry holds."""
    path = tmp_path_factory.mktemp("base") / "base.tar"
    images.docker_archive(path, ROOT, PYTHON, Labels={"dev.udo.runtime": "python", "dev.udo.python_tag": TAG}, User="1000")
    done = platform("registry", "base", "push", path, "--json").json
    assert done["reference"] == BASE
    return str(done["digest"])


def test_without_a_base_an_image_has_code_only_and_that_is_said(platform: Shell, operator: Operators, api: Registry) -> None:
    done = platform("push", operator("early"), "--base", "none", "--json")
    assert "base" not in done.err and done.json["base"] is None
    here = platform("push", operator("early", "1"), "--dry-run").err
    assert "registry has none" not in here, "on nodes like this machine it makes no difference"
    other = "3.13" if TAG != "cp313" else "3.12"
    said = platform("push", operator("early", "2"), "--python", other).err
    assert "the registry has none for cp31" in said and "nodes that have this Python" in said
    assert [la["kind"] for la in api.version("early", "2")["layers"]] == ["code"]


def test_an_operator_stands_on_the_registrys_base_whose_layers_are_not_sent(
    platform: Shell, operator: Operators, api: Registry, base: str
) -> None:
    pushed = platform("push", operator("based", "1"), "--json")
    assert pushed.json["base"] == {"reference": BASE, "digest": base}
    assert pushed.err.count("sending") == 1  # the code layer

    document = json.loads(api.manifest("based", "1"))
    config = json.loads(api.blob("based", document["config"]["digest"]))
    below = json.loads(api.manifest(BASE.partition(":")[0], base))
    assert document["layers"][:2] == below["layers"] and len(document["layers"]) == 3
    assert [la["kind"] for la in api.version("based", "1")["layers"]] == ["base", "base", "code"]
    assert document["annotations"]["org.opencontainers.image.base.digest"] == base
    assert config["rootfs"]["diff_ids"][:2] == [images.digest(ROOT), images.digest(PYTHON)]
    assert len(config["rootfs"]["diff_ids"]) == len(config["history"]) == 3
    run = config["config"]
    assert (run["Entrypoint"], run["User"], run["WorkingDir"]) == (["/bin/run"], "1000", "/opt/udo/code")
    assert run["Env"] == ["PATH=/bin", "UDO_PYTHONPATH=/opt/udo/code:/opt/udo/deps:/opt/udo/runtime"]


def test_the_same_files_on_the_same_base_give_the_same_digest_and_another_base_another(
    platform: Shell, operator: Operators, base: str, tmp_path: Path
) -> None:
    digests = {platform("push", operator("twin", "1"), "--dry-run", "--json").json["digest"] for _ in range(2)}
    assert len(digests) == 1
    labels = {"dev.udo.python_tag": "cp39"}  # a base for another Python
    path = images.docker_archive(tmp_path / "b.tar", images.tar(other="x"), Labels=labels)
    other = platform("registry", "base", "push", path, "--json").json["reference"]
    assert other == "udo/runtime-python:cp39-linux_x86_64"
    named = platform("push", operator("twin", "1"), "--dry-run", "--base", other, "--json").json
    assert named["base"]["reference"] == other and named["digest"] not in digests
    assert "expected REPOSITORY:TAG" in platform("push", operator("twin", "1"), "--dry-run", "--base", "odd", code=2).err


def test_a_base_says_what_it_is_or_is_told(platform: Shell, tmp_path: Path) -> None:
    path = images.oci_archive(tmp_path / "b.tar", images.tar(x="y"))
    assert "dev.udo.python_tag" in platform("registry", "base", "push", path, code=2).err
    told = platform("registry", "base", "push", path, "--python", "3.9", "--json").json
    assert told["reference"] == "udo/runtime-python:cp39-linux_x86_64"


def test_skopeo_reads_an_operator_on_a_base(platform: Shell, operator: Operators, api: Registry, base: str, tmp_path: Path) -> None:
    skopeo = shutil.which("skopeo") or require("skopeo", "apt-get install -y skopeo")
    platform("push", operator("sko", "1"))
    source = f"docker://{api.url.removeprefix('http://')}/sko:1"
    done = subprocess.run(
        [skopeo, "copy", "--src-tls-verify=false", source, f"oci:{tmp_path}/out:1"],
        capture_output=True,
        text=True,
        timeout=bound(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    whole = platform("push", operator("sko", "2"), "--image", tmp_path / "out", "--json").json  # back again, as a whole image
    assert whole["version"] == "2" and len(whole["layers"]) == 3


@pytest.mark.parametrize("form", ["docker_archive", "oci_archive", pytest.param("oci_layout", marks=pytest.mark.short)])
def test_a_whole_image_becomes_a_version_as_it_is(platform: Shell, operator: Operators, api: Registry, tmp_path: Path, form: str) -> None:
    path = getattr(images, form)(tmp_path / "image.tar", ROOT, images.tar(app="speaks the protocol"))
    folder = operator(form.replace("_", "-"), "1", source="nothing is taken from here")

    first = platform("push", folder, "--image", path, "--json").json
    again = platform("push", folder, "--image", path, "--json").json

    assert first["digest"] == again["digest"]
    version = api.version(first["name"], "1")
    assert [la["kind"] for la in version["layers"]] == ["base", "base"]
    assert (version["manifest"]["platform"], version["manifest"]["input"]) == ("linux_x86_64", {"a": "int64"})
    config = json.loads(api.blob(first["name"], json.loads(api.manifest(first["name"], "1"))["config"]["digest"]))
    assert config["config"]["Env"] == ["PATH=/bin", "UDO_PYTHONPATH=/opt/udo/runtime"] and config["config"]["Entrypoint"] == ["/bin/run"]
    assert json.loads(config["config"]["Labels"]["dev.udo.manifest"])["name"] == first["name"]
    refused = platform("deploy", first["name"], code=6)
    assert f"{first['name']}@1 is a whole image" in refused.err and "--driver docker" in refused.err
    platform("undeploy", first["name"])


def _damage(path: Path) -> Path:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"speaks the protocol", b"speaks the dialect!"))
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p / "absent.tar", "there is no file"),
        (lambda p: images.tar_of(p / "i.tar", {"x": b"y"}), "neither manifest.json nor index.json"),
        (lambda p: (p / "i.tar").write_bytes(b"no tar") and p / "i.tar", "is not a readable archive"),
        (lambda p: _damage(images.docker_archive(p / "i.tar", images.tar(app="speaks the protocol"))), "the archive is damaged"),
        (lambda p: images.docker_archive(p / "i.tar", ROOT, Entrypoint=None), "neither ENTRYPOINT nor CMD"),
        (lambda p: images.tar_of(p / "i.tar", {"manifest.json": b"[{}]"}), "is damaged: KeyError"),
        (lambda p: images.tar_of(p / "i.tar", {"manifest.json": b"[{},{}]"}), "holds 2 images"),
        (
            lambda p: images.oci_layout(p / "l", ROOT, more=[{"digest": "sha256:" + "0" * 64, "platform": {"os": "linux"}}]),
            "expected one Linux image",
        ),
        (lambda p: images.tar_of(p / "i.tar", {"index.json": b'{"manifests": [{"digest": "../../etc"}]}'}), "has no file"),
    ],
)
def test_what_is_no_image_is_refused_by_name(
    platform: Shell, operator: Operators, tmp_path: Path, make: Callable[[Path], Path], said: str
) -> None:
    done = platform("push", operator("bad"), "--image", make(tmp_path), code=None)
    assert done.code in (2, 3) and said in done.err


def test_an_image_for_other_programs_of_the_index_is_passed_over(platform: Shell, operator: Operators, tmp_path: Path) -> None:
    notes = [{"digest": "sha256:" + "0" * 64, "platform": {"os": "unknown", "architecture": "unknown"}}]  # an attestation by buildx
    path = images.oci_layout(tmp_path / "l", ROOT, more=notes)
    assert len(platform("push", operator("many"), "--image", path, "--json").json["layers"]) == 1
    assert "do not apply" in platform("push", operator("many"), "--image", path, "--python", "3.12", code=2).err


def test_a_whole_image_needs_no_entry_and_code_does(platform: Shell, operator: Operators, tmp_path: Path) -> None:
    folder = operator("no-entry")
    manifest = folder / "operator.toml"
    manifest.write_text(manifest.read_text().replace('entry = "op:run"\n', ""))
    path = images.oci_layout(tmp_path / "l", ROOT)
    assert platform("push", folder, "--image", path, "--json").json["pushed"]
    for words in (("push", folder), ("test", folder)):
        said = platform(*words, code=2).err
        assert "entry is missing: module:attribute" in said
        for step in ("udo test DIR --image REF", "udo push DIR --image REF", "docs/docker.md"):
            assert step in said


def test_a_version_tells_where_it_comes_from_and_who_uses_it(platform: Shell, operator: Operators, base: str) -> None:
    folder = operator("told", "1")
    for command in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "one")):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True, timeout=bound(30))
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True, timeout=bound(30)
    ).stdout.strip()
    digest = platform("push", folder, "--json", UDO_USER="ada").json["digest"]
    second = operator("told", "2", plus=2)
    needs = wheel(second, "udo_sample_dep", 42).name
    manifest = second / "operator.toml"
    manifest.write_text(manifest.read_text().replace("requirements = []", f'requirements = ["./{needs}"]'))
    platform("push", second, UV_OFFLINE="1")
    assert "udo_sample_dep" in platform("inspect", "told@2", "--json").json["provenance"]["dev.udo.packages"]
    assert "udo_sample_dep" in platform("inspect", "told@2").out
    platform("deploy", "told@1")

    shown = platform("inspect", "told@1", "--json").json

    made = shown["provenance"]
    assert (shown["digest"], shown["pushed_by"], made["org.opencontainers.image.authors"]) == (digest, "ada", "ada")
    assert (made["org.opencontainers.image.revision"], made["dev.udo.modified"]) == (commit, "false")
    assert made["org.opencontainers.image.base.digest"] == base and made["dev.udo.builder"].startswith("udo-spark ")
    assert shown["signatures"] == [] and [la["kind"] for la in shown["layers"]] == ["base", "base", "code"]
    assert shown["used_by"] == {"deployments": [{"name": "told", "wanted": True}], "queries": [], "key_groups": [], "nodes_not_asked": []}

    assert "in use by told" in platform("registry", "delete", "told@1", code=4).err
    platform("update", "told", "2")
    assert "is what a rollback of told would lead to" in platform("registry", "delete", "told@1", code=4).err
    assert platform("inspect", "told@1", "--json").json["used_by"]["deployments"] == [{"name": "told", "wanted": False}]
    assert platform("push", folder, "--json").json["digest"] == digest  # again, from another folder: nothing new is attached
    assert platform("inspect", "told@1", "--json").json["provenance"] == made
    platform("undeploy", "told")
    assert "NAME@VERSION" in platform("registry", "delete", "told", code=2).err
    platform("registry", "delete", "told@1")
    platform("inspect", "told@1", code=3)


def test_what_exchanges_events_now_is_shown_beside_the_version(platform: Shell, operator: Operators) -> None:
    from udo_interface import connect

    platform("push", operator("busy", "1"))
    platform("deploy", "busy")
    answers: list[Any] = []
    with connect("busy", node=str(platform.home / "node" / "node.sock")) as client:
        client.add_listener(answers.append)
        client.send({"a": 1})
        client.flush(30)
        (query,) = platform("inspect", "busy@1", "--json").json["used_by"]["queries"]
        assert (query["deployment"], query["lanes"], query["sessions"]) == ("busy", 1, [])
        assert platform("inspect", "busy", "--json").json["queries"] == [query]
    assert answers == [{"b": 2}]
    assert platform("inspect", "busy@1", "--json").json["used_by"]["queries"] == []
    platform("undeploy", "busy")


def test_a_version_that_a_query_has_asked_for_is_not_deleted(platform: Shell, operator: Operators) -> None:
    from udo_interface import connect

    for version in ("1", "2"):
        platform("push", operator("asked", version))
    platform("deploy", "asked@2")
    with connect("asked@1", node=str(platform.home / "node" / "node.sock")) as client:
        client.send({"a": 1})
        client.flush(30)
        refused = platform("registry", "delete", "asked@1", code=4).err
        assert "in use by queries that ask for this version: asked on node" in refused
    platform("registry", "delete", "asked@1")
    platform("undeploy", "asked")


def test_docker_runs_what_was_put_on_a_base_that_docker_built(
    platform: Shell, operator: Operators, docker: Daemon, runtime_image: str, base: str
) -> None:
    """Push a base from the daemon, push an operator on it without the daemon, then pull: the operator's code runs in the container."""
    published = platform("registry", "base", "push", runtime_image, "--json", **docker.environment).json["reference"]
    source = "VALUE = 42\n" + OPERATOR.format(body="pass", plus=1)
    done = platform("push", operator("contained", "1", source=source), "--base", published, "--json").json
    name = f"{(platform.home / 'registry' / 'address').read_text().strip().removeprefix('http://')}/contained@{done['digest']}"
    try:
        docker("pull", "--quiet", name)
        code = "import os, sys; sys.path[:0] = os.environ['UDO_PYTHONPATH'].split(':'); import op, pyarrow; print(op.VALUE, os.getuid())"
        assert docker("run", "--rm", "--network=none", "--read-only", "--entrypoint=python3", name, "-c", code).split() == ["42", "65532"]
    finally:
        docker("rmi", name)


def test_an_image_of_the_docker_daemon_is_pushed_by_its_name(platform: Shell, operator: Operators, docker: Daemon, tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(images.tar(app="speaks the protocol"))
    docker("import", '--change=ENTRYPOINT ["/app"]', str(layer), "udo-test-whole:1")
    try:
        pushed = platform("push", operator("daemon", "1"), "--image", "udo-test-whole:1", "--json", **docker.environment)
        assert len(pushed.json["layers"]) == 1
        absent = platform("push", operator("daemon", "2"), "--image", "udo-test-absent:1", code=3, **docker.environment)
        assert "neither a file nor an image" in absent.err
    finally:
        docker("rmi", "udo-test-whole:1")
    away = platform("push", operator("daemon", "3"), "--image", "udo-test-whole:1", code=5, DOCKER_HOST="unix:///nowhere.sock")
    assert "the Docker daemon does not answer" in away.err


def test_a_registry_that_runs_already_is_not_believed_to_require_signatures(platform: Shell, tmp_path: Path) -> None:
    made = platform("registry", "key", "new", tmp_path / "k", "--json").json
    assert "requires no signatures; stop it first: udo down" in platform("up", "--require-signatures", tmp_path, code=4).err
    assert Path(made["public"]).exists()


def test_signing_and_a_registry_that_insists_on_it(operator: Operators, tmp_path: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="udo-sig-"))
    shell = Shell(home)
    (tmp_path / "trusted").mkdir()
    key, other = tmp_path / "release.key", tmp_path / "other.key"
    made = shell("registry", "key", "new", key, "--json").json
    Path(made["public"]).rename(tmp_path / "trusted" / "release.pub")
    shell("registry", "key", "new", other)
    try:
        shell("up", "--require-signatures", tmp_path / "trusted")
        folder = operator("signed", "1")
        assert "does not become a version" in shell("push", folder, code=4).err
        assert "by none of them" in shell("push", folder, "--sign", other, code=4).err
        assert shell("ls", "operators", "--json").json == {"operators": []}

        done = shell("push", folder, "--sign", key)

        assert "signed with key" in done.err
        assert made["key"] in shell("inspect", "signed@1", "--json").json["signatures"]
        assert shell("up", "--require-signatures", tmp_path / "trusted", "--json").json["started"] == []
    finally:
        shell("down", code=None)
        shutil.rmtree(home, ignore_errors=True)
    assert not shell.running()
