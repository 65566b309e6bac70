"""Unpacks one layer in a child process with limits, so that the node manager survives any content."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from udo_protocol.errors import Refused, Unavailable

PREFIXES = {"code": "opt/udo/code", "dependencies": "opt/udo/deps"}
# Unpacked size of one layer; models are large, a decompression bomb is larger.
UNPACKED_BYTES = 8 << 30
# Compressed programs and weights grow two- to tenfold, a bomb a thousandfold; below the floor the ratio does not matter.
RATIO, RATIO_FLOOR_BYTES = 100, 256 << 20
# Entries of an operator's own folder; and of an environment with several of the largest packages, which have 10,000 to 20,000 files each.
ENTRIES = {"code": 20_000, "dependencies": 200_000}
# Processor time: gzip and the file system take some 10 ms per MiB and 50 us per file on an old machine.
CPU_S, CPU_S_PER_BLOB_MIB = 30, 0.25
# Wall time allowed for each second of processor time, for a busy machine or a slow disk.
WALL_FACTOR = 10
# The interpreter takes 30 MiB, an entry 300 bytes.
MEMORY_BYTES = 256 << 20
# This much of the disk is left to others: a state server that cannot write stops everything keyed on this node.
RESERVE_BYTES = 256 << 20
_ROOT = Path(__file__).parents[2]
_PROGRAM = f"import sys; sys.path.append({str(_ROOT)!r}); from node_manager.images.child import main; main()"


@dataclass(frozen=True)
class UnpackLimits:
    """Limits of the unpacking of one layer."""

    bytes: int
    entries: int
    cpu_s: int
    memory_bytes: int = MEMORY_BYTES
    reserve_bytes: int = RESERVE_BYTES

    @property
    def wall_s(self) -> int:
        """Seconds after which the child is killed, whatever it waits for."""
        return WALL_FACTOR * self.cpu_s

    @classmethod
    def of(cls, kind: str, blob_bytes: int) -> UnpackLimits:
        """The limits of a layer of this kind and compressed size."""
        return cls(
            min(UNPACKED_BYTES, max(RATIO_FLOOR_BYTES, RATIO * blob_bytes)),
            ENTRIES[kind],
            round(CPU_S + CPU_S_PER_BLOB_MIB * blob_bytes / (1 << 20)),
        )


def require_space(directory: Path, size: int) -> None:
    """Unavailable unless `size` more bytes fit there, with the reserve left free."""
    free = shutil.disk_usage(directory).free
    if free < size + RESERVE_BYTES:
        raise Unavailable(f"a layer of {size >> 20} MiB does not fit into {directory}: {free >> 20} MiB are free; make room on this node")


def unpack(archive: Path, kind: str, into: Path, limits: UnpackLimits | None = None) -> None:
    """Unpack one gzipped layer's files below its prefix into the empty directory `into`, which is left to the caller whatever happens.

    Refused if the layer is malformed or exceeds the limits; Unavailable if this node's disk is nearly full.
    """
    limits = limits or UnpackLimits.of(kind, archive.stat().st_size)
    wish = {**asdict(limits), "prefix": PREFIXES[kind], "into": str(into.absolute()), "parent": os.getpid()}
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, json.dumps(wish)]
    env = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}  # some interpreters need it; the child gets no other
    with (
        archive.open("rb") as blob,
        subprocess.Popen(
            command, stdin=blob, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", env=env, start_new_session=True
        ) as child,
    ):
        try:
            said = child.communicate(timeout=limits.wall_s)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            raise Refused(f"refused: layer {kind} was not unpacked within {limits.wall_s} s") from None
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise Refused(f"refused: layer {kind}: {_ended(child.returncode, limits)}")
    outcome = json.loads(said)
    if "refused" in outcome:
        raise Refused(f"refused: layer {kind}: {outcome['refused']}")
    if "node" in outcome:
        raise Unavailable(f"layer {kind} cannot be unpacked here: {outcome['node']}")


def _ended(status: int, limits: UnpackLimits) -> str:
    if -status == signal.SIGXCPU or -status == signal.SIGKILL:
        return f"unpacking it was ended by {signal.Signals(-status).name}; it may take {limits.cpu_s} s of processor time"
    return f"unpacking it ended with status {status}"
