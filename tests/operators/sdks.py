"""The SDKs whose samples are built at test time, each once a session: how to build them, and what starts a sample."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import require

RUNTIMES = Path(__file__).parents[2] / "runtimes"
# The first build on a machine fetches what the SDK depends on.
BUILD_S = 560
# A program that needs no file of the system. All tests compile with it: Arrow's library takes a minute for each set of flags.
STATIC_GO = {"CGO_ENABLED": "0"}
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
        shutil.copytree(self.bin, folder / "bin", copy_function=_shared)


def _shared(source: str, target: str) -> None:
    """A file is not copied where a link will do."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def go(target: Path, *packages: str) -> Path:
    """These programs of the Go SDK, in a folder; with the toolchain's own cache."""
    tools("go")
    done = run(["go", "build", "-ldflags=-s -w", "-o", f"{target}/", *packages], RUNTIMES / "go", **STATIC_GO)
    assert done.returncode == 0, done.stderr
    return target


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


def rust(scratch: Path) -> Sdk:
    """The same for Rust. Its target folder is that of the session's other Rust projects, which need the same crates."""
    tools("cargo")
    target = cargo_target(scratch.parent)
    cargo(RUNTIMES / "rust", target, "test", "--locked", "--package", "udo-operator", "--test", "golden")
    cargo(RUNTIMES / "rust", target, "build", "--locked", "--package", "samples")
    (scratch / "bin").mkdir()
    for sample in (RUNTIMES / "rust" / "samples" / "src" / "bin").iterdir():
        shutil.copy(target / "debug" / sample.stem, scratch / "bin")
    return Sdk("rust", scratch / "bin", ("bin/{}",))


def static_rust(scratch: Path, sample: str) -> Sdk:
    """One of Rust's samples, linked so that it needs no file of the system."""
    tools("cargo")
    target = cargo_target(scratch.parent)
    wanted = ("rustc", "--locked", "--package", "samples", "--bin", sample, "--", "-C", "target-feature=+crt-static")
    cargo(RUNTIMES / "rust", target, *wanted)
    (scratch / "bin").mkdir()
    shutil.copy(target / "debug" / sample, scratch / "bin")
    return Sdk("rust", scratch / "bin", ("bin/{}",))


def cpp(scratch: Path) -> Sdk:
    """The same for C++; Arrow's library lies beside the samples. The gate asks for one of them, and each takes long to compile."""
    build = scratch / "build"
    cmake(RUNTIMES / "cpp", build, *(["-DUDO_SAMPLES=fraud"] if os.environ.get("UDO_GATE") else []))
    done = run(["cmake", "--install", str(build), "--prefix", str(scratch)], scratch)
    assert done.returncode == 0, done.stderr
    return Sdk("cpp", scratch / "bin", ("bin/{}",))


BUILT: dict[str, Callable[[Path], Sdk]] = {"cpp": cpp, "java": java, "node": node, "rust": rust}


def cmake(folder: Path, build: Path, *more: str) -> None:
    """Built and tested, with the Arrow of this Python."""
    tools("cmake", "g++")
    # All tests build as users do; the gate only as fast as can be.
    quick = [] if os.environ.get("UDO_DEEP") else ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", "-DCMAKE_UNITY_BUILD=ON"]
    done = run(["cmake", "-S", str(folder), "-B", str(build), *quick, *more, f"-DPython3_EXECUTABLE={sys.executable}"], folder)
    if "Could not find UDO_" in done.stderr:
        require("nlohmann-json3-dev, libprotozero-dev", done.stderr)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for command in (["cmake", "--build", str(build), "--parallel", "2"], ["ctest", "--test-dir", str(build), "--output-on-failure"]):
        done = run(command, folder)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]


def cargo_target(session: Path) -> Path:
    """Where all Rust projects of a test session are built."""
    return session / "cargo"


def cargo(folder: Path, target: Path, *words: str) -> None:
    """Without the network if all that it needs has been fetched before. Backtraces need no line numbers here."""
    settings = {"CARGO_TARGET_DIR": str(target), "CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_DEV_INCREMENTAL": "false"}
    done = run(["cargo", "--offline", *words], folder, **settings)
    if done.returncode and "offline" in done.stderr:
        done = run(["cargo", *words], folder, **settings)
    if "requires rustc" in done.stderr:
        require("a newer Rust", done.stderr)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]


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
