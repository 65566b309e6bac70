"""The SDKs whose samples are built at test time, each once a session: how to build them, and what starts a sample."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import require

RUNTIMES = Path(__file__).parents[2] / "runtimes"
# The first build on a machine fetches what the SDK depends on.
BUILD_S = 280
# A small heap, a collector without threads of its own, and little compilation: dozens of them start here, for a few frames each.
JAVA = ("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", "bin/samples.jar", "{}")


@dataclass(frozen=True)
class Sdk:
    """A built SDK. `bin`: a folder that starts the samples by `command`, `{}` being the sample, when it lies in an operator's folder."""

    name: str
    bin: Path
    command: tuple[str, ...]

    def starting(self, sample: str) -> list[str]:
        """A manifest's command."""
        return [word.format(sample) for word in self.command]

    def put(self, folder: Path) -> None:
        """What its samples need, into an operator's folder."""
        shutil.copytree(self.bin, folder / "bin", copy_function=os.link)


def java(scratch: Path) -> Sdk:
    """Built, and its unit tests run, in a copy."""
    tools("mvn", "javac")
    copy = shutil.copytree(RUNTIMES / "java", scratch / "java", ignore=shutil.ignore_patterns("target"))
    maven(copy, "package", f"-Dgolden={RUNTIMES / 'conformance' / 'state.json'}")
    (scratch / "bin").mkdir()
    shutil.copy(copy / "samples" / "target" / "samples.jar", scratch / "bin")
    return Sdk("java", scratch / "bin", JAVA)


def node(scratch: Path) -> Sdk:
    """The same for Node; what it depends on is installed beside the samples, as a package needs it."""
    tools("node", "npm")
    copy = shutil.copytree(RUNTIMES / "node", scratch / "node", ignore=shutil.ignore_patterns("node_modules"))
    for command, folder in ((["npm", "test"], "sdk"), (["npm", "ci", "--prefer-offline", "--no-audit"], "samples")):
        done = run(command, copy / folder, GOLDEN=str(RUNTIMES / "conformance" / "state.json"))
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return Sdk("node", copy / "samples", ("node", "bin/{}.js"))


BUILT: dict[str, Callable[[Path], Sdk]] = {"java": java, "node": node}


def maven(folder: Path, *goals: str) -> str:
    """Without the network if all that it needs has been fetched before."""
    done = run(["mvn", "-B", "-ntp", "-o", *goals], folder)
    if done.returncode and "offline" in done.stdout:
        done = run(["mvn", "-B", "-ntp", *goals], folder)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def run(command: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder, to its end."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, env={**os.environ, **env})


def tools(*names: str) -> None:
    """Skip, or fail, where one of these is missing."""
    for name in names:
        if shutil.which(name) is None:
            require(name, f"{name} is not on PATH")
