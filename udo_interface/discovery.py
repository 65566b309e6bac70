"""Where the registry (asked by the driver) and the node manager (asked by each task and client) are.

Nothing is guessed silently: when no place answers, the error names every place that was looked at and how to fill one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from udo_protocol.errors import Unavailable

NODE_SETTING, NODE_VARIABLE, NODE_SOCKET = "spark.udo.node", "UDO_NODE", Path("/run/udo/node.sock")
REGISTRY_SETTING, REGISTRY_VARIABLE = "spark.udo.registry", "UDO_REGISTRY"


def home(env: Mapping[str, str]) -> Path:
    """Directory of `udo up`: UDO_HOME, else ~/.udo."""
    return Path(env.get("UDO_HOME") or Path.home() / ".udo")


def node_address(setting: str | None, env: Mapping[str, str] | None = None) -> str:
    """Address of this machine's node manager: the setting, UDO_NODE, the socket of `udo up`, then the system's socket."""
    env = os.environ if env is None else env
    if setting:
        return setting
    if given := env.get(NODE_VARIABLE):
        return given
    looked = [f"{NODE_SETTING} (not set)", f"{NODE_VARIABLE} (not set)"]
    for path in (home(env) / "node" / "node.sock", NODE_SOCKET):
        if path.exists():
            return str(path)
        looked.append(f"{path} (absent)")
    raise Unavailable(
        f"no node manager found on this machine; looked at: {', '.join(looked)}. "
        f"Start one with `udo up` (or `udo node`), or set {NODE_SETTING} to the path of its socket; see docs/executors.md"
    )


def registry_url(setting: str | None, env: Mapping[str, str] | None = None) -> str:
    """URL of the registry: the setting, UDO_REGISTRY, then the address that `udo up` wrote."""
    env = os.environ if env is None else env
    if setting:
        return setting
    if given := env.get(REGISTRY_VARIABLE):
        return given
    path = home(env) / "registry" / "address"
    try:
        if address := path.read_text("utf-8").strip():
            return address
        absent = "empty"
    except OSError:
        absent = "absent"
    raise Unavailable(
        f"no registry found; looked at: {REGISTRY_SETTING} (not set), {REGISTRY_VARIABLE} (not set), {path} ({absent}). "
        f"Start one with `udo up`, or set {REGISTRY_SETTING} to its URL"
    )
