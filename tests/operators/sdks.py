"""The SDKs whose samples are built at test time, each once per session: how they are built, and the command that starts a sample."""

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
# The first build on a machine also downloads the SDK's dependencies.
BUILD_S = 560
# For a program that needs no system files. All tests compile with it: Arrow's library takes a minute for each set of flags.
STATIC_GO = {"CGO_ENABLED": "0"}
# A small heap, a collector without threads of its own, and little compilation: dozens of these start here, for a few frames each.
JAVA = ("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", "bin/samples.jar", "{}")


@dataclass(frozen=True)
class Sdk:
    """A built SDK. Once `bin` is in an operator's folder, `command` starts a sample: `{}` stands for its name."""

    name: str
    bin: Path
    command: tuple[str, ...]

    def starting(self, sample: str) -> list[str]:
        """The command in a sample's manifest."""
        return [word.format(sample) for word in self.command]

    def put(self, folder: Path) -> None:
        """Copy what the samples need into an operator's folder."""
        shutil.copytree(self.bin, folder / "bin", copy_function=_shared)


def _shared(source: str, target: str) -> None:
    """Link a file where possible, else copy it."""
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)


def go(target: Path, *packages: str) -> Path:
    """Build these programs of the Go SDK into a folder, with the toolchain's own cache."""
    tools("go")
    done = run(["go", "build", "-ldflags=-s -w", "-o", f"{target}/", *packages], RUNTIMES / "go", **STATIC_GO)
    assert done.returncode == 0, done.stderr
    return target


def java(scratch: Path) -> Sdk:
    """Build a copy of the SDK, and run its unit tests."""
    tools("mvn", "javac")
    copy = shutil.copytree(RUNTIMES / "java", scratch / "java", ignore=shutil.ignore_patterns("target"))
    maven(copy, "package", f"-Dgolden={RUNTIMES / 'conformance' / 'state.json'}")
    (scratch / "bin").mkdir()
    shutil.copy(copy / "samples" / "target" / "samples.jar", scratch / "bin")
    return Sdk("java", scratch / "bin", JAVA)


def node(scratch: Path) -> Sdk:
    """The same for Node; the dependencies are installed beside the samples, as a package needs them, and the SDK's tests use these."""
    tools("node", "npm")
    copy = shutil.copytree(RUNTIMES / "node", scratch / "node", ignore=shutil.ignore_patterns("node_modules"))
    (copy / "sdk" / "node_modules").symlink_to(copy / "samples" / "node_modules")
    for command, folder in ((["npm", "ci", "--prefer-offline", "--no-audit"], "samples"), (["npm", "test"], "sdk")):
        done = run(command, copy / folder, GOLDEN=str(RUNTIMES / "conformance" / "state.json"))
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return Sdk("node", copy / "samples", ("node", "bin/{}.js"))


def rust(scratch: Path) -> Sdk:
    """The same for Rust. The target folder is shared with the session's other Rust projects, which need the same crates."""
    tools("cargo")
    target = cargo_target(scratch.parent)
    samples = [path.stem for path in (RUNTIMES / "rust" / "samples" / "src" / "bin").iterdir()]
    if os.environ.get("UDO_GATE"):  # it uses only one
        samples = ["fraud"]
    else:
        cargo(RUNTIMES / "rust", target, "test", "--locked", "--package", "udo-operator", "--test", "golden", "--test", "served")
    cargo(RUNTIMES / "rust", target, "build", "--locked", "--package", "samples", *(f"--bin={name}" for name in samples))
    (scratch / "bin").mkdir()
    for name in samples:
        shutil.copy(target / "debug" / name, scratch / "bin")
    return Sdk("rust", scratch / "bin", ("bin/{}",))


def static_rust(scratch: Path, sample: str) -> Sdk:
    """Build one of Rust's samples, linked so that it needs no system files."""
    tools("cargo")
    target = cargo_target(scratch.parent)
    wanted = ("rustc", "--locked", "--package", "samples", "--bin", sample, "--", "-C", "target-feature=+crt-static")
    cargo(RUNTIMES / "rust", target, *wanted)
    (scratch / "bin").mkdir()
    shutil.copy(target / "debug" / sample, scratch / "bin")
    return Sdk("rust", scratch / "bin", ("bin/{}",))


def cpp(scratch: Path) -> Sdk:
    """The same for C++; Arrow's library is beside the samples. Each sample takes long to compile, and the gate uses only one."""
    build = scratch / "build"
    cmake(RUNTIMES / "cpp", build, *(["-DUDO_SAMPLES=fraud"] if os.environ.get("UDO_GATE") else []))
    done = run(["cmake", "--install", str(build), "--prefix", str(scratch)], scratch)
    assert done.returncode == 0, done.stderr
    return Sdk("cpp", scratch / "bin", ("bin/{}",))


BUILT: dict[str, Callable[[Path], Sdk]] = {"cpp": cpp, "java": java, "node": node, "rust": rust}


def cmake(folder: Path, build: Path, *more: str) -> None:
    """Build and test with CMake, with the Arrow of this Python."""
    tools("cmake", "g++")
    # Only the deep run builds as users do; the gate builds as fast as possible.
    quick = [] if os.environ.get("UDO_DEEP") else ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", "-DCMAKE_UNITY_BUILD=ON"]
    done = run(["cmake", "-S", str(folder), "-B", str(build), *quick, *more, f"-DPython3_EXECUTABLE={sys.executable}"], folder)
    if "Could not find UDO_" in done.stderr:
        require("nlohmann-json3-dev, libprotozero-dev", done.stderr)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for command in (["cmake", "--build", str(build), "--parallel", "2"], ["ctest", "--test-dir", str(build), "--output-on-failure"]):
        done = run(command, folder)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]


def cargo_target(session: Path) -> Path:
    """The folder in which all Rust projects of a test session are built."""
    return session / "cargo"


def cargo(folder: Path, target: Path, *words: str) -> None:
    """Run cargo, offline if all dependencies have been downloaded before, and without line numbers for backtraces."""
    settings = {"CARGO_TARGET_DIR": str(target), "CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_DEV_INCREMENTAL": "false"}
    done = run(["cargo", "--offline", *words], folder, **settings)
    if done.returncode and "offline" in done.stderr:
        done = run(["cargo", *words], folder, **settings)
    if "requires rustc" in done.stderr:
        require("a newer Rust", done.stderr)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]


def maven(folder: Path, *goals: str) -> str:
    """Run Maven, offline if all dependencies have been downloaded before, and return its output."""
    done = run(["mvn", "-B", "-ntp", "-o", *goals], folder)
    if done.returncode and "offline" in done.stdout:
        done = run(["mvn", "-B", "-ntp", *goals], folder)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def run(command: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder to its end."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, env={**os.environ, **env})


def tools(*names: str) -> None:
    """Skip, or fail where all parts are required, if one of these programs is missing."""
    for name in names:
        if shutil.which(name) is None:
            require(name, f"{name} is not on PATH")
