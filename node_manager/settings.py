"""The settings of a node manager, and the places of its files. Nothing here reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from udo_protocol.certificates import Tls
from udo_protocol.errors import UsageError
from udo_protocol.limits import DEFAULT, SERVER_HANG_S
from udo_protocol.listening import parts

# sun_path holds 108 bytes with its closing zero.
_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True)
class NodeSettings:
    """One node manager. `home` is its own; two managers never share one."""

    home: Path
    node: str
    registry: str = ""
    token: str = ""
    driver: str = "process"
    warm: int = 1
    metrics_port: int = 0
    server: str = ""
    heartbeat_grace_ms: int = DEFAULT.heartbeat_grace_ms
    # A pinned version's slot without a lane for this long is retired.
    pinned_idle_s: float = 600.0
    # A keyed session counts as not in use if none of its lanes is open and its last task opened its lane longer ago than this: as a rule
    # longer than the pause between two micro-batches.
    session_idle_s: float = 30.0
    # After an update to another state version, the state from before and the input since are kept for this long, so that a version that
    # cannot read the new state can come back.
    rollback_window_s: float = 600.0
    # An instance asked to leave finishes the frame in hand within this time, or is killed.
    stop_grace_s: float = 10.0
    # Give up state writes behind unreadable bytes of the state server's file (node_manager.servers.append_only).
    cut_state: bool = False
    # The metrics show names and loads of deployments to everybody who can reach them, so by default they are for this host only.
    metrics_host: str = "127.0.0.1"
    # Process driver: `auto`, a sandbox where the host allows one, or `none`.
    sandbox: str = "auto"
    # Endpoints (host:port) that operators may reach if they ask for them (`network` in the manifest).
    allow_network: tuple[str, ...] = ()
    # Docker driver: the image that Python operators run in; '' for udo-runtime-python:cpXY of the local daemon, else the registry's.
    runtime_image: str = ""
    # Docker driver: the image for commands that are not statically linked; '' for the one of Python operators.
    command_image: str = ""
    # Folder of certificates (udo_protocol/certificates.py), for the registry and for `listen`.
    tls: Path | None = None
    # HOST:PORT for other hosts: the node manager there, the queue server one port above (0: any two); '' for this host only.
    listen: str = ""

    # Seconds between decisions about a deployment's number of slots, and the window of rates: ten publications of an instance's counters.
    decide_s: float = 10.0
    # A file of policies (elasticity/policies.py) that deployments may name beside those of the package; its folder is imported from.
    policies: Path | None = None

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
