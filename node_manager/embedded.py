"""The two servers of a node: started once, in sessions of their own, adopted by the next manager, restarted when they die.

Without the manager's heartbeat for the grace period a warden stops them (node_manager/warden.py).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, Thread

import structlog

from node_manager import append_only, proc, warden
from node_manager.access import Users
from node_manager.files import read_json, write_json
from node_manager.servers import Role, ServerBinary, find_server, server_args
from node_manager.settings import Settings
from udo_protocol import keys
from udo_protocol.connection import Connection, ReplyError
from udo_protocol.errors import ServerLost, Unavailable
from udo_protocol.slot import install

_log = structlog.get_logger()
ROLES: tuple[Role, Role] = ("queue", "state")
_START_TIMEOUT_S = 15.0
_RELAUNCH_S = 5.0


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    role: Role
    socket: str
    process: proc.ProcessId
    run_id: str
    version: str


def _end(log: Path) -> str:
    """What a server wrote last."""
    return log.read_text("utf-8", "replace")[-2000:].rstrip()


def _info(conn: Connection, section: str) -> dict[str, str]:
    text = bytes(conn.call("INFO", section)).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


class Servers:
    """Both servers. `on_restart(role)` is called, from a thread of its own, after a server died and a new one runs."""

    def __init__(self, settings: Settings, on_restart: Callable[[Role], None]) -> None:
        self._settings, self._on_restart = settings, on_restart
        self.users = Users(settings.home)
        self._binary: ServerBinary | None = None
        self._running: dict[Role, Server] = {}
        self._lock = Lock()
        self._launched: set[proc.ProcessId] = set()
        self._stopping = Event()

    def start(self) -> set[Role]:
        """Adopt or start both; answers the roles that had to be started."""
        adopted = {role: server for role in ROLES if (server := self._adopt(role))}
        for role in ROLES:
            self._settle(adopted.get(role) or self._launch(role))
        self.beat()
        self._start_warden()
        Thread(target=self._heartbeat, name="heartbeat", daemon=True).start()
        return set(ROLES) - set(adopted)

    def socket(self, role: Role) -> Path:
        """Where the server listens."""
        return self._settings.sockets.absolute() / f"{role}.sock"

    def running(self) -> list[Server]:
        """Both servers, as they are now."""
        with self._lock:
            return [self._running[role] for role in ROLES if role in self._running]

    def run_id(self, role: Role) -> str:
        """Incarnation of the running server."""
        with self._lock:
            return self._running[role].run_id

    def connect(self, role: Role) -> Connection:
        """A fresh connection; ServerLost while the server is away."""
        return Connection(str(self.socket(role)), login=self.users.manager)

    def admit(self, role: Role, name: str, rules: Sequence[str]) -> str:
        """A new user of an instance; its password."""
        with contextlib.closing(self.connect(role)) as conn:
            return self.users.new(role, conn, name, rules)

    def widen(self, role: Role, name: str, rules: Sequence[str]) -> None:
        """Give an instance's user these rights."""
        with contextlib.closing(self.connect(role)) as conn:
            self.users.widen(role, conn, name, rules)

    def dismiss(self, name: str) -> None:
        """An instance is gone, and so are its users; connections that it left open are closed."""
        for role in ROLES:
            if self.users.forget(role, name):
                with contextlib.suppress(ServerLost, ReplyError), contextlib.closing(self.connect(role)) as conn:
                    conn.call("ACL", "DELUSER", name)

    def dismiss_others(self, known: Iterable[str]) -> None:
        """Whoever is not among these instances has no business here."""
        for role in ROLES:
            for name in self.users.others(role, known):
                self.dismiss(name)

    def remark(self, role: Role) -> str:
        """What an operator of the platform should know of its data; empty as a rule."""
        cut = append_only.last_cut(self._settings.home.absolute() / "servers" / role) if role == "state" else None
        return str(cut) if cut else ""

    def used_bytes(self, role: Role) -> int:
        """Memory the server uses; 0 while it is away."""
        with contextlib.suppress(ServerLost), contextlib.closing(self.connect(role)) as conn:
            return int(_info(conn, "memory")["used_memory"])
        return 0

    def beat(self) -> None:
        """Renew the heartbeat."""
        with contextlib.suppress(ServerLost, ReplyError), contextlib.closing(self.connect("queue")) as conn:
            conn.call("SET", keys.HEARTBEAT, os.getpid(), "PX", self._settings.heartbeat_grace_ms)

    def stop(self) -> None:
        """Stop the warden and both servers and remove their sockets."""
        self._stopping.set()
        if (process := self._warden()) is not None:
            proc.terminate(process, 2)
        with self._lock:  # from here on nothing is started or recorded
            processes = {s.process for s in self._running.values()} | self._launched
        for process in processes:
            proc.terminate(process, 5)
        for role in ROLES:
            self.socket(role).unlink(missing_ok=True)
        self._record("warden").unlink(missing_ok=True)

    def _heartbeat(self) -> None:
        while not self._stopping.wait(self._settings.heartbeat_grace_ms / 6000):
            self.beat()

    def _record(self, name: str) -> Path:
        return self._settings.home / "servers" / f"{name}.json"

    def _describe(self, role: Role) -> Server:
        with contextlib.closing(Connection(str(self.socket(role)), timeout_s=5, login=self.users.manager)) as conn:
            info = _info(conn, "server")
            install(conn)
        process = proc.identify(int(info["process_id"]))
        if process is None:
            raise ServerLost(f"the {role} server on {self.socket(role)} runs outside of this process namespace")
        version = f"valkey {info['valkey_version']}" if "valkey_version" in info else f"redis {info['redis_version']}"
        return Server(role, str(self.socket(role)), process, conn.run_id, version)

    def _adopt(self, role: Role) -> Server | None:
        try:
            server = self._describe(role)
            with contextlib.closing(self.connect(role)) as conn:
                self.users.adopt(role, conn)
        except (ServerLost, ReplyError):
            self.socket(role).unlink(missing_ok=True)
            return None
        _log.info("server adopted", role=role, pid=server.process.pid)
        return server

    def _launch(self, role: Role) -> Server:
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
            with log.open("wb") as out:
                child = subprocess.Popen(
                    server_args(self._binary, role, directory, self.socket(role), self.users.acl_file(role)),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            if process := proc.identify(child.pid):
                self._launched = {p for p in self._launched if proc.alive(p)} | {process}
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                server = self._describe(role)
            except (ServerLost, ReplyError) as e:  # not listening yet, or still loading its append-only file
                if (status := child.poll()) is not None:
                    return self._mended(role, status, log)
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"the {role} server ({self._binary.path}) did not answer within {_START_TIMEOUT_S:g} s: {e}; its log:\n{_end(log)}"
                    ) from e
                time.sleep(0.005)
                continue
            if role == "queue":
                self.beat()  # before anything that takes long on a busy machine
            _log.info("server started", role=role, pid=child.pid, version=server.version)
            Thread(target=child.wait, name=f"reap-{role}", daemon=True).start()
            return server

    def _mended(self, role: Role, status: int, log: Path) -> Server:
        """A server has ended instead of starting: start it again if that was for unreadable writes, which are cut off."""
        if role == "state" and (cut := append_only.mend(log.parent, force=self._settings.cut_state)):
            _log.error("the state server's file was cut", what=str(cut))
            return self._launch(role)
        remedy = ""
        if role == "state":
            remedy = (
                f"Its writes since the last snapshot are readable, so the fault is elsewhere, maybe in the snapshot. Restore "
                f"{log.parent}/appendonlydir from a backup; or move it away and start without the state on this node: queries with a store "
                "get theirs back from there, others say that it is lost"
            )
        raise Unavailable(f"the {role} server ended with status {status} instead of starting; its log:\n{_end(log)}\n{remedy}".rstrip())

    def _settle(self, server: Server) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._running[server.role] = server
            write_json(self._record(server.role), asdict(server))
        Thread(target=self._watch, args=(server,), name=f"watch-{server.role}", daemon=True).start()

    def _watch(self, server: Server) -> None:
        while not proc.wait(server.process, 3600):
            pass
        if self._stopping.is_set():
            return
        _log.error("server died and is started again", role=server.role, pid=server.process.pid)
        self.socket(server.role).unlink(missing_ok=True)
        while True:
            try:
                self._settle(self._launch(server.role))
                break
            except Unavailable as e:
                if not self._stopping.is_set():
                    _log.error("server cannot be started again", role=server.role, error=str(e))
            if self._stopping.wait(_RELAUNCH_S):
                return
        if self._stopping.is_set():
            return
        self._start_warden()
        self._on_restart(server.role)

    def _warden(self) -> proc.ProcessId | None:
        record = read_json(self._record("warden"))
        process = proc.ProcessId(**record) if record else None
        return process if process and proc.alive(process) else None

    def _start_warden(self) -> None:
        """One warden: the former one, if it lives, already watches these sockets. Both servers may come back at once."""
        with self._lock:
            if self._stopping.is_set() or self._warden() is not None:
                return
            home = str(self._settings.home.absolute())
            argv = [sys.executable, "-I", "-S", str(Path(warden.__file__)), home, str(self._settings.heartbeat_grace_ms)]
            null = subprocess.DEVNULL
            child = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, start_new_session=True)
            if process := proc.identify(child.pid):
                write_json(self._record("warden"), asdict(process))
            Thread(target=child.wait, name="reap-warden", daemon=True).start()
