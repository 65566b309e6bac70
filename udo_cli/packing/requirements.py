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
from pathlib import Path

from udo_cli.packing.layers import DEPENDENCIES_ROOT, Layer, pack
from udo_protocol.errors import UsageError, WaitTimeout

# For resolving and downloading: large wheels over a slow connection.
RESOLVE_TIMEOUT_S = 900


def current_target() -> tuple[str, str]:
    """(python tag, platform) of this interpreter, such as ("cp311", "linux_x86_64")."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}", sysconfig.get_platform().replace("-", "_").replace(".", "_")


def dependencies_layer(
    requirements: Sequence[str], python_tag: str, platform: str, base: Path, cache: Path, say: Callable[[str], None]
) -> Layer | None:
    """The layer of these requirements, from `cache` if it has been made before; None if there are none. Relative paths start at `base`.

    UsageError with uv's explanation if they cannot be resolved.
    """
    if not requirements:
        return None
    # A local file may change under the same name, so only requirements from a package index are cached.
    local = any("file:" in r or "/" in r.partition("@")[0] or r.startswith(".") for r in requirements)
    key = hashlib.sha256(json.dumps(["1", python_tag, platform, sorted(requirements)]).encode()).hexdigest()
    stored, facts = cache / f"{key}.tar.gz", cache / f"{key}.json"
    if not local and stored.exists() and facts.exists():
        say(f"dependencies: cached ({len(requirements)} requirements)")
        return Layer(path=stored, kind="dependencies", **json.loads(facts.read_text("utf-8")))
    say(f"dependencies: resolving {len(requirements)} requirements for {python_tag} {platform}")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="resolve-") as work:
        _install(requirements, python_tag, platform, base, Path(work) / "target")
        layer = pack("dependencies", DEPENDENCIES_ROOT, _installed(Path(work) / "target"), Path(work) / "layer.tar.gz")
        os.replace(layer.path, stored)
    facts.write_text(json.dumps({"digest": layer.digest, "diff_id": layer.diff_id, "size_bytes": layer.size_bytes}), "utf-8")
    return Layer(stored, layer.kind, layer.digest, layer.diff_id, layer.size_bytes)


def _install(requirements: Sequence[str], python_tag: str, platform: str, base: Path, target: Path) -> None:
    from uv import find_uv_bin

    wanted = target.parent / "requirements.txt"
    wanted.write_text("\n".join(requirements) + "\n", "utf-8")
    command = [find_uv_bin(), "pip", "install", "--quiet", "--target", str(target), "--only-binary", ":all:", "--link-mode", "copy"]
    command += ["--requirements", str(wanted)]
    if (python_tag, platform) == current_target():
        command += ["--python", sys.executable]
    else:
        command += ["--python-version", f"{python_tag[2]}.{python_tag[3:]}", "--python-platform", _uv_platform(platform)]
    try:
        done = subprocess.run(command, cwd=base, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise WaitTimeout(
            f"resolving {', '.join(requirements)} took longer than {RESOLVE_TIMEOUT_S} s; is the package index reachable?"
        ) from None
    if done.returncode:
        said = done.stderr.strip() or f"uv ended with code {done.returncode}"
        raise UsageError(
            f"the requirements cannot be installed for {python_tag} {platform}; change `requirements` in operator.toml.\n{said}"
        )


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
