"""The format of a node manager's home: a number in `format.json`, checked before anything in the home is used.

It covers the files of the home and whatever runs with them; the state server's keys have a number of their own, since its file may come
from a backup (node_manager/servers/state_format.py). A home of an earlier release is converted to this release's format, once nothing of
that release runs with it any more; a home of a later one is refused.
"""

from __future__ import annotations

from pathlib import Path

from node_manager import proc
from node_manager.files import read_json, write_json
from node_manager.servers import watchdog
from udo_protocol.errors import Unavailable

# 1: no number is stored. 2: the state server's manifests name pieces. To raise it: docs/contributing.md.
FORMAT = 2
_FILE = "format.json"


def convert(home: Path) -> None:
    """Bring the home into this release's format; Unavailable, and nothing is changed, if it cannot be."""
    found = _stored(home)
    if found > FORMAT:
        raise Unavailable(
            f"the home {home} is of format {found}, written by a later release; expected at most {FORMAT}. Start it with that release, "
            "or choose another --home"
        )
    if found == FORMAT:
        return
    if running := _servers(home):
        raise Unavailable(
            f"servers of an earlier release still run with the home {home}: {', '.join(running)} (format {found}; this release has "
            f"{FORMAT}). Stop them with udo down, or with SIGTERM; then start again: the state on disk is kept and brought into this format"
        )
    watchdog.stop_instances(home)  # they would write state in their release's form
    write_json(home / _FILE, {"format": FORMAT}, durable=True)  # last: a start that was interrupted begins again


def _stored(home: Path) -> int:
    path = home / _FILE
    if not path.exists():
        return 1
    found = read_json(path)
    number = found.get("format") if isinstance(found, dict) else None
    if not isinstance(number, int):
        raise Unavailable(f'{path} is damaged: expected {{"format": a number}}; restore it from a backup, or write the number in by hand')
    return number


def _servers(home: Path) -> list[str]:
    found = []
    for role in ("queue", "state"):
        record = (read_json(home / "servers" / f"{role}.json") or {}).get("process")
        if record and proc.alive(process := proc.ProcessId(**record)):
            found.append(f"{role} server (pid {process.pid})")
    return found
