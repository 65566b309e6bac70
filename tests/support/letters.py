"""Operators that die at chosen moments, and the dead letters of a slot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import Servers
from tests.runtime.conftest import P, Process
from tests.support.counters import COUNT, COUNTS, EVENTS, Start
from udo_protocol.state.dead_letters import DEAD, REPLAY, Letter

# Ends its process at a certain moment, once.
KILLS = """
import os, pathlib, signal
{module_import}
died = pathlib.Path({died!r})
former = {target}
def patched(self, *args, **kwargs):
    if {before} and not died.exists() and {when}:
        died.touch(); os.kill(os.getpid(), signal.SIGKILL)
    result = former(self, *args, **kwargs)
    if not {before} and not died.exists() and {when}:
        died.touch(); os.kill(os.getpid(), signal.SIGKILL)
    return result
{target} = patched
"""


def kills(died: Path, module_import: str, target: str, when: str = "True", *, before: bool = False) -> str:
    return KILLS.format(died=str(died), module_import=module_import, target=target, when=when, before=before)


def letters(servers: Servers, kind: str = DEAD) -> dict[str, Letter]:
    flat = servers.state().call("HGETALL", f"{P}{kind}")
    return {bytes(n).decode(): Letter.decode(data) for n, data in zip(flat[::2], flat[1::2], strict=True)}


def events(servers: Servers, kind: str = DEAD) -> list[Any]:
    """The events of all letters, in the order of epochs, frames and rows."""
    found = sorted(letters(servers, kind).values(), key=lambda d: (d.session, d.epoch, d.lane, d.number, d.row))
    return [json.loads(d.event) for d in found]


def counter(
    start: Start, source: str = COUNT, time_column: str | None = None, *, commit: str = "epoch", follow: str = "", **limits: int
) -> Process:
    keyed = {"columns": ["k"], "time_column": time_column, "commit": commit}
    more = {"policy": "dead-letter", "follow": follow, "promote": not follow, **limits}
    return start(source, "op:Count", schemas=(EVENTS, COUNTS), keyed=keyed, **more)


def mark(servers: Servers) -> None:
    """Mark all letters for replay, as `udo dead replay --all` does."""
    for name in letters(servers):
        servers.state().call("HSETNX", f"{P}{REPLAY}", name, "")


def marks(servers: Servers) -> list[str]:
    return [bytes(m).decode() for m in servers.state().call("HVALS", f"{P}{REPLAY}")]
