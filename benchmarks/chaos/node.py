"""A real node manager without a registry, under chaos: deployments from its image cache, and the faults that it can suffer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.chaos import canary_orders, controlled, moves
from benchmarks.chaos.canaries import Tried
from benchmarks.chaos.changes import kept_everywhere
from benchmarks.chaos.inside import LACKS
from benchmarks.chaos.kinds import Kind
from benchmarks.chaos.stops import INSTANCE, MANAGER
from benchmarks.harness.bringup import OPERATORS, wait_until
from node_manager.servers import access
from node_manager.servers.binaries import Role
from udo_protocol.errors import Conflict, UdoError
from udo_protocol.formats import manifest as manifests
from udo_protocol.limits import DEFAULT
from udo_protocol.node.api import connect_node
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot import SlotStats, slot_stats
from udo_protocol.registry.canary import Measured

_START_S, _STOP_S = 60.0, 40.0
_FIRE_S, _TAKEN_S = 3.0, 1.0


@dataclass(frozen=True)
class NodeSetup:
    """A node under chaos: a deployment of each of the `kinds`, with `slots` slots; with several, key groups move and their number changes.

    auto: the node's controllers move key groups and change the number of slots as well (controlled.py). broken: the rule that it lacks.
    scale: a factor for the times after which it gives up hanging processes, and for the lengths of stops. module: the manager to run.
    """

    kinds: Sequence[Kind]
    slots: int = 1
    auto: bool = False
    broken: str = ""
    scale: float = 1.0
    module: str = "benchmarks.chaos.manager"


class ChaosNode:
    """One node manager and what it runs; `deployed`: by name. Methods may be called from any thread."""

    def __init__(self, top: Path, setup: NodeSetup) -> None:
        self.home, self._top, self.setup = top / "h", top, setup
        self.api = connect_node(self.home / "node.sock")
        self.process: subprocess.Popen[bytes] | None = None
        self.chaos = self.home / "chaos"
        self.chaos.mkdir(parents=True)
        self.deployed: dict[str, Kind] = {}
        self._digests: dict[tuple[str, str], str] = {}  # by operator and version
        if setup.broken:
            assert setup.broken in LACKS, f"expected one of {', '.join(LACKS)}, got {setup.broken!r}"
            (self.chaos / "broken").write_text(setup.broken)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the manager, or start it again, and wait until it serves."""
        with (self._top / "manager.log").open("ab") as log:
            argv = [sys.executable, "-m", self.setup.module, "--home", str(self.home), "--node", "n1", "--warm", "2"]
            argv += ["--heartbeat-grace-ms", str(round(DEFAULT.heartbeat_grace_ms * self.setup.scale))]
            argv += ["--session-idle-s", "0"]  # the state of a query that has just stopped may be changed
            argv += ["--sandbox", "none"]  # instances get orders as files, and report their own pids
            argv += controlled.ARGUMENTS if self.setup.auto else ()
            # In a session of its own: Ctrl-C in the terminal must not end the manager under queries that still run.
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        wait_until(self.api.healthy, _START_S, f"the node manager to serve; its log: {self._top}/manager.log")

    def stop(self) -> None:
        """Stop the manager; kill the processes that a killed manager left behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_S)
        self.api.close()
        for p in psutil.process_iter(["cmdline", "cwd"]):
            words = [*(p.info["cmdline"] or []), p.info["cwd"] or ""]
            if p.pid != os.getpid() and any(str(self.home) in w for w in words):
                with contextlib.suppress(psutil.Error):
                    p.kill()

    def deploy(self, name: str, kind: Kind) -> None:
        """Deploy the operator of this kind under this name, with the images of all its versions on the node."""
        self.deployed[name] = kind
        for version in kind.versions:
            if (kind.operator, version) not in self._digests:
                self._digests[kind.operator, version] = self._put_image(kind, version)
        config = controlled.CONFIG if self.setup.auto else "{}"
        self.api.deploy(name, kind.operator, "1", self._digests[kind.operator, "1"], config)
        if self.setup.slots > 1:
            self.api.scale(name, self.setup.slots)

    def _put_image(self, kind: Kind, version: str) -> str:
        source = OPERATORS / kind.operator
        manifest = manifests.load(source).model_copy(update={"version": version, **kind.versions[version]})
        digest = "sha256:" + hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()
        directory = self.home / "images" / digest.replace(":", "-")
        (directory / "deps").mkdir(parents=True)
        shutil.copytree(source, directory / "code", ignore=shutil.ignore_patterns("__pycache__"))
        if kind.program is not None and manifest.command:
            (directory / "code" / "bin").mkdir()
            shutil.copy(kind.program, directory / "code" / "bin")
        (directory / "manifest.json").write_text(manifest.model_dump_json())
        return digest

    def manager_log(self) -> str:
        """Return the manager's log."""
        return (self._top / "manager.log").read_text("utf-8", "replace")

    # -- looking -----------------------------------------------------------------------------------------------------

    def owner_pid(self, name: str) -> int:
        """Return the pid of the instance that owns the deployment's slot, or a random one of its slots; 0 while there is none."""
        return random.choice(self._owner_pids(name) or [0])

    def _owner_pids(self, name: str) -> list[int]:
        """The pid of each slot's owner, 0 where there is none."""
        return [int(s.pid) for s in self.api.status().slots if s.deployment == name and not s.pinned]

    def server_pid(self, role: str) -> int:
        """Return the pid of the queue or the state server."""
        return next(int(s.pid) for s in self.api.status().servers if s.role == role)

    def pids(self, part: str, name: str) -> list[int]:
        """Return the processes of a part of the node (benchmarks.chaos.stops)."""
        if part == MANAGER:
            return [self.process.pid] if self.process else []
        pid = self.owner_pid(name) if part == INSTANCE else self.server_pid(part.split()[0])
        return [pid] if pid else []

    def well(self, name: str) -> bool:
        """Whether the deployment is served and no server of the node is in trouble."""
        try:
            status = self.api.status()
        except UdoError:
            return False
        return all(self._owner_pids(name) or [0]) and not any(s.trouble for s in status.servers)

    def connect(self, role: Role) -> Connection:
        """Open a connection to the queue or the state server."""
        return access.connect(self.home, role)

    def stats(self, name: str) -> SlotStats:
        """Return the counters of the deployment's slot 0."""
        with contextlib.closing(self.connect("queue")) as queue:
            return slot_stats(queue, SlotKeys(name, 0))

    # -- versions: the methods of benchmarks.chaos.changes and canaries ------------------------------------------------------

    def version(self, name: str) -> str:
        """Return the version that serves the deployment."""
        return next(s.version for s in self.api.status().slots if s.deployment == name and not s.pinned)

    def rolls_dice(self, name: str) -> bool:
        """Whether the deployment's answers differ from one attempt to another."""
        return self.deployed[name].chained

    def kept(self, name: str) -> str | None:
        """Return the version whose state is kept for a rollback; '' for none, None if state is never kept."""
        kind = self.deployed[name]
        if kind.chained:
            return None
        with contextlib.closing(self.connect("state")) as state, contextlib.closing(self.connect("queue")) as queue:
            digest = kept_everywhere(state, queue, name, self.slots(name))
        known = {digest: version for (operator, version), digest in self._digests.items() if operator == kind.operator}
        return known[digest] if digest else ""

    def change(self, name: str, version: str, *, back: bool) -> str:
        """Update to this version, which may be a former one; return '' if it took place, else why not."""
        last = list(self.api.update(name, version, self._digests[self.deployed[name].operator, version]))[-1]
        return "" if last.phase == "done" else last.detail

    def try_out(self, name: str, version: str, percent: float, for_s: float, ending: str) -> Tried | str:
        """Run a canary for `for_s` seconds. Without a registry nobody decides on promotion."""
        measured = canary_orders.try_out(self.chaos, name, version, percent, for_s)
        return "it did not begin" if measured is None else Tried(measured)

    def compare(self, name: str, version: str, for_s: float) -> Measured:
        """Diff this version for `for_s` seconds; a move of key groups ends the diff early."""
        report: dict[str, float] = {}
        with contextlib.suppress(Conflict):
            for event in self.api.diff(name, version, self._digests[self.deployed[name].operator, version], for_s=for_s, examples=0):
                report = json.loads(event.report_json)
        return Measured(events=report.get("events", 0), compared=report.get("frames", 0), different=report.get("different", 0))

    def record(self, name: str, for_s: float) -> bool:
        """Record the first slot; return whether the recording came to its end."""
        return [part.WhichOneof("part") for part in self.api.record(name, for_s, slot=0)][-1:] == ["end"]

    # -- slots: the methods of benchmarks.chaos.moves ---------------------------------------------------------------------

    def slots(self, name: str) -> list[int]:
        """Return the numbers of the deployment's slots."""
        return moves.mapped(self.api, name)

    def move(self, name: str, groups: Sequence[int], to: int, strategy: str) -> None:
        """Move these key groups to that slot."""
        moves.move(self.api, name, groups, to, strategy)

    def scale(self, name: str, count: int) -> None:
        """Scale the deployment to `count` slots."""
        self.api.scale(name, count)

    # -- faults: each returns whether it took place ----------------------------------------------------------------------

    def kill_instance(self, name: str) -> bool:
        """kill -9 of the owner, at whatever point it is."""
        return _signal(self.owner_pid(name), signal.SIGKILL)

    def kill_operator(self, name: str) -> bool:
        """kill -9 of the owner's operator, if it has a process of its own."""
        with contextlib.suppress(psutil.Error):
            return any([_signal(p.pid, signal.SIGKILL) for p in psutil.Process(self.owner_pid(name)).children(recursive=True)])
        return False

    def arm(self, name: str, point: str, action: str) -> int:
        """Let an instance kill or stop itself at a point of its loop; return its pid, or 0 if none reached the point in time."""
        armed = self.chaos / f"armed.{name}"
        draft = self.chaos / f"draft.{name}.{time.monotonic_ns()}"
        draft.write_text(f"{point} {action}")
        try:
            armed.hardlink_to(draft)
        except FileExistsError:  # another order waits
            draft.unlink()
            return 0
        draft.unlink()  # a rename onto another name of the same file would do nothing
        if not (pid := self._fired(name, _FIRE_S)):
            try:
                armed.rename(draft)  # withdrawn atomically: from here on no instance can take it
            except FileNotFoundError:  # an instance has taken it; it fires at once
                pid = self._fired(name, _TAKEN_S)
        draft.unlink(missing_ok=True)
        return pid

    def _fired(self, name: str, within_s: float) -> int:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for fired in self.chaos.glob(f"fired.{name}.*"):
                with contextlib.suppress(FileNotFoundError):  # another thread took it
                    fired.unlink()
                    return int(fired.suffix[1:])
            time.sleep(0.005)
        return 0

    def resume(self, pid: int) -> None:
        """Resume an instance that stopped itself."""
        _signal(pid, signal.SIGCONT)

    def kill_manager(self) -> bool:
        """kill -9 of the node manager; another one adopts what it left."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        self.start()
        return True

    def kill_server(self, role: str) -> bool:
        """kill -9 of a server; the manager starts another, the state server from its file."""
        return _signal(self.server_pid(role), signal.SIGKILL)


def _signal(pid: int, signum: int) -> bool:
    try:
        if pid:
            os.kill(pid, signum)
        return bool(pid)
    except ProcessLookupError:
        return False


@contextmanager
def chaos_node(setup: NodeSetup) -> Iterator[ChaosNode]:
    """Run a node with its deployments, and remove it at the end, whatever happened."""
    top = Path(tempfile.mkdtemp(prefix="udo-"))
    node = ChaosNode(top, setup)
    try:
        node.start()
        for i, kind in enumerate(setup.kinds):
            node.deploy(f"d{i}", kind)
        yield node
    finally:
        with contextlib.suppress(UdoError):
            node.stop()
        shutil.rmtree(top, ignore_errors=True)
