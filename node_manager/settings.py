"""The settings of a node manager, and the places of its files. Nothing here reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from udo_protocol.certificates import Tls
from udo_protocol.errors import UsageError
from udo_protocol.limits import DEFAULT, SERVER_HANG_S
from udo_protocol.listening import parts

# sun_path holds 108 bytes with its closing zero.
_SOCKET_PATH_BYTES = 107


def _absolute(text: str) -> Path:
    return Path(text).absolute()


def _argument(default: Any, text: str, **settings: Any) -> Any:
    """A field that is an argument of `python -m node_manager`, with this help; `settings` are those of argparse."""
    return field(default=default, metadata={"help": text, **settings})


@dataclass(frozen=True)
class NodeSettings:
    """One node manager. `home` is its own; two managers never share one. Fields with a help are its arguments, in this order."""

    home: Path = field(metadata={"help": "directory of this node manager: sockets, instances, images", "type": _absolute, "required": True})
    node: str = field(metadata={"help": "name of this node (default: the host's)"})
    registry: str = _argument("", "URL of the registry, or URL,URL of its processes; without one, only what is deployed here")
    token: str = _argument("", "file that holds the registry's token", metavar="TOKEN_FILE")
    # Folder of certificates (udo_protocol/certificates.py).
    tls: Path | None = _argument(None, "folder with ca.crt, tls.crt and tls.key: for an https registry, and for --listen", type=_absolute)
    listen: str = _argument(
        "",
        "address on which other hosts reach this node by TLS; its queue server uses the next port. Port 0: any two free ports, which "
        "later starts use again (default: other hosts cannot connect)",
        metavar="HOST:PORT",
    )
    driver: str = _argument("process", "")
    sandbox: str = _argument("auto", "of the process driver (default: auto, where the host allows one)", choices=["auto", "none"])
    warm: int = _argument(1, "warm instances kept ready, and engines if one was needed (default: 1)", type=int)
    metrics_port: int = _argument(0, "port of the Prometheus endpoint (default: any)", type=int)
    # Writes behind unreadable bytes in the state server's file are given up (node_manager.servers.append_only).
    cut_state: bool = _argument(False, "discard state written after unreadable bytes; a copy is kept", action="store_true")
    # The metrics show names and loads of deployments to everybody who can reach them, so by default they are for this host only.
    metrics_host: str = _argument("127.0.0.1", "where that listens; with --tls also 0.0.0.0, all of the host (default: %(default)s)")
    server: str = _argument("", "path of a valkey-server or redis-server (default: the bundled one)")
    heartbeat_grace_ms: int = _argument(
        DEFAULT.heartbeat_grace_ms, "instances and servers stop after this time without a node manager (default: %(default)s)", type=int
    )
    pinned_idle_s: float = _argument(
        600.0, "a pinned version that is not called is retired after this time (default: %(default)g)", type=float
    )
    # A session with an open lane is in use, too. As a rule this is longer than the pause between two micro-batches.
    session_idle_s: float = _argument(
        30.0, "a keyed session counts as in use for this time after its last event (default: %(default)g)", type=float
    )
    # The input since then is kept with that state, so that a version that cannot read the new state can come back.
    rollback_window_s: float = _argument(
        600.0, "how long the state from before a change of its format is kept for a rollback (default: %(default)g)", type=float
    )
    # The window of rates: ten publications of an instance's counters.
    decide_s: float = _argument(
        10.0,
        "seconds between two decisions about the number of slots, and of the rates they go by (default: %(default)g)",
        type=float,
    )
    runtime_image: str = _argument("", "image in which Python operators run, with --driver docker (default: udo-runtime-python:cpXY)")
    command_image: str = _argument(
        "",
        "image in which commands run that are not statically linked, with --driver docker (default: that of Python operators)",
        metavar="IMAGE",
    )
    allow_network: tuple[str, ...] = _argument(
        (), "operators that request this endpoint may connect to it; repeatable", action="append", metavar="HOST:PORT"
    )
    # A file of policies (elasticity/policies.py) beside those of the package; modules in its folder can be imported.
    policies: Path | None = _argument(
        None,
        "TOML file of balancing policies that deployments may name: [balance] and mine = 'my_module:mine', my_module.py beside it",
        type=_absolute,
        metavar="FILE",
    )
    # An instance asked to leave finishes the frame in hand within this time, or is killed.
    stop_grace_s: float = 10.0

    @property
    def certificates(self) -> Tls | None:
        """The certificates in the folder, if there is one."""
        return Tls.folder(self.tls) if self.tls else None

    @property
    def queue_listen(self) -> str:
        """HOST:PORT of the queue server for other hosts: one port above the node manager's; '' without `listen`. UsageError without
        certificates: other hosts are served by TLS only."""
        if not self.listen:
            return ""
        if self.tls is None:
            raise UsageError(
                f"--listen {self.listen} needs certificates, --tls FOLDER: other hosts are answered by TLS only, where both sides show "
                "one (udo certs makes them for development); see docs/executors.md"
            )
        _, port = parts(self.listen)
        return f"{self.listen.rpartition(':')[0]}:{port + 1 if port else 0}"

    @property
    def server_hang_s(self) -> float:
        """A server that has not answered for this long is replaced: half the grace, so that the watchdog sees the new one in time."""
        return SERVER_HANG_S * self.heartbeat_grace_ms / DEFAULT.heartbeat_grace_ms

    @property
    def socket(self) -> Path:
        """The socket of the gRPC service."""
        return self.home / "node.sock"

    @property
    def sockets(self) -> Path:
        """The directory of both servers' sockets, and of nothing else: a container sees it, so that a restarted server is reachable."""
        return self.home / "run"

    @property
    def instances(self) -> Path:
        """Private directories of instances."""
        return self.home / "instances"

    @property
    def handles(self) -> Path:
        """Records by which a restarted manager finds its instances."""
        return self.home / "handles"

    @property
    def logs(self) -> Path:
        """Logs of instances that are gone."""
        return self.home / "logs"

    @property
    def images(self) -> Path:
        """Unpacked operator images by digest."""
        return self.home / "images"

    @property
    def runtime_base(self) -> Path:
        """Directory of links: all that a warm instance can import besides the standard library."""
        return self.home / "runtime"

    @property
    def usage(self) -> Path:
        """The usage of deployments so far."""
        return self.home / "usage.json"

    @property
    def journals(self) -> Path:
        """Journals of decisions about deployments' slots."""
        return self.home / "journals"

    @property
    def wanted(self) -> Path:
        """The wanted state, so that a restart needs no registry. Holds secrets: mode 600."""
        return self.home / "wanted.json"

    def prepare(self) -> None:
        """Make the directories, for this user only; UsageError if a socket's path would be too long."""
        # The longest paths: a server's socket, and that of an operator that is a command (udo_runtime.child.process).
        longest = max((str(p.absolute()) for p in (self.sockets / "queue.sock", self.instances / "01234567/op/.s")), key=len)
        if len(os.fsencode(longest)) > _SOCKET_PATH_BYTES:
            raise UsageError(f"{longest} is too long for a Unix socket ({_SOCKET_PATH_BYTES} bytes): choose a shorter --home")
        for path in (self.home, self.sockets, self.instances, self.handles, self.logs, self.images, self.home / "servers"):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The closed home keeps other users from the sockets; in a container, which sees this directory alone, another user reaches them.
        self.home.chmod(0o700)
        self.sockets.chmod(0o755)
