"""An operator's dependencies, resolved by uv for the manifest's Python and platform, as one cached layer.

Only wheels are used: nothing is built from source. They are not installed into this environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from udo_cli.packing.layers import DEPENDENCIES_ROOT, Layer, pack
from udo_protocol.errors import UsageError, WaitTimeout
from udo_protocol.files import replace_file

# The facts about a layer that are kept in a file beside it.
_FACTS = ("digest", "diff_id", "size_bytes")

# Time to resolve and download: large wheels over a slow connection.
RESOLVE_TIMEOUT_S = 900


def current_target() -> tuple[str, str]:
    """(python tag, platform) of this interpreter, such as ("cp311", "linux_x86_64")."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}", sysconfig.get_platform().replace("-", "_").replace(".", "_")


def dependencies_layer(
    requirements: Sequence[str], python_tag: str, platform: str, base: Path, cache: Path, say: Callable[[str], None]
) -> Layer | None:
    """The layer of these requirements, from `cache` if it was made before; None without requirements. Relative paths start at `base`.

    UsageError with uv's explanation if they cannot be resolved.
    """
    if not requirements:
        return None
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="resolve-") as name:
        work = Path(name)
        locked = _locked(requirements, python_tag, platform, base)
        packages = ", ".join(line.split(" \\")[0] for line in locked.splitlines() if line and not line.startswith((" ", "#")))
        # The key depends on the hashes of the files: a wheel may change under the same name.
        key = hashlib.sha256(json.dumps(["2", python_tag, platform, locked]).encode()).hexdigest()
        stored, facts = cache / f"{key}.tar.gz", cache / f"{key}.json"
        if (known := _known(stored, facts)) is not None:
            say(f"dependencies: cached ({packages})")
            return Layer(path=stored, kind="dependencies", packages=packages, **known)
        say(f"dependencies: {packages} for {python_tag} {platform}")
        (work / "locked.txt").write_text(locked, "utf-8")
        target = ["--target", str(work / "target"), "--link-mode", "copy", "--require-hashes", "--requirements", str(work / "locked.txt")]
        _uv("install", target, python_tag, platform, base)
        layer = pack("dependencies", DEPENDENCIES_ROOT, _installed(work / "target"), work / "layer.tar.gz")
        os.replace(layer.path, stored)
    replace_file(facts, json.dumps({name: getattr(layer, name) for name in _FACTS}).encode(), durable=True)
    return replace(layer, path=stored, packages=packages)


def _known(stored: Path, facts: Path) -> dict[str, Any] | None:
    """The facts about a cached layer; None if the layer or the facts were not written completely."""
    try:
        known, size = json.loads(facts.read_bytes()), stored.stat().st_size
    except (FileNotFoundError, ValueError):
        return None
    return known if isinstance(known, dict) and known.keys() == set(_FACTS) and known["size_bytes"] == size else None


def _locked(requirements: Sequence[str], python_tag: str, platform: str, base: Path) -> str:
    """The resolved requirements: exact versions, with the hashes of their files."""
    plain = ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
    return _uv("compile", [*plain, "-"], python_tag, platform, base, "\n".join(requirements) + "\n")


def _uv(verb: str, arguments: Sequence[str], python_tag: str, platform: str, base: Path, given: str = "") -> str:
    from uv import find_uv_bin

    command = [find_uv_bin(), "pip", verb, "--quiet", "--only-binary", ":all:", *arguments]
    if (python_tag, platform) == current_target():
        command += ["--python", sys.executable]
    else:
        command += ["--python-version", f"{python_tag[2]}.{python_tag[3:]}", "--python-platform", _uv_platform(platform)]
    try:
        done = subprocess.run(command, cwd=base, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, input=given)
    except subprocess.TimeoutExpired:
        raise WaitTimeout(f"resolving the requirements took longer than {RESOLVE_TIMEOUT_S} s; is the package index reachable?") from None
    if done.returncode:
        said = done.stderr.strip() or f"uv ended with code {done.returncode}"
        raise UsageError(
            f"the requirements cannot be installed for {python_tag} {platform}; change `requirements` in operator.toml.\n{said}"
        )
    return done.stdout


def _uv_platform(platform: str) -> str:
    """uv's name of a platform, such as "x86_64-manylinux_2_28" for "linux_x86_64"."""
    system, _, machine = platform.partition("_")
    if system == "linux":
        return f"{machine}-manylinux_2_28"
    raise UsageError(f"operators run on Linux; expected a platform such as linux_x86_64 or linux_aarch64, got {platform!r}")


def _installed(target: Path) -> Iterator[tuple[str, Path]]:
    """The files that uv has installed, sorted, without its lock, caches and console scripts (which contain this machine's paths)."""
    for path in sorted(target.rglob("*")):
        inside = path.relative_to(target)
        noise = inside.parts[0] in (".lock", "bin") or "__pycache__" in inside.parts
        if path.is_file() and not noise and not (path.name in ("RECORD", "direct_url.json") and inside.parts[0].endswith(".dist-info")):
            yield inside.as_posix(), path
