"""The sandbox for an operator that is tried: the one its node would choose on this machine, and the files of the trial in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from node_manager.drivers import sandbox
from node_manager.drivers.sandbox import Bubblewrap, Landlock, Sandbox
from udo_cli import output


def find(work: Path, seen: Iterable[Any]) -> Sandbox | None:
    """One in which `work`, this package and those of `seen` that are paths can be read; None, which is said, where the host allows none."""
    sockets = work / "sockets"  # there are no servers, so it is empty
    sockets.mkdir()
    (work / "private" / "scratch").mkdir(exist_ok=True)  # where only Landlock is there to confine it
    box, remark = sandbox.find(sockets, work / "runtime")
    if not isinstance(box, Bubblewrap | Landlock):
        output.say(f"tried without isolation ({remark}); a node that isolates gives it no network and no files but its own")
        return None
    paths = [Path(str(p)) for p in seen]
    return replace(box, shared=(*box.shared, work, Path(__file__).parent, *(p for p in paths if p.is_absolute() and p.exists())))
