"""An operator that is a command finds the environment that its language's libraries expect, in a trial and on a node."""

from __future__ import annotations

import json
import re
import shutil
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.node_manager.conftest import Daemon
from tests.operators.sdks import STATIC_GO, cargo, cargo_target, cmake, maven, run, tools
from tests.support.docker_daemon import Daemon as Docker
from tests.support.docker_daemon import script, tool
from tests.support.places import Node, Place, Trial

FINDS = Path(__file__).parent / "finds"
ASKED = {"input": {"asked": "string"}, "output": {"answer": "string"}}
TOKYO = {"TZ": "Asia/Tokyo"}
QUESTIONS = ("user", "home", "hours", "authorities", "ends")


def go(project: Path) -> None:
    tools("go")
    (project / "main_test.go").unlink()
    shutil.copy(FINDS / "finds.go", project / "main.go")
    done = run(["go", "build", "-ldflags=-s -w", "-o", "bin/project", "."], project, **STATIC_GO)
    assert done.returncode == 0, done.stderr


def java(project: Path) -> None:
    tools("mvn", "javac")
    sources = project / "operator" / "src"
    shutil.rmtree(sources / "test")
    shutil.copy(FINDS / "Finds.java", sources / "main" / "java" / "operators" / "Finds.java")
    built = project / "operator" / "pom.xml"
    built.write_text(built.read_text().replace("operators.Flag", "operators.Finds"))
    maven(project, "package", "-DskipTests")


def node(project: Path) -> None:
    tools("node", "npm")
    shutil.copy(FINDS / "finds.js", project / "flag.js")
    done = run(["npm", "install", "--prefer-offline", "--no-audit"], project)
    assert done.returncode == 0, done.stderr


def rust(project: Path) -> None:
    tools("cargo")
    shutil.copy(FINDS / "finds.rs", project / "src" / "main.rs")
    target = cargo_target(project.parents[1])
    cargo(project, target, "build")
    (project / "bin").mkdir()
    shutil.copy(target / "debug" / "operator", project / "bin")


def cpp(project: Path) -> None:
    shutil.copy(FINDS / "finds.hpp", project / "flag.hpp")
    (project / "flag_test.cpp").write_text("int main() {}")
    cmake(project, project / "build")
    done = run(["cmake", "--install", "build", "--prefix", "."], project)
    assert done.returncode == 0, done.stderr


BUILD: dict[str, Callable[[Path], None]] = {"cpp": cpp, "go": go, "java": java, "node": node, "rust": rust}


@pytest.fixture(scope="module", params=sorted(BUILD))
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project made by `udo init`, with an operator that answers QUESTIONS, built as its README says."""
    made = tmp_path_factory.mktemp(request.param) / "project"
    Shell(made.parent / "home")("init", made, "--runtime", request.param, "--style", "event")
    BUILD[request.param](made)
    return made


@pytest.fixture
def command(project: Path) -> dict[str, object]:
    """The fields of the project's manifest that say how it is started."""
    [line] = re.findall(r"^command = (\[.*?\])", (project / "operator.toml").read_text(), re.MULTILINE)
    return {"runtime": "exec", "entry": "", "command": json.loads(line)}


@pytest.fixture(params=["trial", "node"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A trial, and a node with the process driver."""
    return Trial(tmp_path / "home") if request.param == "trial" else Node(request.getfixturevalue("daemon"))


@pytest.fixture(scope="session")
def command_image(docker_daemon: Docker, runtime_image: str) -> str:
    """A Debian image that has Java and Node."""
    tool("mmdebstrap", "mmdebstrap")
    return script(docker_daemon, "debian-base.sh", "udo-debian-commands:bookworm", PACKAGES="default-jre-headless,nodejs")


@pytest.fixture
def contained(docker: Docker, runtime_image: str, command_image: str, home_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A node with the Docker driver, whose commands that are not static run in a Debian image."""
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    return Node(home_daemon.start("--driver", "docker", "--runtime-image", runtime_image, "--command-image", command_image))


def asked(place: Place, project: Path, command: dict[str, object], questions: Sequence[str] = QUESTIONS) -> dict[str, str]:
    answers = place.answers(project, [{"asked": q} for q in questions], TOKYO, **command, **ASKED)
    return {q: a["answer"] for q, a in zip(questions, answers, strict=True)}


@pytest.mark.long
def test_a_command_finds_a_user_a_home_its_variables_and_authorities_and_may_end_what_it_starts(
    place: Place, project: Path, command: dict[str, object]
) -> None:
    found = asked(place, project, command)
    assert len(set(found["user"].split())) == 1 and len(found["user"].split()) == 3
    assert (found["home"], found["hours"], found["ends"]) == ("written", "9", "terminated")
    assert int(found["authorities"]) >= len(ssl.create_default_context().get_ca_certs())


@pytest.mark.long
def test_whatever_a_command_raises_is_one_events_failure(place: Place, project: Path, command: dict[str, object]) -> None:
    [reason] = place.failures(project, {"asked": "home"}, [{"asked": "nothing"}], **command, **ASKED)
    assert "as of a library: nothing" in reason or "Raised" in reason


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.parametrize("project", ["cpp", "java", "node", "rust"], indirect=True)
def test_in_a_container_a_command_finds_the_same(contained: Place, project: Path, command: dict[str, object]) -> None:
    found = asked(contained, project, command)
    assert found["user"] == "udo udo udo"
    assert (found["home"], found["hours"], found["ends"]) == ("written", "9", "terminated")
    assert int(found["authorities"]) > 0


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.parametrize("project", ["go"], indirect=True)
def test_in_the_empty_image_a_static_command_finds_a_user_and_a_home_and_neither_authorities_nor_time_zones(
    contained: Place, project: Path, command: dict[str, object]
) -> None:
    found = asked(contained, project, command, ("user", "home", "hours", "authorities"))
    assert found == {"user": "udo udo udo", "home": "written", "hours": "0", "authorities": "0"}


@pytest.mark.long
@pytest.mark.docker
def test_in_a_container_whatever_a_command_raises_is_one_events_failure(
    contained: Place, project: Path, command: dict[str, object]
) -> None:
    [reason] = contained.failures(project, {"asked": "home"}, [{"asked": "nothing"}], **command, **ASKED)
    assert "as of a library: nothing" in reason or "Raised" in reason
