"""A clock that can be set while programs run, for programs that measure time by it: the servers and the registry."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

_SOURCE = Path(__file__).with_suffix(".c")
_SECONDS = struct.Struct("<q")


class JumpingClock:
    """Programs started by `start` see a clock that is ahead by the seconds of the last `set`."""

    def __init__(self, folder: Path) -> None:
        if (compiler := shutil.which("gcc")) is None:
            require("gcc", "gcc is not on PATH")
        self._library, self._ahead = folder / "jumping_clock.so", folder / "ahead"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", self._library, _SOURCE, "-ldl"], check=True)
        self._ahead.write_bytes(_SECONDS.pack(0))

    def set(self, ahead_s: int) -> None:
        """Let the clock be this far ahead from now on."""
        with self._ahead.open("r+b") as file:
            file.write(_SECONDS.pack(ahead_s))

    def start(self, module: str, words: Sequence[str], *, output: tuple[int, int], **_: Any) -> subprocess.Popen[bytes]:
        """Like `forked.start`, but in a new process whose environment preloads the clock's library."""
        clock = {"LD_PRELOAD": str(self._library), "UDO_CLOCK": str(self._ahead), "UDO_CLOCK_OF": "valkey-server,redis-server,-m registry"}
        command = [sys.executable, "-m", module, *words]
        return subprocess.Popen(command, env={**os.environ, **clock}, stdout=output[0], stderr=output[1])


@contextmanager
def jumping_clock(folder: Path, *modules: Any) -> Iterator[JumpingClock]:
    """Within the block, programs that these modules start with `forked` see the clock."""
    clock = JumpingClock(folder)
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "forked", clock)
        yield clock
