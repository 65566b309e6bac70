"""The interface of drivers. A driver runs instances, and knows nothing of slots, queues or operators.

`start` returns a handle that survives as JSON, so that a restarted manager recovers the instance. A death is reported once, to the callback
given at start or recovery. Optional abilities are declared in `capabilities`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from node_manager.drivers import users
from udo_protocol import signals
from udo_protocol.formats.manifest import Manifest

# The tag of the node manager's own interpreter, as in names of wheels.
OWN_PYTHON_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


@dataclass(frozen=True)
class Allowance:
    """The limits of one instance; 0 = no bound. Memory is resident memory, of the instance and its descendants.

    `cpus`: processor time a second, in cores. `pids`: processes and threads at once. Both for drivers that can bound them. `network`:
    endpoints that it may reach, for drivers that can open single ones.
    """

    memory_bytes: int = 0
    open_files: int = 1024
    cpus: float = 0.0
    pids: int = 0
    network: tuple[str, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> Allowance:
        """The allowance that a manifest declares."""
        limits = manifest.limits
        return cls(limits.memory_mb << 20, limits.open_files, limits.cpus, limits.pids, manifest.network)


@dataclass(frozen=True)
class Spec:
    """An instance to start; `directory`, which exists, is its own and its working directory.

    `argv`: () runs the image's own command. `image`: a reference with a digest, for drivers that run images; '': their runtime base.
    """

    instance: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    directory: Path
    allowance: Allowance = Allowance()
    image: str = ""
    # It runs no operator itself, but starts one by `operator_box`: it is to be outside of the sandbox.
    engine: bool = False


@dataclass(frozen=True)
class Inside:
    """Paths as an instance sees them, which differ from those outside if the driver gives it a view of its own.

    `runtime`: the runtime base in the driver's image; '': the node manager's Python and runtime. `images`: it sees the node's images;
    otherwise its operator is put into its directory. `user`: the name of its user, as it sees it.
    """

    directory: str
    sockets: str
    home: str
    runtime: str = ""
    images: bool = False
    user: str = users.NAME


@dataclass(frozen=True)
class Handle:
    """A driver's data for finding the instance again; `data` is the driver's own and JSON."""

    driver: str
    instance: str
    directory: str
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Exit:
    """How an instance ended. `code` < 0: a signal; None: not known, as it was not a child. `reason`: why the node manager ended it."""

    code: int | None
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        if self.code is None:
            return "the process has ended; its exit status is unknown, since a former node manager started it"
        if self.code < 0:
            return f"killed by signal {signals.named(-self.code)}"
        return f"exit status {self.code}"


@dataclass(frozen=True)
class Inspection:
    """One look at an instance. `cpu_percent`: of one core, since the sample before; `cpu_s`: since its start."""

    running: bool
    pid: int = 0
    rss_bytes: int = 0
    cpu_percent: float = 0.0
    cpu_s: float = 0.0
    exit: Exit | None = None


@dataclass(frozen=True)
class Capabilities:
    """The limits and the isolation that the driver provides: what it does not claim, it does not do (docs/sandbox.md)."""

    # An instance that exceeds one of these is killed, or its calls fail.
    memory_limit: bool = False
    open_files_limit: bool = False
    process_limit: bool = False
    # All that it can write anywhere is bounded.
    disk_limit: bool = False
    # It reaches no network, not even this machine's.
    isolates_network: bool = False
    # It reaches the endpoints that its manifest names and the node allows, and no others.
    opens_endpoints: bool = False
    # It reaches no Unix sockets of this machine but the two servers'.
    isolates_sockets: bool = False
    # It sees no files but the system's programs, its runtime and its own.
    isolates_reads: bool = False
    # It changes no files but in a scratch space of its own.
    isolates_writes: bool = False
    # It sees and signals no processes but its own.
    isolates_processes: bool = False
    # On the two servers it can access its slot's keys only; this requires that it cannot read other users' passwords.
    isolates_keys: bool = False
    # It runs as a user that owns nothing on this machine.
    isolates_users: bool = False
    # The driver pulls and runs whole container images, whatever is in them.
    runs_images: bool = False
    # How this is achieved, or why it is not.
    remark: str = ""


OnExit = Callable[[Exit], None]


class Driver(Protocol):
    """Runs instances. All methods may be called from any thread; every wait is bounded."""

    name: str
    # The Python that runs operators packed by `udo push`: cp311.
    python_tag: str

    def inside(self, directory: Path, sockets: Path, *, engine: bool = False) -> Inside:
        """The paths at which an instance sees this private directory and the servers' sockets. `engine`: as in Spec."""

    def capabilities(self) -> Capabilities:
        """The limits and the isolation that this driver provides."""

    def operator_box(
        self, directory: Path, cwd: Path, allowance: Allowance, *, python: bool = False, bare: bool = False, nice: int = 0
    ) -> list[str]:
        """The command that an engine puts in front of an operator's program. The program gets nothing but `directory` (in the instance's
        own, as the engine sees it), is started in `cwd` there, and with `python` sees the Python runtime. `bare`: it needs nothing of the
        system either. `nice`: it yields the processor to others. The program ends when its engine ends."""

    def start(self, spec: Spec, on_exit: OnExit) -> Handle:
        """Start it; OperatorError if it cannot be started. `on_exit` is called once, from a thread of the driver."""

    def recover(self, handle: Handle, allowance: Allowance, on_exit: OnExit) -> bool:
        """Take charge of an instance started by a former manager; False if it does not run any more."""

    def sweep(self, known: Collection[str]) -> None:
        """Remove everything that a former manager of this home left behind, except for these instances."""

    def forget(self, image: str) -> None:
        """Note that the image is not needed again soon: the driver may drop whatever it keeps for it."""

    def close(self) -> None:
        """Release the driver's own resources; instances go on."""

    def limit(self, handle: Handle, allowance: Allowance) -> None:
        """Change the limits of a running instance."""

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Ask it to end, force it after `grace_s`; return when it is gone, at once if it already is."""

    def kill(self, handle: Handle, reason: str) -> None:
        """End it now; its Exit carries the reason."""

    def inspect(self, handle: Handle) -> Inspection:
        """Its state now."""
