"""Finds the registry (asked by the driver) and the node manager (asked by each task and client).

Nothing is guessed silently: if nothing is found, the error names every place that was looked at and how to set one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from udo_protocol.certificates import Tls, found
from udo_protocol.errors import Unavailable, UsageError

NODE_SETTING, NODE_VARIABLE, NODE_SOCKET = "spark.udo.node", "UDO_NODE", Path("/run/udo/node.sock")
NODE_WAIT_SETTING, NODE_WAIT_VARIABLE = "spark.udo.nodeWaitS", "UDO_NODE_WAIT_S"
# A node manager that crashed or is replaced on purpose is back within seconds; on a host that reboots, within a minute.
NODE_WAIT_S = 60.0
REGISTRY_SETTING, REGISTRY_VARIABLE = "spark.udo.registry", "UDO_REGISTRY"
TLS_SETTING, TLS_VARIABLE = "spark.udo.tls", "UDO_TLS"


def home(env: Mapping[str, str]) -> Path:
    """Directory of `udo up`: UDO_HOME, else ~/.udo; for a user without a home, a directory that does not exist."""
    if given := env.get("UDO_HOME"):
        return Path(given)
    try:
        return Path.home() / ".udo"
    except RuntimeError:
        return NODE_SOCKET.parent / "none"


def node_address(setting: str | None, env: Mapping[str, str] | None = None) -> str:
    """Address of this machine's node manager: the setting, UDO_NODE, the socket of `udo up`, then the system's socket."""
    env = os.environ if env is None else env
    if setting:
        return setting
    if given := env.get(NODE_VARIABLE):
        return given
    looked = [f"{NODE_SETTING} (not set)", f"{NODE_VARIABLE} (not set)"]
    usual = (home(env) / "node" / "node.sock", NODE_SOCKET)
    # A node manager that is being restarted has no socket for a moment, but its directory stays.
    for there in (Path.exists, _was_there):
        for path in usual:
            if there(path):
                return str(path)
    looked += [f"{path} (absent)" for path in usual]
    raise Unavailable(
        f"no node manager found on this machine; looked at: {', '.join(looked)}. "
        f"Start one with `udo up` (or `udo node`), or set {NODE_SETTING} to the path of its socket; see docs/executors.md"
    )


def _was_there(path: Path) -> bool:
    return path.parent.is_dir()


def node_wait_s(setting: str | None, env: Mapping[str, str] | None = None, default: float = NODE_WAIT_S) -> float:
    """Seconds to wait for a node manager that is away: the setting, UDO_NODE_WAIT_S, else `default`. UsageError unless it is >= 0."""
    env = os.environ if env is None else env
    for name, given in ((NODE_WAIT_SETTING, setting), (NODE_WAIT_VARIABLE, env.get(NODE_WAIT_VARIABLE))):
        if given:
            try:
                if 0 <= (seconds := float(given)) < float("inf"):
                    return seconds
            except ValueError:
                pass
            raise UsageError(f"{name}: expected a number of seconds >= 0, got {given!r}")
    return default


def certificates(setting: str | None = None, env: Mapping[str, str] | None = None) -> Tls | None:
    """This side's certificates: the setting, UDO_TLS, those of `udo up --tls`, the host's; None if there are none. The files are read
    only when a TLS connection is made."""
    env = os.environ if env is None else env
    return found(setting or env.get(TLS_VARIABLE), home(env))


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
