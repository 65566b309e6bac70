"""The process that unpacks one layer: the blob is its standard input, the outcome one line of JSON on standard output.

It limits itself before it reads the first byte, and ends when its node manager has ended. Standard library only: it starts in
20 ms. Its arguments: a JSON object with `prefix`, `into`, `bytes`, `entries`, `cpu_s`, `memory_bytes`, `reserve_bytes` and `parent`.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from node_manager.images.tree import unpack
from udo_protocol.formats.strict_tar import TarRefused

# Unpacking may take long; processes that serve events go first.
_NICE = 5
_OPEN_FILES = 16
# No core files: the content is from elsewhere, and a dump of it is useless here.
_CORE_BYTES = 0
# Errors that say something about the node, not about the layer.
_OF_NODE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def limit(cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
    """Bound this process for its whole life. At `cpu_s` the kernel ends it by SIGXCPU; too much memory, or too large a file, raises."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # raises as well
    for which, most in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, _CORE_BYTES),
    ):
        hard = resource.getrlimit(which)[1]
        resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def outcome(blob: IO[bytes], wish: Mapping[str, Any], alive: Callable[[], None] = lambda: None) -> dict[str, object]:
    """Unpack it; return `bytes` and `entries`, or `refused` with the reason, or `node` with the fault of this node."""
    try:
        with gzip.open(blob, "rb") as plain:
            size, entries = unpack(plain, wish["prefix"], wish["into"], wish["bytes"], wish["entries"], alive)
        return {"bytes": size, "entries": entries}
    except TarRefused as e:
        return {"refused": str(e)}
    except OSError as e:
        return {"node" if e.errno in _OF_NODE else "refused": e.strerror or str(e)}
    except MemoryError:
        return {"refused": f"unpacking it takes more than {wish['memory_bytes'] >> 20} MiB of memory"}
    except Exception as e:  # any other error is the fault of this layer
        return {"refused": f"it is damaged: {type(e).__name__}: {e}"}


def main() -> None:
    """See the module."""
    wish = json.loads(sys.argv[1])
    os.nice(_NICE)
    os.umask(0o022)
    limit(wish["cpu_s"], wish["memory_bytes"], wish["bytes"])

    def alive() -> None:
        if os.getppid() != wish["parent"]:
            os._exit(1)
        disk = os.statvfs(wish["into"])
        if disk.f_bavail * disk.f_frsize < wish["reserve_bytes"]:
            raise OSError(errno.ENOSPC, f"less than {wish['reserve_bytes'] >> 20} MiB would be left on the disk")

    print(json.dumps(outcome(sys.stdin.buffer, wish, alive)), flush=True)
