"""Unpacks mutated layers one after another in one limited process, and judges each.

`python -m benchmarks.verification.fuzz_worker DIR FIRST COUNT`.

Each must be refused, or give exactly the tree that `tarfile`, an independent reader, finds in it; nothing outside of the target may
change; no layer may take long or much memory. Prints a line of JSON for each; a violation ends the process. Standard library only.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import shutil
import signal
import sys
import tarfile
import time
from pathlib import Path
from types import FrameType

from benchmarks.verification.hostile_layers import CODE
from benchmarks.verification.mutated_layers import layer
from node_manager.images.child import outcome

# Ample limits: none of these layers has more than 100 KiB.
CPU_S, MEMORY_BYTES = 5.0, 512 << 20
MOST_BYTES, MOST_ENTRIES = 1 << 20, 100
# The standard library's messages for a stream that is not gzip, or breaks off.
_DAMAGED = ("it is damaged: EOFError", "it is damaged: error: Error -")
Tree = dict[str, tuple[str, bool, bytes]]


class Violation(Exception):
    """A layer was handled in a way that must never happen."""


def judge(said: dict[str, object], blob: bytes, honest: bool, into: Path) -> str:
    """Return 'unpacked' or 'refused'; Violation if this layer's result is wrong."""
    if "refused" in said:
        why = str(said["refused"])
        if honest:
            raise Violation(f"an honest layer was refused: {why}")
        if why.startswith("it is damaged") and not why.startswith(_DAMAGED):
            raise Violation(f"an error that nobody foresaw: {why}")
        return "refused"
    if "bytes" not in said:
        raise Violation(f"neither unpacked nor refused: {said}")
    if (there := found(into)) != (expected := read(blob)):
        different = sorted(n for n in there.keys() | expected.keys() if there.get(n) != expected.get(n))
        raise Violation(f"another tree than tarfile finds: {different[:5]}")
    return "unpacked"


def read(blob: bytes) -> Tree:
    """Return the tree that `tarfile` finds below the prefix: path -> (kind, executable, content or target)."""
    tree: Tree = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob)), mode="r:") as tar:
        for member in tar:
            path = member.name.removeprefix("./")
            if not path.startswith(f"{CODE}/"):
                continue
            path = path.removeprefix(f"{CODE}/")
            for parent in list(Path(path).parents)[:-1]:
                tree.setdefault(str(parent), ("directory", False, b""))
            if member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                tree[path] = ("file", bool(member.mode & 0o100), content.read())
            elif member.issym():
                tree[path] = ("link", False, member.linkname.encode())
            else:
                tree[path] = ("directory" if member.isdir() else "other", False, b"")
    return tree


def found(directory: Path) -> Tree:
    """Return the tree of a directory."""
    tree: Tree = {}
    for top, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = Path(top) / name
            inside = str(path.relative_to(directory))
            if path.is_symlink():
                tree[inside] = ("link", False, os.readlink(path).encode())
            elif path.is_dir():
                tree[inside] = ("directory", False, b"")
            else:
                tree[inside] = ("file", bool(path.stat().st_mode & 0o100), path.read_bytes())
    return tree


def main(directory: Path, first: int, count: int) -> None:
    """Run the command of the module's docstring."""

    def late(_signum: int, _frame: FrameType | None) -> None:
        raise Violation(f"it took more than {CPU_S:g} s of processor time")

    signal.signal(signal.SIGPROF, late)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    outside, into = directory / "outside", directory / "into"
    outside.mkdir()
    canary = outside / "canary"
    canary.write_text("untouched")
    untouched = found(directory)
    wish = {"prefix": CODE, "into": str(into), "bytes": MOST_BYTES, "entries": MOST_ENTRIES, "memory_bytes": MEMORY_BYTES}
    for seed in range(first, first + count):
        try:
            blob, honest = layer(seed, str(canary))
            into.mkdir()
            begun = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            said = outcome(io.BytesIO(blob), wish)
            signal.setitimer(signal.ITIMER_PROF, 0)
            took_ms = (time.process_time() - begun) * 1000
            result = judge(said, blob, honest, into)
            shutil.rmtree(into)
            if found(directory) != untouched:
                raise Violation("something was written outside of the target")
        except Exception as e:
            print(json.dumps({"seed": seed, "violation": f"{type(e).__name__}: {e}"}), flush=True)
            return
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(json.dumps({"seed": seed, "result": result, "why": str(said.get("refused", "")), "ms": took_ms, "peak_mb": peak_mb}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
