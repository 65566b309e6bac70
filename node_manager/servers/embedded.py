"""The two servers of a node: started once, in sessions of their own, adopted by the next manager, replaced when they are lost.

A server is lost when it has died, when its socket is gone, or when it has not answered for too long. Its remains are ended before another
one starts. Without the manager's heartbeat for the grace period a watchdog stops both (node_manager/servers/watchdog.py).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock

import redis
import structlog

from node_manager import proc
from node_manager.files import read_json, write_json
from node_manager.servers import append_only, state_format, watchdog
from node_manager.servers.access import Users
from node_manager.servers.binaries import Role, ServerBinary, find_server, server_args
from node_manager.servers.client import administered
from node_manager.settings import NodeSettings
from udo_protocol import supervised
from udo_protocol.clock import ObservedTime
from udo_protocol.errors import ServerLost, Unavailable
from udo_protocol.files import lock_within
from udo_protocol.limits import SERVER_WAIT_S
from udo_protocol.queue.connection import Connection, Login, ReplyError, ServerLoading
from udo_protocol.queue.keys import HEARTBEAT, SlotKeys
from udo_protocol.queue.slot import lua_source

_log = structlog.get_logger()
ROLES: tuple[Role, Role] = ("queue", "state")
_START_TIMEOUT_S = 15.0
# A server reads its file at some hundred MB a second; one that is not done by then never will be.
_LOAD_TIMEOUT_S = 600.0
# The record of the watchdog's process in a home: homes of earlier releases have it under this name.
_WATCHDOG = "warden"
_RELAUNCH_S = 5.0
# How often a server is probed, and the longest wait for one answer.
_PROBE_EVERY_S, _PROBE_MOST_S = 2.0, 5.0
# A status request does not wait for a server that is currently slow.
_GLANCE_S = 2.0
# A server that has just been ended releases its files within moments.
_FREE_S = 5.0


@dataclass(frozen=True)
class RunningServer:
    """A running server."""

    role: Role
    socket: str
    process: proc.ProcessId
    run_id: str
    version: str


def _end(log: Path) -> str:
    """The last lines of a server's log."""
    return log.read_text("utf-8", "replace")[-2000:].rstrip()


class Servers:
    """Both servers. `on_restart(role)` is called, from a thread of its own, after a server died and a new one runs."""

    def __init__(self, settings: NodeSettings, on_restart: Callable[[Role], None]) -> None:
        self._settings, self._on_restart = settings, on_restart
        self.users = Users(settings.home)
        self._binary: ServerBinary | None = None
        self._running: dict[Role, RunningServer] = {}
        self._lock = Lock()
        self._trouble: dict[Role, str] = {}
        self._launched: set[proc.ProcessId] = set()
        # The hour whose password the user of a slot's lanes has; every server starts with that user.
        self._with_lanes: dict[SlotKeys, int] = {}
        self._stopping = Event()
        self._hang_s = settings.server_hang_s
        self._probe_s, self._probe_every_s = min(_PROBE_MOST_S, self._hang_s / 4), min(_PROBE_EVERY_S, self._hang_s / 4)

    def start(self) -> set[Role]:
        """Adopt or start both; return the roles that had to be started."""
        adopted = {role: server for role in ROLES if (server := self._adopt(role))}
        for role in ROLES:
            self._put_in_service(adopted.get(role) or self._launch(role))
        self.beat()
        self._start_watchdog()
        for role in ROLES:
            supervised.keep("server", lambda role=role: self._look_after(role), self._stopping, role)  # type: ignore[misc]
        return set(ROLES) - set(adopted)

    def socket(self, role: Role) -> Path:
        """The path of the server's socket."""
        return self._settings.sockets.absolute() / f"{role}.sock"

    def running(self) -> list[RunningServer]:
        """Both servers, as they are now."""
        with self._lock:
            return [self._running[role] for role in ROLES if role in self._running]

    def run_id(self, role: Role) -> str:
        """The id that the running server gave itself when it started."""
        with self._lock:
            return self._running[role].run_id

    def trouble(self, role: Role) -> str:
        """Why the server does not serve now, in a few words; "" while it does."""
        return self._trouble.get(role, "")

    def connect(self, role: Role, timeout_s: float = SERVER_WAIT_S) -> Connection:
        """A fresh connection; ServerLost while the server is away."""
        return Connection(str(self.socket(role)), timeout_s=timeout_s, login=self.users.manager)

    def glance(self, role: Role) -> Connection:
        """As `connect`, for a status request: ServerLost soon, at once while the server is known not to answer."""
        if trouble := self.trouble(role):
            raise ServerLost(f"the {role} server {trouble}")
        return self.connect(role, _GLANCE_S)

    def _administered(self, role: Role, timeout_s: float = SERVER_WAIT_S) -> AbstractContextManager[redis.Redis]:
        return administered(self.socket(role), self.users.manager, timeout_s)

    def admit(self, role: Role, name: str, rules: Sequence[str]) -> str:
        """Admit the user of an instance; return its password."""
        with self._administered(role) as client:
            return self.users.new(role, client.execute_command, name, rules)

    def widen(self, role: Role, name: str, rules: Sequence[str]) -> None:
        """Give an instance's user these rights."""
        with self._administered(role) as client:
            self.users.widen(role, client.execute_command, name, rules)

    def lanes(self, keys: SlotKeys) -> Login:
        """The login of this slot's lanes; ServerLost while the queue server is away."""
        if (hour := self.users.hour()) != self._with_lanes.get(keys):
            with self._administered("queue") as client:
                self.users.admit_lanes(client.execute_command, keys, hour)
            self._with_lanes[keys] = hour
        return self.users.lanes(keys, hour)

    def dismiss_lanes(self, keys: SlotKeys) -> None:
        """Remove the user of a removed slot's lanes."""
        self._with_lanes.pop(keys, None)
        self.dismiss(self.users.lanes(keys).user)

    def dismiss(self, name: str) -> None:
        """Remove the users of an instance that is gone, and close connections that it left open."""
        for role in ROLES:
            if self.users.forget(role, name):
                with contextlib.suppress(ServerLost, ReplyError), self._administered(role) as client:
                    client.acl_deluser(name)

    def dismiss_others(self, known: Iterable[str]) -> None:
        """Revoke the users of all other instances."""
        for role in ROLES:
            for name in self.users.others(role, known):
                self.dismiss(name)

    def remark(self, role: Role) -> str:
        """A remark about its data for the operator of the platform; empty as a rule."""
        cut = append_only.last_cut(self._settings.home.absolute() / "servers" / role) if role == "state" else None
        return str(cut) if cut else ""

    def used_bytes(self, role: Role) -> int:
        """Memory the server uses; 0 while it is unavailable."""
        if not self.trouble(role):
            with contextlib.suppress(ServerLost), self._administered(role, _GLANCE_S) as client:
                return int(client.info("memory")["used_memory"])
        return 0

    def beat(self) -> None:
        """Renew the heartbeat, if the queue server answers."""
        with contextlib.suppress(ServerLost), self._administered("queue", self._probe_s) as client:
            self._renew(client)

    def _renew(self, client: redis.Redis) -> None:
        client.set(HEARTBEAT, os.getpid(), px=self._settings.heartbeat_grace_ms)

    def stop(self) -> None:
        """Stop the watchdog and both servers and remove their sockets."""
        self._stopping.set()
        with self._lock:  # from here on nothing is started or recorded
            running = self._watchdog()
            processes = {s.process for s in self._running.values()} | self._launched
        if running is not None:
            proc.terminate(running, 2)
        for process in processes:
            proc.terminate(process, 5)
        for role in ROLES:
            self.socket(role).unlink(missing_ok=True)
        self._record(_WATCHDOG).unlink(missing_ok=True)

    def _record(self, name: str) -> Path:
        return self._settings.home / "servers" / f"{name}.json"

    def _describe(self, role: Role) -> RunningServer:
        with self._administered(role, self._probe_s) as client:
            info = client.info("server")
            if role == "state":  # before anything else uses it
                with contextlib.closing(self.connect(role, _LOAD_TIMEOUT_S)) as state:
                    state_format.bring_up(state)
            client.function_load(lua_source(), replace=True)
        process = proc.identify(int(info["process_id"]))
        if process is None:
            raise ServerLost(f"the {role} server on {self.socket(role)} runs outside of this process namespace")
        version = f"valkey {info['valkey_version']}" if "valkey_version" in info else f"redis {info['redis_version']}"
        return RunningServer(role, str(self.socket(role)), process, info["run_id"], version)

    def _adopt(self, role: Role) -> RunningServer | None:
        """Adopt the server that a former manager left, once it answers; None if there is none, or it cannot be reached any more."""
        record = read_json(self._record(role)) or {}
        process = proc.ProcessId(**record["process"]) if "process" in record else None
        waited_s, observed = 0.0, ObservedTime(2 * self._probe_s)
        patience_s = self._hang_s / 2  # for each server; the watchdog waits for the sum
        while True:
            try:
                server = self._describe(role)
                with self._administered(role) as client:
                    self.users.adopt(role, client.execute_command)
                _log.info("server adopted", role=role, pid=server.process.pid)
                return server
            except (ServerLost, ReplyError) as e:
                waited_s += observed.lap()
                bound_s = _LOAD_TIMEOUT_S if isinstance(e, ServerLoading) else patience_s
                lives = process is not None and proc.alive(process)
                if not lives or not self.socket(role).exists() or waited_s > bound_s:
                    self._end(role, process if lives else None, f"it cannot be adopted: {e}")
                    return None
            time.sleep(0.05)

    def _end(self, role: Role, process: proc.ProcessId | None, why: str) -> None:
        """End whatever is left of a lost server: no two processes may hold one append-only file."""
        if process is not None:
            _log.error("server lost; starting a new one", role=role, pid=process.pid, why=why)
            proc.terminate(process, 0)  # its confirmed writes are on disk
        self.socket(role).unlink(missing_ok=True)

    def _launch(self, role: Role) -> RunningServer:
        if self._binary is None:
            self._binary, notices = find_server(self._settings.server or None)
            for notice in notices:
                _log.warning("server passed over", why=notice)
        directory = self._settings.home.absolute() / "servers" / role
        log = directory / "log"
        with self._lock:
            if self._stopping.is_set():
                raise Unavailable(f"the {role} server is not started: the node manager stops")
            directory.mkdir(exist_ok=True, mode=0o700)
            with log.open("wb") as out, _claimed(directory) as claim:
                child = subprocess.Popen(
                    server_args(self._binary, role, directory, self.socket(role), self.users.acl_file(role)),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    pass_fds=(claim,),
                )
            with proc.ended_unless(child):
                if process := proc.identify(child.pid):
                    self._launched = {p for p in self._launched if proc.alive(p)} | {process}
                    write_json(self._record(role), {"role": role, "process": asdict(process)})
        with proc.ended_unless(child):  # the next attempt needs its files
            server = self._started(role, child, log)
        if server is None:
            return self._mended(role, child.returncode, log)
        if role == "queue":
            self.beat()  # before anything that takes long on a busy machine
        _log.info("server started", role=role, pid=child.pid, version=server.version)
        supervised.once("reap", child.wait, role)
        return server

    def _started(self, role: Role, child: subprocess.Popen[bytes], log: Path) -> RunningServer | None:
        """Wait until the server answers; None if it has ended instead."""
        began = time.monotonic()
        while True:
            try:
                return self._describe(role)
            except (ServerLost, ReplyError) as e:  # not listening yet, or still loading its append-only file
                if child.poll() is not None:
                    return None
                bound_s = _LOAD_TIMEOUT_S if isinstance(e, ServerLoading) else _START_TIMEOUT_S
                if time.monotonic() - began > bound_s:
                    raise Unavailable(f"the {role} server did not answer within {bound_s:g} s: {e}; its log:\n{_end(log)}") from e
            time.sleep(0.005)

    def _mended(self, role: Role, status: int, log: Path) -> RunningServer:
        """Start a server again that has ended instead of starting, if the reason was unreadable writes, which are cut off."""
        if role == "state" and (cut := append_only.mend(log.parent, force=self._settings.cut_state)):
            _log.error("the state server's file was cut", what=str(cut))
            return self._launch(role)
        remedy = ""
        if role == "state":
            remedy = (
                f"Its writes since the last snapshot are readable, so the fault is elsewhere, possibly in the snapshot. Restore "
                f"{log.parent}/appendonlydir from a backup; or move it away and start without the state on this node: queries with a store "
                "get theirs back from there, others say that it is lost"
            )
        raise Unavailable(f"the {role} server ended with status {status} instead of starting; its log:\n{_end(log)}\n{remedy}".rstrip())

    def _put_in_service(self, server: RunningServer) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._running[server.role] = server
            self._trouble.pop(server.role, None)
            write_json(self._record(server.role), asdict(server))

    def _look_after(self, role: Role) -> None:
        """Replace the server whenever it is lost, until the manager stops. Can begin anew at any point."""
        while not self._stopping.is_set():
            server = self._running[role]
            why = self._until_lost(server)
            if self._stopping.is_set():
                return
            self._trouble[role] = f"is started again: {why}"
            self._end(role, server.process, why)
            try:
                server = self._launch(role)
            except Unavailable as e:
                if not self._stopping.is_set():
                    _log.error("server cannot be started again", role=role, error=str(e))
                self._stopping.wait(_RELAUNCH_S)
                continue
            try:
                self._put_in_service(server)
            finally:  # also if its record cannot be written: it serves
                if not self._stopping.is_set():
                    self._on_restart(role)

    def _until_lost(self, server: RunningServer) -> str:
        """Probe the server again and again, the queue server by renewing the heartbeat; return why it is lost."""
        role, silent_s, observed = server.role, 0.0, ObservedTime(self._probe_every_s + 2 * self._probe_s)
        while not self._stopping.is_set():
            if role == "queue":
                self._start_watchdog()
            try:
                with self._administered(role, self._probe_s) as client:
                    if client.info("server")["run_id"] != server.run_id:
                        return "another server answers on its socket"
                    if role == "queue":
                        self._renew(client)
                observed.lap()
                silent_s = 0.0
                self._trouble.pop(role, None)
            except ServerLost as e:
                if not proc.alive(server.process):
                    return "it has died"
                if not self.socket(role).exists():
                    return "its socket is gone, so it cannot be reached"
                silent_s += observed.lap()
                if silent_s > self._hang_s:
                    return f"it has not answered for {silent_s:.0f} s: {e}"
                self._trouble[role] = f"has not answered for {silent_s:.0f} s (replaced after {self._hang_s:g} s)"
            if proc.wait(server.process, self._probe_every_s):
                return "it has died"
        return ""

    def _watchdog(self) -> proc.ProcessId | None:
        record = read_json(self._record(_WATCHDOG))
        process = proc.ProcessId(**record) if record else None
        return process if process and proc.alive(process) else None

    def _start_watchdog(self) -> None:
        """Start the watchdog, unless one still runs, perhaps an earlier manager's."""
        with self._lock:
            if self._stopping.is_set() or self._watchdog() is not None:
                return
            home = str(self._settings.home.absolute())
            argv = [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), home, str(self._settings.heartbeat_grace_ms)]
            null = subprocess.DEVNULL
            child = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, start_new_session=True)
            with proc.ended_unless(child):
                if process := proc.identify(child.pid):
                    write_json(self._record(_WATCHDOG), asdict(process))
            supervised.once("reap", child.wait, "watchdog")


@contextlib.contextmanager
def _claimed(directory: Path) -> Iterator[int]:
    """Claim the files for one server: a lock that the server inherits with the descriptor and holds as long as it lives."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not lock_within(fd, _FREE_S):
            raise Unavailable(f"another process still runs a server on {directory}: end it (fuser {directory}/lock)")
        yield fd
    finally:
        os.close(fd)
