"""`udo conformance`: the SDKs keep the protocol, and a program that breaks it fails in the right cases."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import images
from tests.cli.conftest import Shell
from tests.conftest import wait_until
from tests.operators import liar
from tests.support.docker_daemon import Daemon as Docker
from udo_cli.packing import build
from udo_protocol.formats.media_types import OCI_MANIFEST
from udo_protocol.registry.content import digest_of

PYTHON = Path(__file__).parents[2] / "runtimes" / "conformance" / "python_operator.py"
MANIFEST = """
name = "conformance"
version = "1"
entry = "python_operator:Chosen"
isolation = "process"
[input]
n = "int64"
[output]
n = "int64"
"""
# An image that was not packed with udo, with nothing but a static program that speaks the operator protocol.
WHOLE = """
FROM scratch
COPY conformance /conformance
ENTRYPOINT ["/conformance"]
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """`udo` without a platform."""
    yield Shell(tmp_path / "home")


def test_the_go_sdk_keeps_the_protocol(shell: Shell, programs: Path) -> None:
    said = shell("conformance", "--json", programs / "conformance").json
    assert (said["failed"], [c for c in said["cases"] if not c["passed"]]) == (0, [])
    assert len(said["us_per_frame"]) == 5 and all(us > 0 for us in said["us_per_frame"].values())


@pytest.mark.long
def test_the_python_process_keeps_the_protocol(shell: Shell) -> None:
    said = shell("conformance", "--json", "--only", " ", "--", sys.executable, PYTHON).json  # all cases, but no times
    assert (said["failed"], [c for c in said["cases"] if not c["passed"]]) == (0, [])


@pytest.mark.long
def test_each_case_fails_by_the_lie_that_is_told_to_it(shell: Shell) -> None:
    said = shell("conformance", "--json", sys.executable, liar.__file__, code=6).json
    whys = {case: why for cases in liar.LIES.values() for case, why in cases.items()}
    assert sorted(whys) == sorted(c["case"] for c in said["cases"])
    assert {c["case"]: c["why"] for c in said["cases"] if c["passed"] or whys[c["case"]] not in c["why"]} == {}


@pytest.mark.long
def test_an_image_is_started_as_on_a_node_and_keeps_the_protocol_pushed_or_as_an_oci_layout(platform: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "conformance"
    folder.mkdir()
    shutil.copy(PYTHON, folder)
    (folder / "operator.toml").write_text(MANIFEST)
    platform("push", folder)
    said = platform("conformance", "--json", "--only", "handshake", "conformance@1").json
    assert (said["failed"], len(said["cases"])) == (0, 4), said
    said = platform("conformance", "--json", "--only", "end: S", str(layout(folder, tmp_path))).json
    assert (said["failed"], len(said["cases"])) == (0, 4), said
    (folder / "operator.toml").write_text(MANIFEST.replace('isolation = "process"', "").replace('version = "1"', 'version = "2"'))
    platform("push", folder)
    assert "does not speak the operator protocol" in platform("conformance", "conformance@2", code=2).err


@pytest.mark.long
def test_a_whole_image_of_the_docker_daemon_runs_in_a_container_and_keeps_the_protocol(
    shell: Shell, docker: Docker, programs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "image"
    folder.mkdir()
    shutil.copy(programs / "conformance", folder)
    (folder / "Dockerfile").write_text(WHOLE)
    docker("build", "--quiet", "--network=none", "--tag=whole-conformance:1", str(folder))
    try:
        shell.env |= docker.environment
        said = shell("conformance", "--json", "whole-conformance:1").json
        assert (said["failed"], [c for c in said["cases"] if not c["passed"]]) == (0, [])
        assert len(said["us_per_frame"]) == 5
        wait_until(lambda: not docker("ps", "--all", "--quiet", "--filter=ancestor=whole-conformance:1"), 20, "the containers' removal")
    finally:
        docker("rmi", "--force", "whole-conformance:1")
    assert "neither a file nor an image" in shell("conformance", "whole-conformance:1", code=3).err


@pytest.mark.long
def test_a_whole_image_that_is_not_in_the_docker_daemon_is_refused(platform: Shell, tmp_path: Path) -> None:
    folder, image = tmp_path / "whole", tmp_path / "whole.tar"
    folder.mkdir()
    manifest = MANIFEST.replace('name = "conformance"', 'name = "whole"')
    (folder / "operator.toml").write_text(manifest)
    images.docker_archive(image, images.tar(bin__run="#!"), Entrypoint=["/bin/run"])
    assert "docker load it" in platform("conformance", image, code=2).err
    assert "not the operator protocol: remove" in platform("push", folder, "--image", image, code=2).err
    (folder / "operator.toml").write_text(manifest.replace('isolation = "process"', ""))
    platform("push", folder, "--image", image)
    assert "speaks the queue protocol itself" in platform("conformance", "whole@1", code=2).err


def layout(folder: Path, work: Path) -> Path:
    """Write, as an OCI layout, the image that a push of the folder makes, and return its path."""
    (made := work / "layout").mkdir()
    target = build.Target.of(None, None)
    image = build.build(build.load(folder, None, target), work, work / "cache", lambda _: None).image
    (blobs := made / "blobs" / "sha256").mkdir(parents=True)
    for data in (image.config, image.manifest, *(layer.path.read_bytes() for layer in image.layers)):
        (blobs / digest_of(data).partition(":")[2]).write_bytes(data)
    index = {"schemaVersion": 2, "manifests": [{"mediaType": OCI_MANIFEST, "digest": image.digest, "size": len(image.manifest)}]}
    (made / "index.json").write_text(json.dumps(index))
    return made


def test_a_program_or_a_case_that_is_not_there_is_a_usage_error(shell: Shell) -> None:
    assert "/nonexistent/x cannot be started" in shell("conformance", "/nonexistent/x", code=2).err
    assert "no case has 'nowhere'" in shell("conformance", "--only", "nowhere", sys.executable, code=2).err
