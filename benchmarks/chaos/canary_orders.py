"""Canaries on a node without a registry. An order is a file that the node manager follows as it would follow the registry.

`canary.<deployment>` holds "id version percent"; `tried.<deployment>` holds the counts of that order's canary. Removing the order
ends the canary.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from threading import Thread

from node_manager.config import Release
from node_manager.manager import Manager
from node_manager.trials import mirrors
from udo_protocol.errors import UdoError
from udo_protocol.registry.canary import Measured

_LOOK_S, _BEGIN_S, _END_S = 0.05, 10.0, 20.0


def install() -> None:
    """Let node managers started from now on follow orders. Canaries get normal priority: under chaos all cores are busy, and at low
    priority they would see no frame."""
    start, mirrors._NICE = Manager.start, 0

    def following(self: Manager) -> None:
        start(self)
        Thread(target=_follow, args=(self,), name="canary-orders", daemon=True).start()

    Manager.start = following  # type: ignore[method-assign]


def _follow(manager: Manager) -> None:
    directory, done = manager.settings.home / "chaos", dict[str, str]()
    while True:
        orders = {p.name.removeprefix("canary."): p.read_text() for p in directory.glob("canary.*")}
        for name in done.keys() - orders.keys():
            manager.canaries.end(name)
            del done[name]
            (directory / f"tried.{name}").unlink(missing_ok=True)
        for name, order in orders.items():
            identity, version, percent = order.split()
            try:
                if done.get(name) != identity:
                    digest = _digest(manager, manager.deployments.find(name).operator, version)
                    manager.canaries.start(name, identity, Release(version, digest), float(percent))
                    done[name] = identity
                found = next((c.measured() for n, c in manager.canaries.running() if (n, c.update_id) == (name, identity)), None)
            except UdoError:  # the node is down for another reason: the next look tries again
                continue
            if found is not None:
                _write(directory / f"tried.{name}", json.dumps({"id": identity, **found.model_dump()}))
        time.sleep(_LOOK_S)


def _digest(manager: Manager, operator: str, version: str) -> str:
    for path in manager.settings.images.glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        if (manifest["name"], manifest["version"]) == (operator, version):
            return path.parent.name.replace("-", ":", 1)
    raise AssertionError(f"no image of {operator}@{version} on this node")


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"draft.{path.name}.{time.monotonic_ns()}")
    draft.write_text(text)
    draft.rename(path)


def try_out(directory: Path, deployment: str, version: str, percent: float, for_s: float) -> Measured | None:
    """Run a canary of `version` for `for_s` seconds; return its counts, None if it did not begin or another one is under way."""
    order, tried = directory / f"canary.{deployment}", directory / f"tried.{deployment}"
    identity = f"{time.monotonic_ns()}"
    draft = directory / f"draft.{identity}"
    draft.write_text(f"{identity} {version} {percent:g}")
    try:
        order.hardlink_to(draft)
    except FileExistsError:
        return None
    finally:
        draft.unlink()
    try:
        deadline = time.monotonic() + _BEGIN_S
        while (found := _counted(tried, identity)) is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if found is not None:
            time.sleep(for_s)
            found = _counted(tried, identity) or found
        return found
    finally:
        order.unlink()
        deadline = time.monotonic() + _END_S
        while tried.exists() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


def _counted(tried: Path, identity: str) -> Measured | None:
    try:
        found = json.loads(tried.read_text())
    except FileNotFoundError:
        return None
    return Measured(**found) if found.pop("id") == identity else None
