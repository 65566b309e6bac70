"""The sandbox for isolated.py: the one that a node would choose on this machine, with the child's files and the operator's network."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from node_manager import proc
from node_manager.drivers import network, sandbox
from node_manager.drivers.sandbox import Bubblewrap, Landlock, Sandbox
from udo_cli.text import output
from udo_protocol.errors import OperatorError

# bubblewrap reports the sandbox's first process at once; the network relay ends when that process has ended.
_TOLD_TIMEOUT_S = 10.0


def find(work: Path, seen: Iterable[Any]) -> Sandbox | None:
    """A sandbox in which `work`, this package and the paths among `seen` can be read; None, with a remark, if the host allows none."""
    sockets = work / "sockets"  # empty: there are no servers
    sockets.mkdir()
    (work / "private" / "scratch").mkdir(exist_ok=True)  # for Landlock
    box, remark = sandbox.find(sockets, work / "runtime")
    if not isinstance(box, Bubblewrap | Landlock):
        output.say(f"tested without isolation ({remark}); a node that isolates gives it no network and no files but its own")
        return None
    paths = [Path(str(p)) for p in seen]
    return replace(box, shared=(*box.shared, work, Path(__file__).parent, *(p for p in paths if p.is_absolute() and p.exists())))


class Gate:
    """Holds a program at its start in bubblewrap until it has the network that its manifest names."""

    def __init__(self) -> None:
        told, tell = os.pipe()
        held, go = os.pipe()
        self._told, self._tell = FileIO(told), FileIO(tell, "w")
        self._held, self._go = FileIO(held), FileIO(go, "w")
        self._relay: subprocess.Popen[bytes] | None = None

    @property
    def inherited(self) -> tuple[int, ...]:
        """File descriptors that the program has to inherit."""
        return self._tell.fileno(), self._held.fileno()

    def command(self, box: Bubblewrap, directory: Path) -> list[str]:
        """The command to put before the program's own."""
        return [*box.command(directory, self._tell.fileno())[:-1], "--block-fd", str(self._held.fileno()), "--"]

    def open(self, directory: Path, endpoints: Sequence[str]) -> None:
        """Let the started program run, with access to these endpoints. OperatorError if its sandbox did not start."""
        self._tell.close()
        self._held.close()
        text = b""
        while not text.rstrip().endswith(b"}"):
            part = self._told.read(4096) if select.select([self._told], [], [], _TOLD_TIMEOUT_S)[0] else b""
            if not part:
                raise OperatorError("its sandbox did not start")
            text += part
        if (leader := proc.identify(json.loads(text)["child-pid"])) is not None:
            self._relay = network.start(leader, directory, endpoints)
        self._go.close()

    def close(self) -> None:
        """Clean up after the program has ended."""
        for each in (self._told, self._tell, self._held, self._go):
            each.close()
        if self._relay is not None:
            self._relay.wait(_TOLD_TIMEOUT_S)
