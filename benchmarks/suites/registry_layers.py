"""Push and pull of one large layer, compared with copying and hashing the file once; `udo push` of an operator whose code changed.

A push ends when the registry has the layer on its disk, a pull when the file has been checked; the copy that both are
compared with is in the page cache only, which favours it. The ways take turns, so that a busy machine affects all.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.bringup import say, wait_until
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from udo_protocol.registry.api import Registry

FULL_MB, QUICK_MB = 500, 100
OPERATOR = Path(__file__).parents[2] / "examples" / "operators" / "fraud_v1"
PUSH_TIMEOUT_S = 60
# The first megabyte of each round is new, so that the registry cannot know the layer.
_HEAD_BYTES = 1 << 20


@contextmanager
def _registry(home: Path) -> Iterator[Registry]:
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-P", "-m", "registry", "--data", str(home)], stdout=log, stderr=log)
    try:
        wait_until(lambda: (home / "address").exists() or process.poll() is not None, 60, "the registry's start")
        if process.poll() is not None:
            raise InvalidRun(f"the registry ended: {(home / 'log').read_text()[-500:]}")
        with Registry((home / "address").read_text(), token=(home / "token").read_text(), user="benchmarks", timeout_s=120) as client:
            yield client
    finally:
        process.terminate()
        process.wait(20)


def _seconds(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _push_changed_code(folder: Path, home: Path, version: int) -> float:
    """Change the code and push it; return the seconds of the whole command."""
    with (folder / "fraud.py").open("a") as code:
        code.write(f"\n# change {version}\n")
    url = (home / "address").read_text().strip()
    env = {**os.environ, "UDO_HOME": str(home), "UDO_REGISTRY": url, "UDO_TOKEN_FILE": str(home / "token")}
    command = [sys.executable, "-P", "-m", "udo_cli", "push", str(folder), "--version", str(version), "--no-samples"]

    def push() -> None:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PUSH_TIMEOUT_S)
        if done.returncode:
            raise InvalidRun(f"udo push ended with {done.returncode}: {done.stderr[-500:]}")

    return _seconds(push)


def _copy_and_hash(source: Path, target: Path) -> str:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@dataclass(frozen=True)
class Figures:
    """Seconds of each way, medians of the rounds; `push_vs_copy`: times as fast as copying."""

    layer_mb: int
    rounds: int
    copy_s: float
    push_s: float
    pull_s: float
    code_push_s: float
    push_vs_copy: float
    pull_vs_copy: float


def run(*, quick: bool, driver: str = "process", seed: int = 0) -> Figures:
    """Measure the seconds of each way, and the copy's as a ratio to them; `driver` and `seed` make no difference."""
    size_mb, rounds = (QUICK_MB, 3) if quick else (FULL_MB, 5)
    seconds: dict[str, list[float]] = {"copy": [], "push": [], "pull": [], "code_push": []}
    with tempfile.TemporaryDirectory(prefix="udo-bench-") as name, _registry(_made(Path(name) / "registry")) as client:
        layer, copy, pulled, folder = (Path(name) / n for n in ("layer", "copy", "pulled", "fraud"))
        shutil.copytree(OPERATOR, folder)
        with layer.open("wb") as file:
            for _ in range(size_mb):
                file.write(secrets.token_bytes(1 << 20))
        for i in range(rounds):
            with layer.open("r+b") as file:
                file.write(secrets.token_bytes(_HEAD_BYTES))
                file.flush()
                os.fsync(file.fileno())
            digests: list[str] = []
            seconds["copy"].append(_seconds(lambda: digests.append(_copy_and_hash(layer, copy))))  # noqa: B023 - called at once
            (digest,) = digests
            seconds["push"].append(_seconds(lambda: client.push_blob("layers", digest, layer)))  # noqa: B023
            seconds["pull"].append(_seconds(lambda: client.fetch_blob("layers", digest, pulled)))  # noqa: B023
            if pulled.stat().st_size != size_mb << 20:
                raise InvalidRun(f"the pulled layer has {pulled.stat().st_size} bytes, {size_mb << 20} were pushed")
            seconds["code_push"].append(_push_changed_code(folder, Path(name) / "registry", i))
            for used in (copy, pulled):
                used.unlink()
            client.collect_garbage(unused_s=0)
            say(f"round {i + 1} of {rounds}: " + ", ".join(f"{way} {took[-1]:.2f} s" for way, took in seconds.items()))
    ratios = {
        f"{way}_vs_copy": statistics.median(c / s for c, s in zip(seconds["copy"], seconds[way], strict=True)) for way in ("push", "pull")
    }
    medians = {f"{way}_s": statistics.median(took) for way, took in seconds.items()}
    return Figures(size_mb, rounds, **medians, **ratios)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    rows = [["copy and hash", f"{f.copy_s:.2f}", "1.00"]]
    rows += [["push", f"{f.push_s:.2f}", f"{f.push_vs_copy:.2f}"], ["pull", f"{f.pull_s:.2f}", f"{f.pull_vs_copy:.2f}"]]
    rows += [["`udo push` of changed code", f"{f.code_push_s:.2f}", ""]]
    remark = (
        f"A layer of {f.layer_mb} MB, {f.rounds} rounds, medians; a push is on the disk when it ends, the copy is not. "
        "`udo push` is the whole command, import check included, samples left out (`--no-samples`)."
    )
    return [Section("Registry: one layer", ["", "s", "times as fast as copy and hash"], rows, remark)]
